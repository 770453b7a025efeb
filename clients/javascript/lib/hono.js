// hono.js
//
// The header Idempotency-Key for Hono. The handler gets what Express has as
// request.idempotency by context.get('idempotency').

'use strict';

const { fromPairs, makeOnce, startHash } = require('./key');

// These have no body, not even an empty one.
const NULL_BODY = [204, 205, 304];

function bodyOf({ status, body }) {
  return NULL_BODY.includes(status) ? null : body;
}

// The target as the client has sent it, as other frameworks have it, if the server
// tells. A URL has some characters in another form: %27 for a single quote.
function targetOf({ env, req }) {
  const sent = env?.incoming?.url;
  if (typeof sent === 'string' && sent.startsWith('/')) {
    return sent;
  }
  const { search, pathname } = new URL(req.url);
  return pathname + search;
}

function idempotencyKey(options) {
  const once = makeOnce(options);

  return async (context, next) => {
    if (context.get('idempotency')) {
      return next(); // another middleware of this kind came before
    }
    const { req: request } = context;
    let own;
    let head;
    async function handle(idempotency) {
      context.set('idempotency', idempotency);
      await next();
      head = context.res;
      context.res = undefined; // or else its headers would be added to those of another answer
      own = {
        status: head.status,
        headers: [...head.headers],
        body: Buffer.from(await head.arrayBuffer()),
      };
      return own;
    }
    const answer = await once({
      method: request.method,
      header: request.header('idempotency-key'),
      hash: async () => startHash(request.method, targetOf(context)).update(Buffer.from(await request.arrayBuffer())).digest('hex'),
      request: context,
    }, handle);
    if (answer === null) {
      return next();
    }
    if (!own) {
      return context.body(bodyOf(answer), answer.status, fromPairs(answer.headers));
    }
    // The handler's own head can have several cookies.
    const { status, headers } = answer === own ? head : answer;
    context.res = new Response(bodyOf(answer), { status, headers });
    return undefined;
  };
}

module.exports = { idempotencyKey };
