// express.js
//
// The header Idempotency-Key for Express: a middleware that comes after the one
// that reads the body, such as express.json({ verify: keepRawBody }). The answer of
// the handler is held back until it is saved.

'use strict';

const {
  fromPairs, hasBody, headersSince, makeOnce, startHash,
} = require('./key');

// The headers [name, value, name, value, ...], as writeHead also takes them.
function pairsOf(headers) {
  return headers.flatMap((name, i) => (i % 2 === 0 ? [[name, headers[i + 1]]] : []));
}

// Keeps what is written to a response. Returns a promise of the answer, with the
// headers that were not there before, and a function that undoes this.
function holdBack(response, before) {
  const {
    write, end, writeHead, flushHeaders, destroy,
  } = response;
  const chunks = [];
  let onPipe;
  let onClose;
  const ended = new Promise((resolve, reject) => {
    // A stream that is piped to a closed response may never end it.
    let isPiped = false;
    function giveUp() {
      if (isPiped && response.destroyed) {
        reject(new Error('the client has closed the connection before the answer was complete'));
      }
    }
    onPipe = () => {
      isPiped = true;
      giveUp();
    };
    onClose = giveUp;
    response.on('pipe', onPipe).on('close', onClose);
    function keep(chunk, encoding, callback) {
      const done = [chunk, encoding, callback].find((argument) => typeof argument === 'function');
      if (chunk && typeof chunk !== 'function') {
        chunks.push(Buffer.from(chunk, typeof encoding === 'string' ? encoding : undefined));
      }
      if (done) {
        process.nextTick(done);
      }
    }
    response.destroy = (error) => {
      reject(error ?? new Error('the handler has destroyed the response'));
      return destroy.call(response, error);
    };
    response.write = (...chunk) => {
      keep(...chunk);
      return true;
    };
    response.end = (...chunk) => {
      keep(...chunk);
      resolve({
        status: response.statusCode,
        headers: headersSince(before, response.getHeaders()),
        body: Buffer.concat(chunks),
      });
      return response;
    };
  });
  response.writeHead = (status, ...more) => {
    response.statusCode = status;
    const headers = more.find((argument) => typeof argument === 'object') ?? {};
    for (const [name, value] of Array.isArray(headers) ? pairsOf(headers) : Object.entries(headers)) {
      response.setHeader(name, value);
    }
    return response;
  };
  response.flushHeaders = () => {};
  function release() {
    response.off('pipe', onPipe).off('close', onClose);
    Object.assign(response, {
      write, end, writeHead, flushHeaders, destroy,
    });
  }
  return { ended, release };
}

function send(response, { status, headers, body }) {
  response.statusCode = status;
  for (const [name, value] of Object.entries(fromPairs(headers))) {
    response.setHeader(name, value);
  }
  response.end(body);
}

// The option verify of express.json() and other middlewares that read the body.
function keepRawBody(request, response, bytes) {
  request.rawBody = bytes;
}

// The bytes of the body are in the fingerprint. Those of an object are not known
// any more, and an upload may even have other files with the same fields.
function bodyOf(request) {
  const body = request.rawBody ?? request.body;
  if (typeof body === 'string' || Buffer.isBuffer(body)) {
    return body;
  }
  if (hasBody(request.headers)) {
    throw new TypeError('idempotencyKey must come after a middleware that reads the body and keeps its bytes,'
      + ' such as express.json({ verify: keepRawBody }), or needs the option fingerprint');
  }
  return '';
}

function idempotencyKey(options) {
  const once = makeOnce(options);

  return async (request, response, next) => {
    if (request.idempotency) {
      next(); // another middleware of this kind came before
      return;
    }
    const before = structuredClone(response.getHeaders());
    let held;
    let own;
    async function handle(idempotency) {
      request.idempotency = idempotency;
      held = holdBack(response, before);
      next();
      own = await held.ended;
      return own;
    }
    // Undoes what the handler has done to the response.
    function reset() {
      response.getHeaderNames().forEach((name) => response.removeHeader(name));
      Object.entries(before).forEach(([name, value]) => response.setHeader(name, value));
    }
    try {
      const answer = await once({
        method: request.method,
        header: request.headers['idempotency-key'],
        hash: () => startHash(request.method, request.originalUrl).update(bodyOf(request)).digest('hex'),
        request,
        response,
      }, handle);
      if (answer === null) {
        next();
      } else {
        held?.release();
        if (answer !== own) {
          reset();
        }
        send(response, answer);
      }
    } catch (error) {
      held?.release();
      reset();
      next(error);
    }
  };
}

module.exports = { idempotencyKey, keepRawBody };
