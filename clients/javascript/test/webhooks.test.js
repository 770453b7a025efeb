// webhooks.test.js
//
// webhookReceiver takes what the relay of a real server sends: each event has
// one effect, however often it comes, and nothing without a valid signature.

'use strict';

const assert = require('assert/strict');
const { once } = require('events');
const http = require('http');
const { after, before, test } = require('node:test');
const { webhookReceiver } = require('idempotency-pg');
const {
  DRIVERS, admin, effects, waitUntil,
} = require('./lib');

const SCHEDULE = `{0 s${',100 ms'.repeat(29)}}`;

const outcomes = [];
const requests = [];
const errors = [];
let losesAnswer = false;
let receiver;
let server;
const { pool, query, end } = DRIVERS.pg();

function makeReceiver(secret) {
  return webhookReceiver({
    pool,
    secret,
    scope: 'shop',
    bodyBytesMax: 1000,
    onError: (error) => errors.push(error.message),
    failure: (error) => (error.code === '22012' ? { error: error.message } : undefined),
    work: async (client, { data }, id) => {
      assert.match(id, /^msg_/);
      await query(client, 'INSERT INTO effects VALUES ($1)', [data.order]);
      await query(client, 'SELECT 1 / $1::integer', [data.divisor ?? 1]);
    },
  });
}

// Keeps what arrives, and loses an answer if it is told to.
async function listen(message, response) {
  message.on('data', (chunk) => {
    requests.push({ headers: message.headers, body: chunk.toString() });
  });
  response.on('finish', () => outcomes.push(response.statusCode));
  if (losesAnswer) {
    losesAnswer = false;
    response.end = () => message.socket.destroy();
  }
  await receiver.handler(message, response);
}

async function enqueue(order, more = {}) {
  await admin("SELECT outbox_enqueue('client.order', $1)", [{ order, ...more }]);
}

const post = (headers, body) => fetch(`http://127.0.0.1:${server.address().port}`, {
  method: 'POST',
  headers: Object.fromEntries(Object.entries(headers).filter(([name]) => name.startsWith('webhook-'))),
  body,
}).then(({ status }) => status);

// The secret is known only when the subscription has the URL.
before(async () => {
  server = http.createServer((message, response) => listen(message, response));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const [[secret]] = await admin(
    "SELECT outbox_subscribe('client', $1, topics => '{client.*}', retry_schedule => $2)",
    [`http://127.0.0.1:${server.address().port}/`, SCHEDULE],
  );
  receiver = makeReceiver(['whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', secret]);
});

after(async () => {
  await admin("SELECT outbox_unsubscribe('client')");
  server.close();
  server.closeAllConnections();
  await end();
});

test('an event', async () => {
  await enqueue('first');
  await waitUntil(() => outcomes.length === 1);
  assert.deepEqual([outcomes, await effects('first')], [[204], 1]);
});

test('its answer is lost, so that it comes again', async () => {
  losesAnswer = true;
  await enqueue('lost answer');
  await waitUntil(() => outcomes.length === 2);
  assert.equal(requests.filter(({ body }) => body.includes('lost answer')).length, 2);
  assert.deepEqual([outcomes[1], await effects('lost answer')], [204, 1]);
});

test('it is sent once more, as it was', async () => {
  const { headers, body } = requests.at(-1);
  assert.equal(await post(headers, body), 204);
  assert.equal(await receiver(new Headers(headers), Buffer.from(body)), 204);
  assert.equal(await effects('lost answer'), 1);
});

test('a wrong signature, another body, no signature', async () => {
  const { headers, body } = requests.at(-1);
  errors.length = 0;
  assert.equal(await post({ ...headers, 'webhook-signature': 'v1,AAAA' }, body), 401);
  assert.equal(await post(headers, body.replace('lost answer', 'other')), 401);
  assert.equal(await post({}, body), 401);
  assert.equal(errors.length, 3);
  assert.equal(await effects('other'), 0);
});

test('a body that is too large', async () => {
  assert.equal(await post({}, 'x'.repeat(1001)), 413);
  const message = http.request({ port: server.address().port, host: '127.0.0.1', method: 'POST' });
  message.write('x'.repeat(1001)); // more would follow
  const [response] = await once(message, 'response');
  assert.equal(response.statusCode, 413);
  message.destroy();
});

test('an event that fails, and one that fails for good', async () => {
  await admin("ALTER TABLE effects ADD CONSTRAINT passing CHECK (id <> 'failing')");
  await enqueue('failing');
  await waitUntil(() => outcomes.at(-1) === 500);
  await admin('ALTER TABLE effects DROP CONSTRAINT passing');
  await waitUntil(() => outcomes.at(-1) === 204);
  assert.equal(await effects('failing'), 1);
  const count = outcomes.length;
  await enqueue('final', { divisor: 0 });
  await waitUntil(() => outcomes.length > count);
  assert.deepEqual([outcomes.at(-1), await effects('final')], [204, 0]);
});
