// key.js
//
// The header Idempotency-Key as draft-ietf-httpapi-idempotency-key-header
// describes it, for any framework. express.js, fastify.js and hono.js translate
// requests and answers.
//
// A request is {method, header, hash, request, response}: the header
// Idempotency-Key, a function that returns the default fingerprint, the request as
// the framework has it, and the http.ServerResponse, if the handler may never
// answer. An answer is {status, headers, body}: the headers are pairs of a name
// in lower case and a value, of which a name can have several, and the body is a
// Buffer.
//
// The library for Python saves answers in the same form, and has the same
// fingerprint of requests, so that each can replay the answers of the other.

'use strict';

const { createHash } = require('crypto');
const { TIMER_MAX_MS, lease } = require('./lease');
const { transaction } = require('./claims');

const KEY_BYTES_MAX = 255;
const ANSWER_BYTES_MAX = 1024 * 1024;
const METHODS = ['POST', 'PATCH'];
const RETRY_AFTER_S = 1;
const CLOSE_TIMEOUT_S = 60;
const PROBLEM = 'application/problem+json';

// Headers that belong to one connection, one moment or one session.
const NOT_SAVED = ['connection', 'content-length', 'date', 'keep-alive', 'proxy-authenticate', 'proxy-connection',
  'set-cookie', 'te', 'trailer', 'transfer-encoding', 'upgrade'];

// What a header may have (RFC 9110). Fastify would end the process because of another one.
const HEADER_NAME = /^[\w!#$%&'*+.^|~`-]+$/;
const HEADER_VALUE = /^[\t -~\x80-\xff]*$/;

// A string of structured fields (RFC 8941), with parameters, which are ignored.
const CHARACTERS = String.raw`(?:[ !#-[\]-~]|\\["\\])*`;
const NUMBER = String.raw`-?\d{1,15}(?:\.\d{1,3})?`;
const TOKEN = "[A-Za-z*][\\w!#$%&'*+.^|~:/`-]*";
const BYTES = ':[A-Za-z0-9+/=]*:';
const BOOLEAN = String.raw`\?[01]`;
const VALUE = `"${CHARACTERS}"|${NUMBER}|${TOKEN}|${BYTES}|${BOOLEAN}`;
const PARAMETER = `; *[a-z*][a-z0-9_.*-]*(?:=(?:${VALUE}))?`;
const ITEM = new RegExp(`^ *"(${CHARACTERS})"(?:${PARAMETER})* *$`);

// The headers of a response of Node, which may have an array of values for a name.
function toPairs(headers) {
  return Object.entries(headers).flatMap(([name, value]) => [value].flat().map((one) => [name.toLowerCase(), String(one)]));
}

// The reverse: a header that occurs once is a string.
function fromPairs(pairs) {
  const headers = Object.create(null);
  for (const [name, value] of pairs) {
    headers[name] = name in headers ? [headers[name], value].flat() : value;
  }
  return headers;
}

// The headers that were set or changed since these were there. An array may have
// been changed in place, so the caller has to copy it.
function headersSince(before, headers) {
  return toPairs(Object.fromEntries(Object.entries(headers).filter(([name, value]) => String(before[name]) !== String(value))));
}

// The answer saved for a key is the JSON {status, headers, body}, with the body
// as text, or as base64 if it is not UTF-8 or has the character 0, which jsonb
// does not allow.
function save({ status, headers, body }) {
  const text = body.toString();
  const isText = !text.includes('\0') && Buffer.from(text).equals(body);
  return {
    status,
    headers: headers.filter(([name]) => !NOT_SAVED.includes(name)),
    ...(isText ? { body: text } : { base64: body.toString('base64') }),
  };
}

function replay({
  status, headers, body, base64,
}) {
  return {
    status,
    headers: [...headers, ['idempotent-replayed', 'true']],
    body: base64 === undefined ? Buffer.from(body) : Buffer.from(base64, 'base64'),
  };
}

function isHeader(header) {
  return Array.isArray(header) && header.length === 2 && header.every((part) => typeof part === 'string')
    && HEADER_NAME.test(header[0]) && HEADER_VALUE.test(header[1]);
}

// Whether it is an answer that was saved here. Other functions save any JSON.
function isAnswer(saved) {
  return Number.isInteger(saved?.status) && saved.status >= 200 && saved.status <= 999
    && Array.isArray(saved.headers) && saved.headers.every(isHeader)
    && typeof (saved.base64 ?? saved.body) === 'string';
}

// The handler has refused the request, or has failed: its changes are undone.
class Refused extends Error {
  constructor(answer, isKept) {
    super(`the handler answered ${answer.status}`);
    this.answer = answer;
    this.isKept = isKept;
    this.workIsOver = true;
  }
}

class AnswerTooLarge extends Error {}

function problem(status, title, detail, type, headers = [], more = {}) {
  return {
    status,
    headers: [['content-type', PROBLEM], ...headers],
    body: Buffer.from(JSON.stringify({ type, title, detail, ...more })),
  };
}

// When its client has gone, a handler may work on, since the client can come
// back for the answer. It may also stop, and never answer: its transaction must
// not stay open then.
async function orGone(answered, response, timeoutS) {
  let timer;
  let onClose;
  const gone = new Promise((resolve, reject) => {
    onClose = () => {
      if (timeoutS === Infinity) {
        return;
      }
      const error = new Error(`the client has closed the connection, and there was no answer within ${timeoutS} s`);
      timer = setTimeout(reject, Math.min(timeoutS * 1000, TIMER_MAX_MS), error);
    };
  });
  if (response?.destroyed) {
    onClose();
  } else {
    response?.once('close', onClose);
  }
  try {
    return await Promise.race([answered, gone]);
  } finally {
    clearTimeout(timer);
    response?.off('close', onClose);
  }
}

function parseKey(header) {
  const key = ITEM.exec(header)?.[1].replace(/\\(.)/g, '$1');
  return key && key.length <= KEY_BYTES_MAX ? key : null;
}

// The default fingerprint is the SHA-256 of method, path with query, and body, which
// the caller adds. Python does not see a question mark without a query.
function startHash(method, path) {
  const target = path.endsWith('?') && path.indexOf('?') === path.length - 1 ? path.slice(0, -1) : path;
  return createHash('sha256').update(`${method} ${target}\n`);
}

// Whether a request of Node has a body.
function hasBody({ 'transfer-encoding': encoding, 'content-length': length = 0 }) {
  return encoding !== undefined || Number(length) > 0;
}

function makeOnce({
  pool,
  scope,
  fingerprint,
  lease: duration,
  ttl,
  keep = ({ status }) => status < 500,
  methods = METHODS,
  required = true,
  answerBytesMax = ANSWER_BYTES_MAX,
  closeTimeout = CLOSE_TIMEOUT_S,
  documentation = 'about:blank',
}) {
  if (typeof scope !== 'function') {
    throw new TypeError('idempotencyKey needs the option scope: a function that returns the account of a request');
  }

  if (typeof closeTimeout !== 'number' || !(closeTimeout > 0)) {
    throw new TypeError('the option closeTimeout of idempotencyKey is a number of seconds above 0, or Infinity');
  }

  function answerOutstanding(seconds) {
    return problem(
      409,
      'A request is outstanding for this Idempotency-Key',
      'The first request with this key has not been answered yet.',
      documentation,
      [['retry-after', String(Math.max(1, Math.ceil(seconds ?? RETRY_AFTER_S)))]],
    );
  }

  // The answer to a request whose key was claimed before.
  function answerFor({
    outcome, response, error, retryAfter,
  }) {
    if (outcome === 'in_progress') {
      return answerOutstanding(retryAfter);
    }
    const saved = response ?? error;
    if (outcome !== 'mismatch' && isAnswer(saved)) {
      return replay(saved);
    }
    return problem(
      422,
      'Idempotency-Key is already used',
      'The key was used for another request. Use a new one.',
      documentation,
    );
  }

  // What the handler has answered, as far as it may be kept as a success.
  async function check(answered) {
    const answer = await answered;
    const wrong = answer.headers.find((header) => !isHeader(header));
    if (wrong) {
      throw new TypeError(`the header ${wrong[0]} of the answer has characters that cannot be sent`);
    }
    const isKept = await keep(answer);
    if (isKept && duration === undefined && answer.body.length > answerBytesMax) {
      throw new AnswerTooLarge();
    }
    if (!isKept || answer.status >= 400) {
      throw new Refused(answer, isKept);
    }
    return answer;
  }

  // Work outside the database cannot be undone, so its key is never freed because
  // of an answer that is too large: a later call learns what became of it.
  function saveFitting(answer) {
    const became = answer.status >= 400 ? 'was refused' : 'took effect, and was answered';
    return save(answer.body.length <= answerBytesMax ? answer : problem(
      410,
      'The answer was too large to be kept',
      `The request ${became} with status ${answer.status}.`,
      documentation,
      [],
      { original_status: answer.status },
    ));
  }

  // All is in the transaction of the claim.
  function inTransaction(claim, options, handle) {
    return transaction(pool, claim.key, async (client, { token, attempt }) => {
      const answer = await check(handle({
        ...claim, token, attempt, client,
      }));
      return save(answer);
    }, options);
  }

  // The handler works outside any transaction, until it calls begin(), if it
  // does. The transaction that begins then also saves the answer.
  function withLease(claim, options, handle) {
    return lease(pool, claim.key, async ({
      token, attempt, signal, commit,
    }) => {
      let checked;
      let begun;
      let committing;
      function begin() {
        begun ??= new Promise((resolve, reject) => {
          committing = commit(async (client) => {
            resolve(client);
            return saveFitting(await checked);
          });
          committing.catch(reject);
        });
        return begun;
      }
      checked = check(handle({
        ...claim, token, attempt, signal, begin,
      }));
      const answer = await checked;
      await (committing ?? commit(() => saveFitting(answer)));
    }, options);
  }

  // Answers a request: with the answer of handle(idempotency), or without a call
  // of it. Returns null if the request does not need a key.
  return async function once({
    method, header, hash, request, response,
  }, handle) {
    if (!methods.includes(method) || (header === undefined && !required)) {
      return null;
    }
    if (header === undefined) {
      return problem(
        400,
        'Idempotency-Key is missing',
        'This operation requires the header Idempotency-Key.',
        documentation,
      );
    }
    const key = parseKey(header);
    if (!key) {
      return problem(
        400,
        'Idempotency-Key is malformed',
        `It is a string in quotes, of at most ${KEY_BYTES_MAX} characters.`,
        documentation,
      );
    }
    const account = await scope(request);
    if (typeof account !== 'string') {
      throw new TypeError('the option scope of idempotencyKey has returned no string');
    }
    let own;
    const options = {
      scope: account,
      request: await (fingerprint ? fingerprint(request) : hash()),
      ttl,
      wait: false,
      retries: 0, // a handler cannot be called twice
      failure: (error) => (error instanceof Refused && error.isKept ? saveFitting(error.answer) : undefined),
      ...(duration === undefined ? {} : { lease: duration }),
    };
    async function handleOnce(idempotency) {
      const answered = handle(idempotency);
      own = await (duration === undefined ? orGone(answered, response, closeTimeout) : answered);
      return own;
    }
    try {
      const work = duration === undefined ? inTransaction : withLease;
      const result = await work({ key, scope: account }, options, handleOnce);
      // If a refusal was to be saved, another request may have been faster.
      const isOwn = result.outcome === 'claimed' || (result.outcome === 'failed' && !result.replayed);
      return isOwn ? own : answerFor(result);
    } catch (error) {
      if (error instanceof Refused) {
        return error.answer;
      }
      if (error instanceof AnswerTooLarge) {
        return problem(500, 'The answer is too large', 'The work was undone.', 'about:blank');
      }
      if (error.code === 'ID001') {
        return answerOutstanding();
      }
      throw error;
    }
  };
}

module.exports = {
  METHODS, fromPairs, hasBody, headersSince, makeOnce, startHash,
};
