// types.ts
//
// A typed program that uses everything; package.test.js compiles it, and does
// not run it. Each line after @ts-expect-error must be an error.

import * as http from 'http';
import express from 'express';
import { fastify } from 'fastify';
import { Hono } from 'hono';
import { Pool, type PoolClient } from 'pg';
import postgres from 'postgres';
import {
  claim, complete, consume, fail, isRetryable, lease, renew, transact, transaction, webhookReceiver,
  type Answer, type Claim, type ClaimOptions, type ClientOf, type DatabasePool, type Duration, type Idempotency, type KeyOptions,
  type Lease, type LeaseIdempotency, type Outcome, type Queryable, type Result,
  type TransactionIdempotency, type WebhookOptions, type WebhookReceiver, type WorkOptions,
} from 'idempotency-pg';
import { idempotencyKey as forExpress, keepRawBody } from 'idempotency-pg/express';
import { idempotencyKey as forFastify } from 'idempotency-pg/fastify';
import { idempotencyKey as forHono } from 'idempotency-pg/hono';

const pool = new Pool();
const sql = postgres();

async function calls(client: PoolClient): Promise<Date> {
  const { outcome, token, retryAfter } = await claim(client, 'key', { scope: 'a', lease: 40, wait: false });
  if (outcome !== 'claimed' || token === null) {
    throw new Error(`${outcome}, again after ${retryAfter ?? 1} s`);
  }
  await complete(pool, 'key', token, { any: ['json'] }, { ttl: '1 day' });
  await fail(sql, 'key', token, 'error', { retry: false });
  // @ts-expect-error no such option
  await claim(pool, 'key', { leas: 40 });
  // @ts-expect-error not a database
  await claim({}, 'key');
  return renew(sql, 'key', token, { lease: '1 min' });
}

async function work(): Promise<number> {
  const { response } = await transaction(pool, 'key', async (client, { attempt }) => {
    const { rows } = await client.query<{ n: number }>('SELECT 1 AS n');
    return { order: rows[0]!.n + attempt };
  }, { failure: (error) => (isRetryable(error) ? undefined : { error: String(error) }) });
  // @ts-expect-error the answer has no such member
  response?.orders;
  const { response: paid } = await lease(sql, 'key', async ({ commit, signal, token }) => {
    await fetch('http://localhost', { signal, headers: { token } });
    const answer = await commit(async (tx) => {
      await tx`SELECT 1`;
      return { payment: 1 };
    });
    // @ts-expect-error it can be null
    answer.payment;
    return answer;
  }, { lease: '40 s' });
  await consume(sql, { scope: 'queue', id: 'message', request: 'body', ttl: 3600 }, (tx) => tx`SELECT 1`);
  const count: number | null = await transact(pool, async (client) => (await client.query('SELECT 1')).rowCount);
  await transact(sql, (tx) => tx`SELECT 1`);
  // @ts-expect-error a message has an id
  await consume(pool, { scope: 'queue' }, () => {});
  return (count ?? response?.order ?? 0) + (paid?.payment ?? 0);
}

// Wrappers, as programs write them.
async function firstOf(db: Queryable, key: string, options: ClaimOptions): Promise<Claim['token']> {
  return (await claim(db, key, options)).token;
}

async function withDefaults<P extends DatabasePool, A>(
  anyPool: P, key: string, change: (client: ClientOf<P>) => Promise<A>, seconds: Duration, options: WorkOptions = {},
): Promise<[Outcome, A | null]> {
  const { outcome, response }: Result<A> = await lease(
    anyPool, key, (held: Lease<P>) => held.commit(change), { ...options, lease: seconds },
  );
  return [outcome, response];
}

// All options, so that each one that is missing or superfluous is an error.
const workOptions: Required<WorkOptions> = {
  scope: 'a', request: null, ttl: 3600, wait: false, retries: 3, failure: (error) => error.code,
};
const keyOptions: Required<KeyOptions<express.Request, Pool>> = {
  pool,
  scope: async (request) => request.get('x-account')!,
  fingerprint: (request) => request.url,
  lease: '40 s',
  ttl: 3600,
  keep: ({ status: code, body }: Answer) => code < 500 && body.length > 0,
  methods: ['PUT'],
  required: false,
  answerBytesMax: 1000,
  closeTimeout: 10,
  documentation: 'https://example.com',
};
const receiverOptions: Required<WebhookOptions<Pool>> = {
  pool, secret: 'whsec_', scope: 'shop', work() {}, ttl: '40 days', retries: 3, failure: () => null, bodyBytesMax: 1000, onError() {},
};
const receiver: WebhookReceiver = webhookReceiver(receiverOptions);

const receive = webhookReceiver({
  pool, secret: ['whsec_new', 'whsec_old'], scope: 'shop', work: (client, event) => client.query('SELECT $1', [event.type]),
});
http.createServer(receive.handler);
const status: Promise<number> = receive(new Headers(), 'body');

const app = express();
app.use(express.json({ verify: keepRawBody }));
app.use(forExpress({ pool, scope: (request: express.Request) => request.get('x-account')! }));
app.post('/', async (request, response) => {
  const { client } = request.idempotency as TransactionIdempotency<PoolClient>;
  await client.query('SELECT 1');
  // @ts-expect-error it is not sure that there is a signal
  request.idempotency!.signal.aborted;
  response.json({});
});
// @ts-expect-error the scope is required
forExpress({ pool });

const server = fastify();
server.register(forFastify({ pool: sql, lease: 40, scope: (request) => String(request.headers['x-account']) }));
server.post('/', async (request) => {
  // @ts-expect-error without a lease, there is no begin
  request.idempotency!.begin();
  const { begin, signal } = request.idempotency as LeaseIdempotency<postgres.TransactionSql>;
  signal.throwIfAborted();
  const client = await begin();
  await client`SELECT 1`;
  return {};
});

const hono = new Hono<{ Variables: { idempotency: Idempotency } }>();
hono.use(forHono({ pool, scope: (context) => context.req.header('x-account')!, keep: ({ status: code }) => code !== 429 }));
hono.post('/', (context) => context.json({ key: context.get('idempotency').key }));

export {
  calls, firstOf, keyOptions, receiver, status, withDefaults, work, workOptions,
};
