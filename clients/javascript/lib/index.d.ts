// A pool, a connection or a transaction of node-postgres.
export interface PgQueryable {
  query(text: string, values?: any[]): Promise<{ rows: any[] }>;
}

// The sql function of postgres.js, or of one of its transactions.
export interface PostgresQueryable {
  unsafe(text: string, values?: any[]): PromiseLike<any>;
}

export type Queryable = PgQueryable | PostgresQueryable;

// A Pool of node-postgres, or the sql function of postgres.js.
export type DatabasePool = (PgQueryable & { connect(): Promise<any> }) | (PostgresQueryable & { begin: (...options: any[]) => any });

// What work gets for its queries: a PoolClient of node-postgres, or the sql
// function of a transaction of postgres.js.
export type ClientOf<Pool> =
  Pool extends { begin: { (work: (sql: infer Sql) => any): any; (options: any, work: any): any } } ? Sql
    : Pool extends { connect: { (): Promise<infer Client>; (callback: any): any } } ? Client
      : Pool extends { connect(): Promise<infer Client> } ? Client
        : never;

// An interval of PostgreSQL, such as '40 s', or a number of seconds.
export type Duration = string | number;

export type Outcome = 'claimed' | 'in_progress' | 'completed' | 'failed' | 'mismatch';

export interface ClaimOptions {
  scope?: string;
  // What the key is used for: another request with the same key is a mismatch.
  request?: string | null;
  // How long the key is remembered; default: the setting idempotency.ttl.
  ttl?: Duration;
  // Whether to wait for another open transaction that has the key; default: true.
  wait?: boolean;
}

export interface Claim {
  outcome: Outcome;
  token: string | null;
  attempt: number | null;
  // The saved answer, if the outcome is completed.
  response: any;
  // The saved error, if the outcome is failed.
  error: any;
  // The rest of the other owner's lease, in seconds.
  retryAfter: number | null;
  // The lease of this claim, in seconds.
  lease: number | null;
}

// Calls idem_claim. Without a lease, the commit of the transaction completes the
// claim: so call it in the transaction that does the work, or give it a lease.
export function claim(db: Queryable, key: string, options?: ClaimOptions & { lease?: Duration }): Promise<Claim>;

// Calls idem_complete: saves the answer, which is any JSON.
export function complete(
  db: Queryable, key: string, token: string, response?: unknown, options?: { scope?: string; ttl?: Duration },
): Promise<void>;

// Calls idem_fail: frees the key or, with retry: false, lets it fail for good.
export function fail(
  db: Queryable, key: string, token: string, error?: unknown, options?: { scope?: string; retry?: boolean },
): Promise<void>;

// Calls idem_renew, and returns the new end of the lease.
export function renew(
  db: Queryable, key: string, token: string, options?: { scope?: string; lease?: Duration },
): Promise<Date>;

export interface WorkOptions extends ClaimOptions {
  // How often a transaction is repeated after an error for which isRetryable is
  // true; default: 3.
  retries?: number;
  // For an error of the work that is final: returns the error to save, any JSON.
  // The key has then failed for good. undefined: the key is free again.
  failure?: (error: any) => unknown;
}

export interface Result<Answer> {
  // That of idem_claim: claimed if this call did the work. Also failed if this
  // call did the work, and it has failed for good.
  outcome: Outcome;
  attempt: number | null;
  // As a later call gets it: what was saved as JSON.
  response: Answer | null;
  error: any;
  retryAfter: number | null;
  // Whether response or error are those of an earlier call.
  replayed: boolean;
}

// Claims the key, does the work and saves the answer that it returns, in one
// transaction. Work may be called again after a deadlock or a lost connection,
// so it should have no effect outside the transaction.
export function transaction<Pool extends DatabasePool, Answer>(
  pool: Pool,
  key: string,
  work: (client: ClientOf<Pool>, claim: Claim & { token: string; attempt: number }) => Promise<Answer> | Answer,
  options?: WorkOptions,
): Promise<Result<Answer>>;

// The same for a message of any broker, without an answer.
export function consume<Pool extends DatabasePool>(
  pool: Pool,
  message: WorkOptions & { id: string },
  work: (client: ClientOf<Pool>, claim: Claim & { token: string; attempt: number }) => unknown,
): Promise<Result<null>>;

export interface Lease<Pool> {
  key: string;
  // Proves the ownership, also to other systems: each one is larger than those before.
  token: string;
  attempt: number;
  // Fires when the key may belong to another owner.
  signal: AbortSignal;
  // Does the last changes and saves the answer that change returns, in one
  // transaction. An owner that is too late gets ID001, and changes nothing. After
  // an error it may be called again, and takes effect once.
  // Resolves to the answer as a later call gets it: what was saved as JSON, so a
  // Date is a string, and undefined is null.
  commit<Answer>(change: (client: ClientOf<Pool>) => Promise<Answer> | Answer): Promise<Answer | null>;
}

// Claims the key with a lease (default: '1 min'), which is renewed until the
// work has ended, and does the work outside any transaction. If the work does
// not call commit, the answer that it returns is saved.
export function lease<Pool extends DatabasePool, Answer>(
  pool: Pool,
  key: string,
  work: (lease: Lease<Pool>) => Promise<Answer | null> | Answer | null,
  options?: WorkOptions & { lease?: Duration },
): Promise<Result<Answer>>;

// Runs work in a transaction without a key, and returns its result after the
// commit. After an error nothing is changed, unless the answer to COMMIT was
// lost: then the outcome is unknown.
export function transact<Pool extends DatabasePool, Returned>(
  pool: Pool, work: (client: ClientOf<Pool>) => Promise<Returned> | Returned,
): Promise<Returned>;

// Whether the same transaction can succeed if it is repeated: after a deadlock,
// a serialization failure, a lost connection, a restart or a failover.
export function isRetryable(error: unknown): boolean;

export interface WebhookOptions<Pool> extends Omit<WorkOptions, 'request' | 'wait'> {
  pool: Pool;
  // As outbox_subscribe returned it; two while it is replaced.
  secret: string | string[];
  scope: string;
  // In the transaction that claims the webhook-id.
  work: (client: ClientOf<Pool>, event: any, id: string) => unknown;
  // Default: 17 MiB.
  bodyBytesMax?: number;
  // Default: console.error.
  onError?: (error: unknown) => void;
}

type HeaderValues = { [name: string]: string | string[] | undefined } | Headers;

export interface WebhookReceiver {
  // Returns the status of the answer.
  (headers: HeaderValues, rawBody: string | Buffer): Promise<number>;
  // For http.createServer.
  handler: (request: import('http').IncomingMessage, response: import('http').ServerResponse) => Promise<void>;
}

// A receiver of Standard Webhooks; needs the package standardwebhooks.
export function webhookReceiver<Pool extends DatabasePool>(options: WebhookOptions<Pool>): WebhookReceiver;

// Options of idempotencyKey in idempotency-pg/express, /fastify and /hono.
// Request is a request of Express or Fastify, or a context of Hono.
export interface KeyOptions<Request, Pool = DatabasePool> {
  pool: Pool;
  // The account that sends the request: no other one can read its answers.
  scope: (request: Request) => string | Promise<string>;
  // Default: the SHA-256 of method, path with query, and body.
  fingerprint?: (request: Request) => string | Promise<string>;
  // If given, handlers work outside a transaction, and call begin() for the last one.
  lease?: Duration;
  ttl?: Duration;
  // Whether to keep an answer; default: ({ status }) => status < 500.
  keep?: (answer: Answer) => boolean | Promise<boolean>;
  // Default: POST and PATCH.
  methods?: string[];
  // Whether a request without a key is refused; default: true.
  required?: boolean;
  // Default: 1 MiB.
  answerBytesMax?: number;
  // Without a lease, in Express and Fastify: how long a handler may work on after
  // its client has closed the connection, in seconds, or Infinity; default: 60.
  // Then its changes are undone.
  closeTimeout?: number;
  // A URL, for the type of problems.
  documentation?: string;
}

export interface Answer {
  status: number;
  // Names in lower case, of which each can occur several times.
  headers: [name: string, value: string][];
  body: Buffer;
}

// What a handler gets, with and without a lease.
interface ClaimedKey {
  key: string;
  scope: string;
  token: string;
  attempt: number;
}

export interface TransactionIdempotency<Client = any> extends ClaimedKey {
  // The transaction of the claim.
  client: Client;
  begin?: undefined;
  signal?: undefined;
}

export interface LeaseIdempotency<Client = any> extends ClaimedKey {
  client?: undefined;
  // Begins the transaction that also saves the answer.
  begin(): Promise<Client>;
  // Fires when the key may belong to another owner.
  signal: AbortSignal;
}

// Which one it is depends on the option lease. A program that knows it says so:
// request.idempotency as LeaseIdempotency.
export type Idempotency<Client = any> = TransactionIdempotency<Client> | LeaseIdempotency<Client>;
