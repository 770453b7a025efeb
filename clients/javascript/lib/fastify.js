// fastify.js
//
// The header Idempotency-Key for Fastify: a plugin for the routes of the scope
// in which it is registered. The key is claimed before the handler, and the
// answer is saved before it is sent.

'use strict';

const { Readable } = require('stream');
const {
  fromPairs, hasBody, headersSince, makeOnce,
} = require('./key');

const state = Symbol('idempotency');
const readBody = Symbol('the chunks of the body that were read');

async function toBuffer(payload) {
  if (payload === undefined || payload === null) {
    return Buffer.alloc(0);
  }
  if (typeof payload === 'string' || Buffer.isBuffer(payload)) {
    return Buffer.from(payload);
  }
  const chunks = [];
  for await (const chunk of payload) {
    chunks.push(Buffer.from(chunk));
  }
  return Buffer.concat(chunks);
}

function setHead(reply, { status, headers }) {
  return reply.code(status).headers(fromPairs(headers));
}

// The bytes of the body are in the fingerprint. A parser of uploads may leave the
// body to the handler.
function bodyOf(request) {
  if (request[readBody].length === 0 && hasBody(request.headers)) {
    throw new TypeError('the body was not read before the handler: idempotencyKey needs the option fingerprint');
  }
  return Buffer.concat(request[readBody]);
}

// Keeps the bytes of the body while its parser reads it, and reads nothing itself.
async function beforeParsing(request, reply, payload) {
  const chunks = [];
  request[readBody] = chunks;
  async function* read() {
    for await (const chunk of payload) {
      chunks.push(chunk);
      yield chunk;
    }
  }
  return request.headers['idempotency-key'] === undefined ? payload : Readable.from(read(), { objectMode: false });
}

function idempotencyKey(options) {
  const once = makeOnce(options);

  // Ends as soon as it is known whether the handler has to be called.
  async function beforeHandler(request, reply) {
    const before = structuredClone(reply.getHeaders());
    let answered;
    let failed;
    let answer;
    const handling = new Promise((start) => {
      answer = once({
        method: request.method,
        path: request.raw.url,
        header: request.headers['idempotency-key'],
        body: () => bodyOf(request),
        request,
        response: reply.raw,
      }, (idempotency) => new Promise((resolve, reject) => {
        answered = resolve;
        failed = reject;
        request.idempotency = idempotency;
        start();
      }));
    });
    const first = await Promise.race([handling, answer]);
    if (answered) {
      // Nobody else learns of it while there is no answer to send.
      answer.catch((error) => request[state] && request.log.error(error, 'the handler was given up'));
      request[state] = {
        answer, answered, failed, before,
      };
    } else if (first) {
      setHead(reply, first).send(first.body);
      return reply;
    }
    return undefined;
  }

  async function beforeSend(request, reply, payload) {
    if (!request[state]) {
      return payload;
    }
    const {
      answer, answered, failed, before,
    } = request[state];
    request[state] = null; // the answer to an error is sent as it is
    const headers = headersSince(before, reply.getHeaders());
    let own;
    let saved;
    try {
      own = {
        status: reply.statusCode,
        headers,
        body: await toBuffer(payload).catch(failed),
      };
      answered(own); // unless the payload could not be read
      saved = await answer;
    } finally {
      if (saved !== own) {
        headers.forEach(([name]) => reply.removeHeader(name));
      }
    }
    if (saved !== own) {
      setHead(reply, saved);
    }
    return saved.body;
  }

  async function plugin(fastify) {
    fastify.decorateRequest('idempotency', null);
    fastify.decorateRequest(state, null);
    fastify.decorateRequest(readBody, null);
    fastify.addHook('preParsing', beforeParsing);
    fastify.addHook('preHandler', beforeHandler);
    fastify.addHook('onSend', beforeSend);
  }
  // The hooks are for the scope that registers the plugin.
  plugin[Symbol.for('skip-override')] = true;
  return plugin;
}

module.exports = { idempotencyKey };
