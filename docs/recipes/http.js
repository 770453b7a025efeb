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

const http = require('http');
const { connectPool, transaction } = require('./database');

const DOCUMENTATION = 'https://developer.example.com/idempotency';
const KEY_BYTES_MAX = 255;
const ACCOUNT_BYTES_MAX = 255; // it is the scope of the keys
const BODY_BYTES_MAX = 64 * 1024;
const PROVIDER_TIMEOUT_MS = 20 * 1000; // so that a lease of 40 s outlives it

// Limits of the columns. A number that is too large for its column must be
// refused before any work is done. Otherwise each try would call the provider,
// and then fail to insert the row.
const QUANTITY_MAX = 2 ** 31 - 1;
const AMOUNT_MAX = Number.MAX_SAFE_INTEGER;

const pool = connectPool();

// ---------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------

function problem(status, title, detail, type = 'about:blank') {
  return {
    status,
    headers: { 'Content-Type': 'application/problem+json' },
    body: { type, title, detail },
  };
}

function keyProblem(status, title, detail) {
  return problem(status, title, detail, DOCUMENTATION);
}

function addHeader(answer, name, value) {
  return { ...answer, headers: { ...answer.headers, [name]: value } };
}

// The answer to requests whose key was claimed before.
function answerFor(claim) {
  switch (claim.outcome) {
    case 'completed':
    case 'failed':
      return addHeader(claim.response, 'Idempotent-Replayed', 'true');
    case 'in_progress':
      return addHeader(
        keyProblem(409, 'A request is outstanding for this Idempotency-Key',
          'The first request with this key has not been answered yet.'),
        'Retry-After',
        claim.retry_seconds ?? 1,
      );
    case 'mismatch':
      return keyProblem(422, 'Idempotency-Key is already used',
        'The key was used for another request. Use a new one.');
    default:
      throw new Error(`unknown outcome ${claim.outcome}`);
  }
}

// ---------------------------------------------------------------------------
// The claim
// ---------------------------------------------------------------------------

// The scope of a key is the account, so that no client can read the answers of
// another account. The request of a key is the whole request, with its path:
// the same key with another request is refused.
async function claim(client, { key, account, fingerprint }, lease = null) {
  const { rows } = await client.query(
    `SELECT outcome, token, response,
       ceil(extract(epoch FROM retry_after))::integer AS retry_seconds
     FROM idem_claim($1, scope => $2, request => $3, lease => $4, wait => false)`,
    [key, account, fingerprint, lease],
  );
  return rows[0];
}

async function complete(client, { key, account }, token, answer) {
  await client.query(
    'SELECT idem_complete($1, $2, response => $3, scope => $4)',
    [key, token, JSON.stringify(answer), account],
  );
}

async function fail(request, token, retry, answer = null) {
  await pool.query(
    'SELECT idem_fail($1, $2, error => $3, scope => $4, retry => $5)',
    [request.key, token, JSON.stringify(answer), request.account, retry],
  );
}

// ---------------------------------------------------------------------------
// The two kinds of work
// ---------------------------------------------------------------------------

function isCount(number, most) {
  return Number.isInteger(number) && number >= 1 && number <= most;
}

// PostgreSQL has no text with the character 0.
function isText(value) {
  return typeof value === 'string' && !value.includes('\0');
}

// Claim, order and saved answer are one transaction. If it fails, the key is
// free again.
async function placeOrder(request) {
  const { item, quantity } = request.body;
  if (!isText(item) || !isCount(quantity, QUANTITY_MAX)) {
    return problem(400, 'Not an order',
      `An order has an item and a quantity of at most ${QUANTITY_MAX}.`);
  }
  return transaction(pool, async (client) => {
    const claimed = await claim(client, request);
    if (claimed.outcome !== 'claimed') {
      return answerFor(claimed);
    }
    const { rows } = await client.query(
      'INSERT INTO orders (account, item, quantity) VALUES ($1, $2, $3) RETURNING id',
      [request.account, item, quantity],
    );
    const answer = { status: 201, body: { order: rows[0].id } };
    await complete(client, request, claimed.token, answer);
    return answer;
  });
}

// The provider gets the same key each time. After a crash the next owner calls
// it again, and may get the answer that the payment was made.
async function askProvider({ key, account, body }) {
  const response = await fetch(process.env.PROVIDER_URL, {
    method: 'POST',
    headers: { 'Idempotency-Key': JSON.stringify(`${account}/${key}`) },
    body: JSON.stringify({ amount: body.amount }),
    signal: AbortSignal.timeout(PROVIDER_TIMEOUT_MS),
  });
  const receipt = (await response.text()).replaceAll('\0', '');
  if (response.status >= 500) {
    throw new Error(`the provider answered ${response.status}`);
  }
  return { paid: response.ok, receipt };
}

async function settlePayment(request, token) {
  const { paid, receipt } = await askProvider(request);
  if (!paid) {
    const answer = problem(402, 'Declined', receipt);
    await fail(request, token, false, answer);
    return answer;
  }
  return transaction(pool, async (client) => {
    const { rows } = await client.query(
      'INSERT INTO payments (account, amount, receipt) VALUES ($1, $2, $3) RETURNING id',
      [request.account, request.body.amount, receipt],
    );
    const answer = { status: 201, body: { payment: rows[0].id } };
    await complete(client, request, token, answer);
    return answer;
  });
}

// The lease is committed before the provider is called, and no transaction is
// open during the call. The row of the payment and the saved answer are one
// transaction again: an owner that is too late gets ID001, and inserts nothing.
async function pay(request) {
  if (!isCount(request.body.amount, AMOUNT_MAX)) {
    return problem(400, 'Not a payment',
      `A payment has an amount of at most ${AMOUNT_MAX}.`);
  }
  const claimed = await claim(pool, request, '40 s');
  if (claimed.outcome !== 'claimed') {
    return answerFor(claimed);
  }
  try {
    return await settlePayment(request, claimed.token);
  } catch (error) {
    if (error.code === 'ID001') {
      return answerFor({ outcome: 'in_progress' });
    }
    // Free the key for the next try. If this fails too, the lease runs out.
    await fail(request, claimed.token, true).catch(() => {});
    throw error;
  }
}

const routes = { '/orders': placeOrder, '/payments': pay };

// ---------------------------------------------------------------------------
// HTTP
// ---------------------------------------------------------------------------

// The header is a string of structured fields: in quotes, with \" and \\ as
// escapes. Two such headers arrive joined by a comma, and are refused.
function parseKey(header) {
  const match = /^ *"((?:[ !#-[\]-~]|\\["\\])+)" *$/.exec(header);
  const key = match?.[1].replace(/\\(.)/g, '$1');
  return key && key.length <= KEY_BYTES_MAX ? key : null;
}

function parseBody(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function readBody(message) {
  const chunks = [];
  let size = 0;
  for await (const chunk of message) {
    size += chunk.length;
    if (size > BODY_BYTES_MAX) {
      return null;
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

async function handle(message) {
  const route = message.method === 'POST' && routes[message.url];
  if (!route) {
    return problem(404, 'Not found', 'There are POST /orders and POST /payments.');
  }
  // Set by the gateway that has authenticated the client.
  const account = message.headers['x-account'];
  if (!account) {
    return problem(401, 'Unknown account', 'The header X-Account is missing.');
  }
  if (Buffer.byteLength(account) > ACCOUNT_BYTES_MAX) {
    return problem(400, 'Not an account',
      `The header X-Account has more than ${ACCOUNT_BYTES_MAX} bytes.`);
  }
  const header = message.headers['idempotency-key'];
  if (header === undefined) {
    return keyProblem(400, 'Idempotency-Key is missing',
      'This operation requires the header Idempotency-Key.');
  }
  const key = parseKey(header);
  if (!key) {
    return keyProblem(400, 'Idempotency-Key is malformed',
      `It is a string in quotes, of at most ${KEY_BYTES_MAX} characters.`);
  }
  const text = await readBody(message);
  const body = text && parseBody(text);
  if (!body) {
    return problem(400, 'No usable body', 'The body is a JSON object of at most 64 KiB.');
  }
  const fingerprint = `POST ${message.url}\n${text}`;
  return route({ key, account, body, fingerprint });
}

async function serve(message, response) {
  let answer;
  try {
    answer = await handle(message);
  } catch (error) {
    console.error(error);
    answer = problem(500, 'Try again', 'Send the same request again, with the same key.');
  }
  response.writeHead(answer.status, {
    'Content-Type': 'application/json',
    ...answer.headers,
    // The rest of a body that is too large is not read.
    ...(message.complete ? {} : { Connection: 'close' }),
  });
  response.end(JSON.stringify(answer.body));
}

const server = http.createServer(serve);
server.listen(process.env.PORT ?? 8080, '127.0.0.1', () => {
  console.log(`listening on port ${server.address().port}`);
});
