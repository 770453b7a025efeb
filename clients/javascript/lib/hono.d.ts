import type { MiddlewareHandler, Context } from 'hono';
import type { DatabasePool, Idempotency, KeyOptions } from './index';

export function idempotencyKey<Pool extends DatabasePool>(
  options: KeyOptions<Context, Pool>,
): MiddlewareHandler<{ Variables: { idempotency: Idempotency } }>;
