import type { IncomingMessage, ServerResponse } from 'http';
import type { DatabasePool, Idempotency, KeyOptions } from './index';

declare global {
  namespace Express {
    interface Request {
      idempotency?: Idempotency;
    }
  }
}

export function idempotencyKey<Pool extends DatabasePool, Request extends IncomingMessage = any>(
  options: KeyOptions<Request, Pool>,
): (request: Request, response: ServerResponse, next: (error?: any) => void) => Promise<void>;

// The option verify of express.json() and others, so that idempotencyKey knows the
// bytes of the body.
export function keepRawBody(request: IncomingMessage, response: ServerResponse, bytes: Buffer): void;
