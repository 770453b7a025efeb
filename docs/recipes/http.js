// http.js
//
// An HTTP API whose POST requests take effect once, however often a client
// sends them. It uses the header Idempotency-Key as described by
// draft-ietf-httpapi-idempotency-key-header.
//
//   POST /orders     {"item", "quantity"}: all work is in the database, so the
//                    claim is part of its transaction
//   POST /payments   {"amount"}: calls a payment provider, so the claim has a
//                    lease
//
// Environment: PORT to listen on (0: any), PROVIDER_URL of the provider, and
// PG* as in database.js. The tables are in http.sql.

'use strict';

const express = require('express');
const { idempotencyKey, keepRawBody } = require('idempotency-pg/express');
const { connectPool } = require('./database');

const ACCOUNT_BYTES_MAX = 255; // it is the scope of the keys
const PROVIDER_TIMEOUT_MS = 20 * 1000;

// Limits of the columns. A number that is too large for its column must be
// refused before any work is done. Otherwise each try would call the provider,
// and then fail to insert the row.
const QUANTITY_MAX = 2 ** 31 - 1;
const AMOUNT_MAX = Number.MAX_SAFE_INTEGER;

const pool = connectPool();

function sendProblem(response, status, title, detail) {
  response.status(status);
  response.set('Content-Type', 'application/problem+json');
  response.end(JSON.stringify({ type: 'about:blank', title, detail }));
}

// ---------------------------------------------------------------------------
// Before the key is claimed: a request that is refused here does not use it
// ---------------------------------------------------------------------------

// The header is set by the gateway that has authenticated the client.
function checkAccount(request, response, next) {
  request.account = request.get('X-Account');
  if (!request.account) {
    sendProblem(response, 401, 'Unknown account', 'The header X-Account is missing.');
  } else if (Buffer.byteLength(request.account) > ACCOUNT_BYTES_MAX) {
    sendProblem(response, 400, 'Not an account',
      `The header X-Account has more than ${ACCOUNT_BYTES_MAX} bytes.`);
  } else {
    next();
  }
}

function isCount(number, most) {
  return Number.isInteger(number) && number >= 1 && number <= most;
}

// PostgreSQL has no text with the character 0.
function isText(value) {
  return typeof value === 'string' && !value.includes('\0');
}

function checkOrder(request, response, next) {
  const { item, quantity } = request.body ?? {};
  if (isText(item) && isCount(quantity, QUANTITY_MAX)) {
    next();
  } else {
    sendProblem(response, 400, 'Not an order',
      `An order has an item and a quantity of at most ${QUANTITY_MAX}.`);
  }
}

function checkPayment(request, response, next) {
  if (isCount(request.body?.amount, AMOUNT_MAX)) {
    next();
  } else {
    sendProblem(response, 400, 'Not a payment', `A payment has an amount of at most ${AMOUNT_MAX}.`);
  }
}

// ---------------------------------------------------------------------------
// The two kinds of work
// ---------------------------------------------------------------------------

// The account is the scope of a key, so that no client can read the answers of
// another account.
const keys = {
  pool,
  scope: (request) => request.account,
  documentation: 'https://developer.example.com/idempotency',
};

// Claim, order and saved answer are one transaction. If it fails, the key is
// free again.
async function placeOrder(request, response) {
  const { rows: [order] } = await request.idempotency.client.query(
    'INSERT INTO orders (account, item, quantity) VALUES ($1, $2, $3) RETURNING id',
    [request.account, request.body.item, request.body.quantity],
  );
  response.status(201).json({ order: order.id });
}

// The provider gets the same key each time. After a crash the next owner calls
// it again, and may get the answer that the payment was made.
async function askProvider({ account, body, idempotency: { key } }) {
  const answer = await fetch(process.env.PROVIDER_URL, {
    method: 'POST',
    headers: { 'Idempotency-Key': JSON.stringify(`${account}/${key}`) },
    body: JSON.stringify({ amount: body.amount }),
    signal: AbortSignal.timeout(PROVIDER_TIMEOUT_MS),
  });
  const receipt = (await answer.text()).replaceAll('\0', '');
  if (answer.status >= 500) {
    throw new Error(`the provider answered ${answer.status}`);
  }
  return { isPaid: answer.ok, receipt };
}

// The lease is committed before the provider is called, and no transaction is
// open during the call. begin() starts the one that saves the answer, too: an
// owner that is too late gets ID001, and inserts nothing.
async function pay(request, response) {
  const { isPaid, receipt } = await askProvider(request);
  if (!isPaid) {
    sendProblem(response, 402, 'Declined', receipt);
    return;
  }
  const client = await request.idempotency.begin();
  const { rows: [payment] } = await client.query(
    'INSERT INTO payments (account, amount, receipt) VALUES ($1, $2, $3) RETURNING id',
    [request.account, request.body.amount, receipt],
  );
  response.status(201).json({ payment: payment.id });
}

// ---------------------------------------------------------------------------
// HTTP
// ---------------------------------------------------------------------------

// By its four parameters Express knows that it handles errors.
function answerError(error, request, response, next) {
  if (response.headersSent) {
    next(error);
  } else if (error.expose) {
    sendProblem(response, error.status, 'No usable body', 'The body is a JSON object of at most 64 KiB.');
  } else {
    console.error(error);
    sendProblem(response, 500, 'Try again', 'Send the same request again, with the same key.');
  }
}

const app = express();
app.use(checkAccount, express.json({ limit: '64kb', type: () => true, verify: keepRawBody }));
app.post('/orders', checkOrder, idempotencyKey(keys), placeOrder);
app.post('/payments', checkPayment, idempotencyKey({ ...keys, lease: '40 s' }), pay);
app.use((request, response) => {
  sendProblem(response, 404, 'Not found', 'There are POST /orders and POST /payments.');
});
app.use(answerError);

const server = app.listen(process.env.PORT ?? 8080, '127.0.0.1', () => {
  console.log(`listening on port ${server.address().port}`);
});
