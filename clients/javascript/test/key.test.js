// key.test.js
//
// The header Idempotency-Key in real servers of Express, Fastify and Hono: every
// status of the draft, one effect for each key, and which answers are kept.

'use strict';

const assert = require('assert/strict');
const { once } = require('events');
const http = require('http');
const { PassThrough, Readable, pipeline } = require('stream');
const { finished } = require('stream/promises');
const { setFlagsFromString } = require('v8');
const { runInNewContext } = require('vm');
const { createGunzip, gzipSync } = require('zlib');
const { after, before, describe, test } = require('node:test');
const { setTimeout } = require('timers/promises');
const express = require('express');
const { fastify } = require('fastify');
const { Hono } = require('hono');
const { serve } = require('@hono/node-server');
const { idempotencyKey: forExpress, keepRawBody } = require('idempotency-pg/express');
const { idempotencyKey: forFastify } = require('idempotency-pg/fastify');
const { idempotencyKey: forHono } = require('idempotency-pg/hono');
const { claim, transaction } = require('idempotency-pg');
const {
  DRIVERS, admin, effects, gate, waitUntil,
} = require('./lib');

const COPIES = 20;
const ANSWER_BYTES_MAX = 5000;

const { pool, query, end } = DRIVERS.pg();
const far = DRIVERS.postgres();
after(() => Promise.all([end(), far.end()]));

// What the handlers of all servers do: the body says with which effect, and
// what to answer. Tests may hold them in between.
const calls = [];
const held = new Map();

async function handle(idempotency, {
  id, status = 201, size, binary, fails, cookie, late,
}) {
  calls.push(id);
  const hold = held.get(id);
  if (hold) {
    hold.entered.open();
    await hold.leave.opened;
  }
  if (idempotency) {
    if (late) {
      await admin('SELECT idem_forget($1, $2)', [idempotency.key, idempotency.scope]);
      await admin("SELECT idem_claim($1, $2, lease => '1 h')", [idempotency.key, idempotency.scope]);
    }
    const client = idempotency.client ?? await idempotency.begin();
    const db = client.unsafe ? far : { query };
    await db.query(client, 'INSERT INTO effects VALUES ($1)', [id]);
  }
  if (fails) {
    throw new Error('the handler fails');
  }
  const text = size ? 'x'.repeat(size) : JSON.stringify({ id, call: calls.length });
  return {
    status,
    headers: {
      'content-type': binary ? 'application/octet-stream' : 'application/json',
      'x-order': `order ${calls.length}`,
      link: ['</1>; rel=next', '</2>; rel=last'],
      ...(cookie ? { 'set-cookie': 'session=1' } : {}),
    },
    body: status === 204 ? null : binary ? Buffer.from([0, 1, 255, calls.length]) : text,
  };
}

// Each starts a server with the routes /orders and /payments, and returns its
// port and a function that stops it.
const FRAMEWORKS = {
  async express(transactional, leased) {
    const app = express();
    const scope = (request) => request.get('x-account');
    const route = (request, response, next) => handle(request.idempotency, request.body ?? {}).then((answer) => {
      response.status(answer.status).set(answer.headers);
      if (answer.body === null) {
        response.end();
      } else if (answer.status === 201) {
        response.send(answer.body);
      } else { // as by a pipe
        response.write(answer.body.slice(0, 3));
        response.end(answer.body.slice(3));
      }
    }).catch(next);
    app.use(express.json({ verify: keepRawBody }));
    app.all('/orders', forExpress({ ...transactional, scope }), route);
    app.all('/payments', forExpress({ ...leased, scope }), route);
    app.use((error, request, response, next) => {
      response.status(500).send(error.message);
    });
    const server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return { port: server.address().port, stop: () => server.close() };
  },

  async fastify(transactional, leased) {
    const app = fastify();
    const scope = (request) => request.headers['x-account'];
    const route = async (request, reply) => {
      const answer = await handle(request.idempotency, request.body ?? {});
      return reply.code(answer.status).headers(answer.headers).send(answer.body ?? undefined);
    };
    for (const [path, options] of [['/orders', transactional], ['/payments', leased]]) {
      app.register(async (routes) => {
        routes.register(forFastify({ ...options, scope }));
        routes.route({ method: ['GET', 'POST'], url: path, handler: route });
      });
    }
    await app.listen({ port: 0, host: '127.0.0.1' });
    return { port: app.server.address().port, stop: () => app.close() };
  },

  async hono(transactional, leased) {
    const app = new Hono();
    const scope = (context) => context.req.header('x-account');
    const route = async (context) => {
      const input = context.req.method === 'POST' ? await context.req.json() : {};
      const answer = await handle(context.get('idempotency'), input);
      return context.body(answer.body, answer.status, answer.headers);
    };
    app.use('/orders', forHono({ ...transactional, scope }));
    app.use('/payments', forHono({ ...leased, scope }));
    app.all('/orders', route);
    app.all('/payments', route);
    app.onError((error, context) => context.text(error.message, 500));
    const server = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' });
    await once(server, 'listening');
    return { port: server.address().port, stop: () => server.close() };
  },
};

for (const [framework, start] of Object.entries(FRAMEWORKS)) {
  describe(framework, () => {
    let server;

    // The keys with a lease use the other driver.
    before(async () => {
      const options = { answerBytesMax: ANSWER_BYTES_MAX, documentation: 'https://example.com/keys' };
      server = await start({ ...options, pool }, { ...options, pool: far.pool, lease: 40 });
    });
    after(() => server.stop());

    async function send(path, key, input, { account = 'ann', method = 'POST' } = {}) {
      const response = await fetch(`http://127.0.0.1:${server.port}${path}`, {
        method,
        headers: {
          'content-type': 'application/json',
          'x-account': account,
          ...(key === undefined ? {} : { 'idempotency-key': key }),
        },
        ...(method === 'POST' ? { body: JSON.stringify(input) } : {}),
      });
      return {
        status: response.status,
        headers: response.headers,
        body: Buffer.from(await response.arrayBuffer()),
        isReplay: response.headers.get('idempotent-replayed') === 'true',
      };
    }

    function isProblem({ status, headers, body }, expected, title) {
      assert.equal(status, expected, body.toString());
      assert.equal(headers.get('content-type'), 'application/problem+json');
      assert.deepEqual([JSON.parse(body).title, JSON.parse(body).type], [title, 'https://example.com/keys']);
    }

    for (const path of ['/orders', '/payments']) {
      const name = (what) => `${framework} ${path} ${what}`;
      const callsOf = (id) => calls.filter((called) => called === id).length;

      function isSame(answer, first) {
        assert.deepEqual([answer.status, answer.body.toString('hex')], [first.status, first.body.toString('hex')]);
        for (const header of ['content-type', 'x-order', 'link']) {
          assert.equal(answer.headers.get(header), first.headers.get(header));
        }
        assert.deepEqual([answer.isReplay, first.isReplay], [true, false]);
      }

      test(`${path}: no key, or a malformed one`, async () => {
        const id = name('malformed');
        isProblem(await send(path, undefined, { id }), 400, 'Idempotency-Key is missing');
        for (const key of ['abc', '""', '"abc', '"a"b"', `"${'x'.repeat(256)}"`, '"a", "b"', '"a";b=', '"\\n"']) {
          isProblem(await send(path, key, { id }), 400, 'Idempotency-Key is malformed');
        }
        assert.equal(callsOf(id), 0);
        for (const key of [`"say \\"hi\\" \\\\ ${id}"`, `  "${id}";a; b=1.5;c="x;y";d=?1;e=tok/en `]) {
          assert.equal((await send(path, key, { id })).status, 201, key);
        }
        assert.equal((await send(path, undefined, {}, { method: 'GET' })).status, 201, 'GET needs no key');
      });

      test(`${path}: the answer is replayed`, async () => {
        const id = name('replay');
        const first = await send(path, `"${id}"`, { id, cookie: true });
        assert.equal(first.status, 201);
        assert.equal(first.headers.get('set-cookie'), 'session=1');
        assert.equal(first.headers.get('link'), '</1>; rel=next, </2>; rel=last');
        const again = await send(path, `"${id}"`, { id, cookie: true });
        isSame(again, first);
        assert.equal(again.headers.get('set-cookie'), null);
        assert.deepEqual([callsOf(id), await effects(id)], [1, 1]);
        isProblem(await send(path, `"${id}"`, { id, other: 1 }), 422, 'Idempotency-Key is already used');
        isProblem(await send(`${path}?query`, `"${id}"`, { id, cookie: true }), 422, 'Idempotency-Key is already used');
        assert.equal((await send(path, `"${id}"`, { id }, { account: 'bob' })).isReplay, false, 'another account');
      });

      test(`${path}: bodies that are not text, or empty`, async () => {
        for (const input of [{ id: name('binary'), binary: true }, { id: name('empty'), status: 204 }]) {
          const first = await send(path, `"${input.id}"`, input);
          assert.ok(first.status < 300);
          isSame(await send(path, `"${input.id}"`, input), first);
          assert.equal(await effects(input.id), 1);
        }
      });

      test(`${path}: while a request is outstanding`, async () => {
        const id = name('outstanding');
        held.set(id, { entered: gate(), leave: gate() });
        const first = send(path, `"${id}"`, { id });
        await held.get(id).entered.opened;
        const answer = await send(path, `"${id}"`, { id });
        isProblem(answer, 409, 'A request is outstanding for this Idempotency-Key');
        const wait = Number(answer.headers.get('retry-after'));
        assert.ok(path === '/orders' ? wait === 1 : wait > 30 && wait <= 40, `retry after ${wait}`);
        held.get(id).leave.open();
        const done = await first;
        isSame(await send(path, `"${id}"`, { id }), done);
        assert.equal(await effects(id), 1);
      });

      test(`${path}: copies at the same time`, async () => {
        const id = name('copies');
        const answers = await Promise.all(Array.from({ length: COPIES }, () => send(path, `"${id}"`, { id })));
        const done = answers.filter(({ status }) => status === 201);
        assert.equal(answers.filter(({ status }) => status === 409).length + done.length, COPIES);
        assert.equal(done.filter(({ isReplay }) => !isReplay).length, 1);
        assert.equal(new Set(done.map(({ body }) => body.toString())).size, 1);
        assert.deepEqual([callsOf(id), await effects(id)], [1, 1]);
      });

      test(`${path}: a refusal is kept, and its changes are undone`, async () => {
        const input = { id: name('refused'), status: 402 };
        const first = await send(path, `"${input.id}"`, input);
        assert.equal(first.status, 402);
        isSame(await send(path, `"${input.id}"`, input), first);
        assert.deepEqual([callsOf(input.id), await effects(input.id)], [1, 0]);
      });

      test(`${path}: a failure frees the key`, async () => {
        for (const input of [{ id: name('503'), status: 503 }, { id: name('throws'), fails: true }]) {
          for (let i = 1; i <= 2; i += 1) {
            const { status, isReplay } = await send(path, `"${input.id}"`, input);
            assert.deepEqual([status >= 500, isReplay, callsOf(input.id)], [true, false, i]);
          }
          assert.equal(await effects(input.id), 0);
        }
      });

      test(`${path}: an answer that is too large`, async () => {
        const id = name('large');
        const large = { id, size: ANSWER_BYTES_MAX + 1 };
        const { status, headers, body } = await send(path, `"${id}"`, large);
        if (path === '/payments') { // what was done outside the database stays
          assert.deepEqual([status, body.length, await effects(id)], [201, large.size, 1]);
          const again = await send(path, `"${id}"`, large);
          isProblem(again, 410, 'The answer was too large to be kept');
          assert.deepEqual([JSON.parse(again.body).original_status, again.isReplay, callsOf(id)], [201, true, 1]);
          assert.match(JSON.parse(again.body).detail, /took effect/);
          const refused = { id: `${id}, refused`, status: 402, size: large.size };
          assert.equal((await send(path, `"${refused.id}"`, refused)).status, 402);
          const refusal = await send(path, `"${refused.id}"`, refused);
          isProblem(refusal, 410, 'The answer was too large to be kept');
          assert.match(JSON.parse(refusal.body).detail, /was refused with status 402/);
          assert.equal(await effects(refused.id), 0);
          return;
        }
        assert.deepEqual([status, JSON.parse(body).title], [500, 'The answer is too large']);
        assert.equal(headers.get('x-order'), null);
        assert.equal(await effects(id), 0);
        const fits = await send(path, `"${id}"`, { id, size: ANSWER_BYTES_MAX });
        assert.deepEqual([fits.status, fits.body.length, await effects(id)], [201, ANSWER_BYTES_MAX, 1]);
      });
    }

    test('an owner that is too late', async () => {
      const id = `${framework} late`;
      isProblem(await send('/payments', `"${id}"`, { id, late: true }), 409, 'A request is outstanding for this Idempotency-Key');
      assert.equal(await effects(id), 0);
    });

    test('the answer cannot be saved', async () => {
      const id = `${framework} unsaved`;
      await admin(`ALTER TABLE effects ADD CONSTRAINT later FOREIGN KEY (note) REFERENCES notes DEFERRABLE INITIALLY DEFERRED`);
      await admin(`ALTER TABLE effects ALTER note SET DEFAULT 'unknown'`);
      try {
        const { status, headers } = await send('/orders', `"${id}"`, { id });
        assert.deepEqual([status, headers.get('x-order')], [500, null]);
      } finally {
        await admin('ALTER TABLE effects DROP CONSTRAINT later, ALTER note DROP DEFAULT');
      }
      assert.equal(await effects(id), 0);
      assert.equal((await send('/orders', `"${id}"`, { id })).status, 201);
    });
  });
}

test('Express: a header to which the handler adds is saved as a whole', async (t) => {
  const app = express();
  app.use((request, response, next) => {
    response.setHeader('vary', ['origin']);
    next();
  });
  app.post('/', forExpress({ pool, scope: () => 'ann' }), (request, response) => {
    response.appendHeader('vary', 'accept').end();
  });
  const server = app.listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  for (const replayed of [null, 'true']) {
    const { headers } = await fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST', headers: { 'idempotency-key': '"appended"' },
    });
    assert.deepEqual([headers.get('vary'), headers.get('idempotent-replayed')], ['origin, accept', replayed]);
  }
});

// The changes are undone, so nothing of the answer may remain, such as a cookie.
test('headers that were there before an answer that is not sent', async (t) => {
  const options = { pool, scope: () => 'ann', answerBytesMax: 10 };
  const app = express();
  app.use((request, response, next) => {
    response.set({ vary: 'origin', 'set-cookie': 'first=1', 'x-kept': 'yes' });
    next();
  });
  app.post('/', forExpress(options), (request, response) => {
    response.append('vary', 'accept').append('set-cookie', 'order=1').set('x-order', '1').send('more than ten bytes');
  });
  const server = app.listen(0, '127.0.0.1');
  const other = fastify();
  other.addHook('onRequest', async (request, reply) => {
    reply.headers({ vary: 'origin', 'set-cookie': 'first=1', 'x-kept': 'yes' });
  });
  other.register(forFastify(options));
  other.post('/', (request, reply) => {
    reply.headers({ vary: 'origin, accept', 'set-cookie': 'order=1', 'x-order': '1' }).send('more than ten bytes');
  });
  const address = await other.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => Promise.all([server.close(), other.close()]));
  for (const url of [`http://127.0.0.1:${server.address().port}`, address]) {
    const { status, headers } = await fetch(url, { method: 'POST', headers: { 'idempotency-key': '"headers"' } });
    assert.equal(status, 500);
    assert.deepEqual(['vary', 'set-cookie', 'x-kept', 'x-order'].map((name) => headers.get(name)), ['origin', 'first=1', 'yes', null]);
  }
});

// Fastify checks headers when the answer has been saved, and would end the process.
test('Fastify: a header that cannot be sent', async () => {
  const app = fastify();
  app.register(forFastify({ pool, scope: () => 'ann' }));
  app.post('/', async (request, reply) => {
    await query(request.idempotency.client, 'INSERT INTO effects VALUES ($1)', ['wrong header']);
    return reply.header('location', request.headers['x-location']).send('ok');
  });
  const headers = { 'idempotency-key': '"wrong header"' };
  for (const location of ['/a\r\nset-cookie: b', '/\u6f22']) {
    const { statusCode, body } = await app.inject({ method: 'POST', url: '/', headers: { ...headers, 'x-location': location } });
    assert.equal(statusCode, 500);
    assert.match(body, /the header location of the answer/);
  }
  assert.equal(await effects('wrong header'), 0);
  const { statusCode } = await app.inject({ method: 'POST', url: '/', headers: { ...headers, 'x-location': '/\xe4' } });
  assert.equal(statusCode, 200);
  await app.close();
});

test('saved JSON that cannot be sent as an answer', async () => {
  const app = fastify();
  app.register(forFastify({ pool, scope: () => 'ann', fingerprint: () => 'any' }));
  app.post('/', assert.fail);
  const answer = { status: 200, headers: [], body: '' };
  for (const [key, change] of Object.entries({
    status: { status: 100 }, value: { headers: [['a', 'b\r\nc: d']] }, name: { headers: [['a b', 'c']] }, pair: { headers: [['a']] },
  })) {
    await transaction(pool, `unsendable ${key}`, () => ({ ...answer, ...change }), { scope: 'ann', request: 'any' });
    const { statusCode } = await app.inject({ method: 'POST', url: '/', headers: { 'idempotency-key': `"unsendable ${key}"` } });
    assert.equal(statusCode, 422, key);
  }
  await app.close();
});

// An upload can have other files with the same fields.
test('a body of which the bytes are not known', async (t) => {
  const errors = [];
  const app = express();
  app.use(express.json());
  app.post('/', forExpress({ pool, scope: () => 'ann' }), assert.fail);
  app.use((error, request, response, next) => {
    errors.push(error.message);
    response.status(500).end();
  });
  const server = app.listen(0, '127.0.0.1');
  const other = fastify({ logger: { level: 'error', stream: { write: (line) => errors.push(line) } } });
  other.addContentTypeParser('*', (request, payload, done) => done(null));
  other.register(forFastify({ pool, scope: () => 'ann' }));
  other.post('/', assert.fail);
  const address = await other.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => Promise.all([server.close(), other.close()]));
  for (const [url, type] of [[`http://127.0.0.1:${server.address().port}`, 'application/json'], [address, 'multipart/form-data']]) {
    const { status } = await fetch(url, { method: 'POST', body: '{}', headers: { 'content-type': type, 'idempotency-key': '"unknown"' } });
    assert.equal(status, 500);
  }
  assert.match(errors[0], /keeps its bytes/);
  assert.match(errors[1], /needs the option fingerprint/);
});

// Sends a body in parts to Fastify, and calls between() when all are sent, before
// the body ends. Returns status and body of the answer.
async function sendParts(app, options, parts, between) {
  const request = http.request({ ...options, host: '127.0.0.1', port: app.server.address().port });
  const answered = once(request, 'response');
  request.flushHeaders();
  for (const part of parts) {
    if (!request.write(part)) {
      await once(request, 'drain');
    }
  }
  await between?.(answered);
  request.end();
  const [response] = await answered;
  return [response.statusCode, (await response.toArray()).join('')];
}

// Anyone may send a key and a large body to a route that has no keys.
test('Fastify: the bytes of a body are not kept', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  const app = fastify();
  app.addContentTypeParser('*', (request, payload, done) => done(null, payload));
  app.register(forFastify({ pool, scope: () => 'ann' }));
  app.put('/', async ({ body }) => {
    await finished(body.resume());
    return 'read';
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => app.close());
  const options = { method: 'PUT', headers: { 'content-type': 'application/x-stream', 'idempotency-key': '"large"' } };
  let kept;
  const answer = await sendParts(app, options, Array(200).fill(Buffer.alloc(1e6)), () => {
    collect();
    kept = process.memoryUsage().arrayBuffers;
  });
  assert.deepEqual(answer, [200, 'read']);
  assert.ok(kept < 100e6, String(kept));
});

test('Fastify: bodies that are read in part, are empty, or are compressed', async (t) => {
  const app = fastify();
  app.addContentTypeParser('application/x-part', (request, payload, done) => payload.once('data', () => done(null, payload.pause())));
  app.addHook('preParsing', async ({ headers }, reply, payload) => {
    const plain = payload.pipe(headers['content-encoding'] === 'gzip' ? createGunzip() : new PassThrough());
    plain.receivedEncodedLength = 0;
    payload.on('data', ({ length }) => {
      plain.receivedEncodedLength += length;
    });
    return plain;
  });
  app.register(forFastify({ pool, scope: () => 'ann' }));
  app.post('/', async ({ body }) => ({ body }));
  await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => app.close());
  function post(key, type, parts, more, between) {
    const headers = { 'content-type': type, 'idempotency-key': `"${key}"`, ...more };
    return sendParts(app, { method: 'POST', headers }, parts, between);
  }
  const [status, text] = await post('part', 'application/x-part', ['the same'], {}, (answered) => answered);
  assert.equal(status, 500);
  assert.match(text, /needs the option fingerprint/);
  assert.deepEqual(await post('empty', 'text/plain', []), [200, '{"body":""}']);
  const gzip = gzipSync('{"a": 1}');
  const encoded = { 'content-encoding': 'gzip', 'content-length': gzip.length };
  assert.deepEqual(await post('gzip', 'application/json', [gzip], encoded), [200, '{"body":{"a":1}}']);
});

// Each way in which a handler of Express can stop without an answer; its client
// goes as soon as the handler has been called.
for (const [how, expected, stop] of [
  ['pipes to the client that is gone', /closed the connection before/, (response) => new Readable({ read() {} }).pipe(response)],
  ['pipes a stream that fails', /the file is gone/, (response) => pipeline(new Readable({
    read() {
      this.destroy(new Error('the file is gone'));
    },
  }), response, () => {})],
  ['destroys the response', /has destroyed the response/, (response) => response.destroy()],
  ['stops', /no answer within 0.1 s/, () => {}],
]) {
  test(`Express: a handler that ${how}`, async (t) => {
    const app = express();
    const errors = [];
    const entered = gate();
    const id = `a handler that ${how}`;
    app.use(express.json());
    app.post('/', forExpress({ pool, scope: () => 'ann', closeTimeout: 0.1 }), async (request, response) => {
      await query(request.idempotency.client, 'INSERT INTO effects VALUES ($1)', [id]);
      stop(response);
      entered.open();
    });
    app.use((error, request, response, next) => {
      errors.push(error.message);
      response.end();
    });
    const server = app.listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    const abort = new AbortController();
    const answered = fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST', headers: { 'idempotency-key': `"${id}"` }, signal: abort.signal,
    }).catch(() => {});
    await entered.opened;
    abort.abort();
    await answered;
    await waitUntil(() => errors.length === 1);
    assert.match(errors[0], expected);
    assert.equal((await claim(pool, id, { scope: 'ann', wait: false })).outcome, 'claimed', 'the key is free');
    assert.equal(await effects(id), 0);
  });
}

// The client goes, the library gives up, and then the handler wakes up.
for (const [driver, open] of Object.entries(DRIVERS)) {
  test(`Express with ${driver}: a handler that was given up writes nothing`, async (t) => {
    const own = open({ max: 1 });
    const id = `${driver} given up`;
    const entered = gate();
    const leave = gate();
    const givenUp = gate();
    const ended = gate();
    const app = express();
    app.use(express.json());
    app.post('/', forExpress({ pool: own.pool, scope: () => 'ann', closeTimeout: 0.1 }), async (request) => {
      const { client } = request.idempotency;
      entered.open();
      await leave.opened;
      ended.open(await own.query(client, 'INSERT INTO effects VALUES ($1)', [id]).then(() => 'written', () => 'refused'));
    });
    app.use((error, request, response, next) => {
      givenUp.open(error.message);
    });
    const server = app.listen(0, '127.0.0.1');
    t.after(async () => {
      server.close();
      await own.end();
    });
    await once(server, 'listening');
    const abort = new AbortController();
    const answered = fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST', headers: { 'idempotency-key': `"${id}"` }, signal: abort.signal,
    }).catch(() => {});
    await entered.opened;
    abort.abort();
    await answered;
    assert.match(await givenUp.opened, /no answer within 0.1 s/);
    await transaction(own.pool, id, async () => {
      leave.open();
      assert.equal(await ended.opened, 'refused');
    }, { scope: 'ann' });
    assert.equal(await effects(id), 0);
  });
}

// The limit is a timer of at most 2 ** 31 - 1 ms, since a longer one would be over at once.
for (const [closeTimeout, timers] of [[undefined, [60000]], [3000000, [2 ** 31 - 1]], [Infinity, []]]) {
  test(`Express: a client that goes away comes back for the answer, closeTimeout ${closeTimeout}`, async (t) => {
    const id = `gone ${closeTimeout}`;
    const gone = gate();
    const leave = gate();
    const started = t.mock.method(globalThis, 'setTimeout').mock;
    const app = express();
    app.use(express.json());
    app.post('/', forExpress({ pool, scope: () => 'ann', closeTimeout }), async (request, response) => {
      response.once('close', gone.open);
      await leave.opened;
      await query(request.idempotency.client, 'INSERT INTO effects VALUES ($1)', [id]);
      response.json('done');
    });
    const server = app.listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    const send = (signal) => fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST', headers: { 'idempotency-key': `"${id}"` }, signal,
    });
    await assert.rejects(send(AbortSignal.timeout(500)));
    await gone.opened;
    await setTimeout(100);
    assert.deepEqual(started.calls.map(({ arguments: [, ms] }) => ms).filter((ms) => ms >= 60000), timers);
    leave.open();
    let answer;
    await waitUntil(async () => {
      answer = await send();
      return answer.status !== 409;
    });
    assert.deepEqual([answer.status, await answer.json(), await effects(id)], [200, 'done', 1]);
    assert.equal(answer.headers.get('idempotent-replayed'), 'true');
  });
}

test('Fastify: a handler that stops', async (t) => {
  const lines = [];
  const app = fastify({ logger: { level: 'error', stream: { write: (line) => lines.push(line) } } });
  const entered = gate();
  app.register(forFastify({ pool, scope: () => 'ann', closeTimeout: 0.1 }));
  app.post('/', async (request, reply) => {
    await query(request.idempotency.client, "INSERT INTO effects VALUES ('stopped')");
    reply.hijack();
    entered.open();
  });
  const address = await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => app.close());
  const abort = new AbortController();
  const lost = fetch(address, { method: 'POST', headers: { 'idempotency-key': '"stopped"' }, signal: abort.signal });
  await entered.opened;
  abort.abort();
  await assert.rejects(lost);
  await waitUntil(async () => (await claim(pool, 'stopped', { scope: 'ann', wait: false })).outcome === 'claimed');
  assert.equal(await effects('stopped'), 0);
  await waitUntil(() => lines.length > 0);
  assert.match(lines.join(''), /no answer within 0.1 s.*the handler was given up/);
});

test('Fastify: a payload that cannot be read', async () => {
  const app = fastify();
  app.register(forFastify({ pool, scope: () => 'ann' }));
  app.post('/', async (request, reply) => {
    await query(request.idempotency.client, "INSERT INTO effects VALUES ('unread')");
    return reply.send(new Readable({
      read() {
        this.destroy(new Error('the file is gone'));
      },
    }));
  });
  const { statusCode } = await app.inject({ method: 'POST', url: '/', headers: { 'idempotency-key': '"unread"' } });
  assert.equal(statusCode, 500);
  assert.equal((await claim(pool, 'unread', { scope: 'ann', wait: false })).outcome, 'claimed', 'the key is free');
  assert.equal(await effects('unread'), 0);
  await app.close();
});

test('a key that other functions have used', async () => {
  const app = new Hono();
  app.use(forHono({ pool, scope: () => 'other', fingerprint: () => 'same' }));
  app.all('/', assert.fail);
  for (const [i, saved] of [undefined, { order: 1 }].entries()) {
    const key = `saved ${i}`;
    await transaction(pool, key, () => saved, { scope: 'other', request: 'same' });
    const { status } = await app.request('/', { method: 'POST', headers: { 'idempotency-key': `"${key}"` } });
    assert.equal(status, 422);
  }
});

test('the scope is required', async () => {
  assert.throws(() => forHono({ pool }), /needs the option scope/);
});

test('the option closeTimeout is a number of seconds', async () => {
  for (const closeTimeout of ['60 s', '60', 0, -1, NaN, null]) {
    assert.throws(() => forExpress({ pool, scope: () => 'ann', closeTimeout }), TypeError, String(closeTimeout));
  }
});

test('the options keep, fingerprint, methods and required', async () => {
  const app = new Hono();
  let status = 429;
  app.use(forHono({
    pool,
    scope: async () => 'options',
    keep: (answer) => answer.status !== 429,
    fingerprint: (context) => context.req.header('x-fingerprint'),
    methods: ['PUT'],
    required: false,
  }));
  app.all('/', (context) => context.text('text', status));
  const send = (key, fingerprint = '', method = 'PUT') => app.request('/', {
    method, body: String(Math.random()), headers: { 'idempotency-key': key, 'x-fingerprint': fingerprint },
  });
  assert.equal((await send('"1"')).status, 429);
  status = 200;
  assert.equal((await send('"1"', 'a')).status, 200, 'it was not kept');
  assert.equal((await send('"1"', 'a')).headers.get('idempotent-replayed'), 'true');
  assert.equal((await send('"1"', 'b')).status, 422);
  assert.equal((await send('malformed', '', 'POST')).status, 200, 'POST is not asked for');
  assert.equal((await app.request('/', { method: 'PUT' })).status, 200, 'no key is required');
});
