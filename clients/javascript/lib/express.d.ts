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
