// fastify.js
//
// The header Idempotency-Key for Fastify: a plugin for the routes of the scope
// in which it is registered. The key is claimed before the handler, and the
// answer is saved before it is sent.

'use strict';

const { Readable } = require('stream');
const {
  METHODS, fromPairs, hasBody, headersSince, makeOnce, startHash,
} = require('./key');

const state = Symbol('idempotency');
const hashed = Symbol('the hash of the body, and whether it has all of it');

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

// The bytes of the body are in the fingerprint. A parser may leave the body, or the
// rest of it, to the handler, such as one of uploads.
function hashOf(request) {
  const { hash, isComplete } = request[hashed];
  if (!isComplete && hasBody(request.headers)) {
    throw new TypeError('the body was not read before the handler: idempotencyKey needs the option fingerprint');
  }
  return hash.digest('hex');
}

// Adds the bytes of the body to the hash while its parser reads it. Reads nothing
// itself, and keeps nothing, since a body has no limit here.
function beforeParsing({ fingerprint, methods = METHODS }) {
  return async (request, reply, payload) => {
    if (fingerprint || request.headers['idempotency-key'] === undefined || !methods.includes(request.method)) {
      return payload;
    }
    const body = { hash: startHash(request.method, request.raw.url), isComplete: false };
    request[hashed] = body;
    async function* read() {
      for await (const chunk of payload) {
        body.hash.update(chunk);
        yield chunk;
      }
      body.isComplete = true;
    }
    // Fastify compares this length with the header if the body was compressed.
    return Object.defineProperty(Readable.from(read(), { objectMode: false }), 'receivedEncodedLength', {
      get: () => payload.receivedEncodedLength,
    });
  };
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
        header: request.headers['idempotency-key'],
        hash: () => hashOf(request),
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
        for (const name of new Set(headers.map(([changed]) => changed))) {
          reply.removeHeader(name);
          if (Object.hasOwn(before, name)) {
            reply.header(name, before[name]);
          }
        }
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
    fastify.decorateRequest(hashed, null);
    fastify.addHook('preParsing', beforeParsing(options));
    fastify.addHook('preHandler', beforeHandler);
    fastify.addHook('onSend', beforeSend);
  }
  // The hooks are for the scope that registers the plugin.
  plugin[Symbol.for('skip-override')] = true;
  return plugin;
}

module.exports = { idempotencyKey };
