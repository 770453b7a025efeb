import type { DatabasePool, Idempotency, KeyOptions } from './index';

declare module 'fastify' {
  interface FastifyRequest {
    idempotency: Idempotency | null;
  }
}

export function idempotencyKey<Pool extends DatabasePool>(
  options: KeyOptions<import('fastify').FastifyRequest, Pool>,
): import('fastify').FastifyPluginAsync;
