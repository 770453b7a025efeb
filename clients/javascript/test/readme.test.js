// readme.test.js
//
// The blocks of README.md run as they are there, one after the other. If this
// fails, the first program that a user copies does not work.

'use strict';

const assert = require('assert/strict');
const { execFile } = require('child_process');
const fs = require('fs');
const path = require('path');
const { test } = require('node:test');
const { promisify } = require('util');
const { admin } = require('./lib');

const HOME = path.join(__dirname, '..');

// What a user of the blocks sees: the results, and the answers of both servers.
const LOOK = `
const again = await transaction(pool, 'request-4711', () => {}, { scope: 'ann', request: body });
async function post(handler, headers) {
  const server = handler.listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const answer = await fetch('http://127.0.0.1:' + server.address().port + '/orders', {
    method: 'POST', body: '{"item": "shoe"}', headers: { 'content-type': 'application/json', ...headers },
  });
  server.close();
  return [answer.status, answer.headers.get('idempotent-replayed'), await answer.text()];
}
const answers = [
  await post(app, { 'idempotency-key': '"order-1"' }), await post(app, { 'idempotency-key': '"order-1"' }), await post(webhooks, {}),
];
console.log(JSON.stringify([response, replayed, again.response, again.replayed, paid.response, answers]));
await pool.end();
`;

test('README.md', async () => {
  await admin('CREATE TABLE orders (id integer GENERATED ALWAYS AS IDENTITY, item text)');
  await admin('CREATE TABLE payments (receipt text)');
  await admin('GRANT SELECT, INSERT ON orders, payments TO shop');
  const blocks = [...fs.readFileSync(path.join(HOME, 'README.md'), 'utf8').matchAll(/^```js\n(.*?)^```$/gms)].map(([, block]) => block);
  assert.equal(blocks.length, 4);
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--input-type=module', '--eval', [...blocks, LOOK].join('')],
    { cwd: HOME },
  );
  const order = '{"item":"shoe"}';
  assert.deepEqual(JSON.parse(stdout), [
    { order: 1 }, false, { order: 1 }, true, { receipt: 'ch_1' },
    [[201, null, order], [201, 'true', order], [401, null, '']],
  ]);
  assert.deepEqual(await admin('SELECT item FROM orders ORDER BY id'), [['hat'], ['scarf'], ['shoe']]);
  assert.deepEqual(await admin('SELECT receipt FROM payments'), [['ch_1']]);
});
