// grpc.js
//
// A gRPC service whose unary calls take effect once, however often a client
// sends them. The request id is the metadata "idempotency-key". The claim of
// the id, the work and the saved reply are one transaction.
//
// once() makes such a call out of a handler. The status codes are chosen as the
// documentation of gRPC says: UNAVAILABLE if the client can retry just this
// call, FAILED_PRECONDITION if it must not.
//
//   INVALID_ARGUMENT     there is no id, or no usable one
//   UNAUTHENTICATED      there is no account
//   FAILED_PRECONDITION  the id was used for another request
//   UNAVAILABLE          the call with this id is being handled, or the
//                        database is not there: retry with the same id
//   others               refusals of the handler, which are saved like replies
//
// Environment: PORT to listen on (0: any), and PG* as in database.js. The table
// is in grpc.sql, the service in grpc.proto.

'use strict';

const path = require('path');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');
const { isRetryable, transaction } = require('idempotency-pg');
const { connectPool } = require('./database');

const KEY_BYTES_MAX = 255;
const ACCOUNT_BYTES_MAX = 255; // it is the scope of the keys
const REQUEST_BYTES_MAX = 64 * 1024;
const RETRY_MS = 1000;

const pool = connectPool();

// A refusal: the call has failed for good, and has no effect.
class Refusal extends Error {
  constructor(code, details) {
    super(details);
    this.code = code;
  }
}

// ---------------------------------------------------------------------------
// The id
// ---------------------------------------------------------------------------

// Several values of a name arrive joined by a comma, and are refused.
function readOne(metadata, name, bytesMax, code) {
  const value = metadata.get(name).join();
  if (!/^[!-+\x2d-~]+$/.test(value) || value.length > bytesMax) {
    throw new Refusal(
      code,
      `${name} must be given once, with 1 to ${bytesMax} printable characters, without spaces and commas`,
    );
  }
  return value;
}

// The scope of an id is the account, so that no client can read the replies of
// another account. The gateway that has authenticated the client sets x-account.
// The fingerprint has the path of the method: the same id with another request
// is refused.
function identify({ metadata, request }, { path: method, requestSerialize }) {
  const { UNAUTHENTICATED, INVALID_ARGUMENT } = grpc.status;
  return {
    account: readOne(metadata, 'x-account', ACCOUNT_BYTES_MAX, UNAUTHENTICATED),
    key: readOne(metadata, 'idempotency-key', KEY_BYTES_MAX, INVALID_ARGUMENT),
    fingerprint: `${method} ${requestSerialize(request).toString('base64')}`,
  };
}

// ---------------------------------------------------------------------------
// The call
// ---------------------------------------------------------------------------

// gRPC clients with a retry policy for UNAVAILABLE wait as long as this metadata
// says.
function tryAgain(details) {
  const metadata = new grpc.Metadata();
  metadata.set('grpc-retry-pushback-ms', String(RETRY_MS));
  return { code: grpc.status.UNAVAILABLE, details, metadata };
}

// The transaction was rolled back, or the connection broke and its outcome is
// unknown: the same id finds out.
function answerForError(error) {
  if (error instanceof Refusal) {
    return { code: error.code, details: error.message };
  }
  console.error(error);
  return isRetryable(error)
    ? tryAgain('Send the same call again, with the same idempotency-key.')
    : { code: grpc.status.INTERNAL, details: 'The call has failed.' };
}

// The result of the claim, as the client gets it. What an earlier call has done
// is marked as a replay.
function answerFor({
  outcome, response, error, replayed,
}, method) {
  const metadata = new grpc.Metadata();
  if (replayed) {
    metadata.set('idempotent-replayed', 'true');
  }
  switch (outcome) {
    case 'claimed':
    case 'completed':
      return { reply: method.responseDeserialize(Buffer.from(response, 'base64')), metadata };
    case 'failed':
      return { ...error, metadata };
    case 'in_progress':
      return tryAgain('The call with this idempotency-key has not ended yet.');
    case 'mismatch':
      return {
        code: grpc.status.FAILED_PRECONDITION,
        details: 'The idempotency-key was used for another request. Use a new one.',
      };
    default:
      throw new Error(`unknown outcome ${outcome}`);
  }
}

// A refusal is saved, too. Its work is undone.
function failure(error) {
  return error instanceof Refusal ? { code: error.code, details: error.message } : undefined;
}

// If the client cancels the call or its deadline passes, the work goes on, and
// the client gets the reply when it calls again with the same id. A reply is
// saved as it is sent, since JSON would not keep all types.
function once(method, handler) {
  async function answer(call) {
    const { key, account, fingerprint } = identify(call, method);
    const result = await transaction(pool, key, async (client) => {
      const reply = await handler(client, call.request, { account });
      return method.responseSerialize(reply).toString('base64');
    }, {
      scope: account, request: fingerprint, wait: false, retries: 0, failure,
    });
    return answerFor(result, method);
  }

  return async (call, callback) => {
    const { reply, metadata, ...refusal } = await answer(call).catch(answerForError);
    if (reply) {
      callback(null, reply, metadata);
    } else {
      callback({ ...refusal, metadata });
    }
  };
}

// ---------------------------------------------------------------------------
// The service
// ---------------------------------------------------------------------------

async function placeOrder(client, { sku, quantity }, { account }) {
  if (sku === '' || sku.includes('\0') || quantity < 1) {
    throw new Refusal(grpc.status.INVALID_ARGUMENT, 'An order has a sku, and a quantity of 1 or more.');
  }
  const { rows: [{ id }] } = await client.query(
    'INSERT INTO orders (account, sku, quantity) VALUES ($1, $2, $3) RETURNING id',
    [account, sku, quantity],
  );
  const { rows: [{ outcome }] } = await client.query(
    'SELECT outcome FROM stock_reserve($1, $2, $3)',
    [sku, quantity, `order-${id}`],
  );
  if (outcome !== 'reserved') {
    throw new Refusal(grpc.status.FAILED_PRECONDITION, `The stock is ${outcome}.`);
  }
  return { order: id };
}

const { shop } = grpc.loadPackageDefinition(loadSync(path.join(__dirname, 'grpc.proto'), { longs: String }));
const { service } = shop.Orders;
const server = new grpc.Server({ 'grpc.max_receive_message_length': REQUEST_BYTES_MAX });

server.addService(service, { PlaceOrder: once(service.PlaceOrder, placeOrder) });
server.bindAsync(
  `127.0.0.1:${process.env.PORT ?? 8080}`,
  grpc.ServerCredentials.createInsecure(),
  (error, port) => {
    if (error) {
      throw error;
    }
    console.log(`listening on port ${port}`);
  },
);
