// claims.js
//
// The functions of the extension, one call each, and the transaction that
// claims a key, does the work and saves the answer.

'use strict';

const {
  fromJson, query, repeat, toInterval, toJson, transact,
} = require('./database');

const RETRIES = 3;

// Calls idem_claim on a connection, a transaction or a pool. Without a lease,
// the commit of its transaction completes the claim: on a pool that is at once.
async function claim(db, key, {
  scope = '', request = null, lease, ttl, wait = true,
} = {}) {
  const [row] = await query(
    db,
    `SELECT outcome::text, token::text, attempt, response::text,
       extract(epoch FROM retry_after)::float8 AS retry_after, extract(epoch FROM $3::interval)::float8 AS lease
     FROM idem_claim($1::text, scope => $2::text, lease => $3::interval, request => $4::text,
       ttl => $5::interval, wait => $6::boolean)`,
    [key, scope, toInterval(lease), request, toInterval(ttl), wait],
  );
  const answer = fromJson(row.response);
  return {
    outcome: row.outcome,
    token: row.token,
    attempt: row.attempt,
    response: row.outcome === 'completed' ? answer : null,
    error: row.outcome === 'failed' ? answer : null,
    retryAfter: row.retry_after,
    lease: row.lease,
  };
}

async function complete(db, key, token, response, { scope = '', ttl } = {}) {
  await query(
    db,
    `SELECT idem_complete($1::text, $2::text::bigint, response => $3::text::jsonb,
       scope => $4::text, ttl => $5::interval)::text`,
    [key, token, toJson(response), scope, toInterval(ttl)],
  );
}

async function fail(db, key, token, error, { scope = '', retry = true } = {}) {
  await query(
    db,
    `SELECT idem_fail($1::text, $2::text::bigint, error => $3::text::jsonb,
       scope => $4::text, retry => $5::boolean)::text`,
    [key, token, toJson(error), scope, retry],
  );
}

// Returns the new end of the lease.
async function renew(db, key, token, { scope = '', lease } = {}) {
  const [{ ends }] = await query(
    db,
    `SELECT extract(epoch FROM idem_renew($1::text, $2::text::bigint, lease => $3::interval,
       scope => $4::text))::float8 * 1000 AS ends`,
    [key, token, toInterval(lease), scope],
  );
  return new Date(ends);
}

// What a caller gets whose key is not claimed by this call.
function resultOf({ token, lease, ...claimed }) {
  return { ...claimed, replayed: ['completed', 'failed'].includes(claimed.outcome) };
}

// The result of a call that has done the work: its response is as a later call
// will get it.
function claimedResult({ attempt }, response) {
  return {
    outcome: 'claimed',
    attempt,
    response: fromJson(toJson(response)),
    error: null,
    retryAfter: null,
    replayed: false,
  };
}

function failedResult({ attempt }, error) {
  return {
    ...claimedResult({ attempt }, null), outcome: 'failed', error: fromJson(toJson(error)),
  };
}

// The error has rolled the claim back with the work. Claims the key again, and
// lets it fail for good, unless another caller was faster.
async function saveFailure(pool, key, error, options) {
  return transact(pool, async (client) => {
    const claimed = await claim(client, key, options);
    if (claimed.outcome !== 'claimed') {
      return resultOf(claimed);
    }
    await fail(client, key, claimed.token, error, { ...options, retry: false });
    return failedResult(claimed, error);
  });
}

// Claims the key, does the work and saves its answer, in one transaction. If
// the outcome of COMMIT is unknown, the claim of the next attempt finds it out.
async function transaction(pool, key, work, {
  scope, request, ttl, wait, retries = RETRIES, failure = () => undefined,
} = {}) {
  const options = {
    scope, request, ttl, wait,
  };
  try {
    return await repeat(retries, () => transact(pool, async (client) => {
      const claimed = await claim(client, key, options);
      if (claimed.outcome !== 'claimed') {
        return resultOf(claimed);
      }
      const response = await work(client, claimed);
      // Also without an answer: this fails if work has rolled the claim back.
      await complete(client, key, claimed.token, response, { scope });
      return claimedResult(claimed, response);
    }));
  } catch (error) {
    const final = failure(error);
    if (final === undefined) {
      throw error;
    }
    return repeat(retries, () => saveFailure(pool, key, final, options));
  }
}

// A message of any broker: its effect, without an answer.
async function consume(pool, { id, ...options }, work) {
  return transaction(pool, id, async (client, claimed) => {
    await work(client, claimed);
  }, options);
}

module.exports = {
  RETRIES, claim, claimedResult, complete, consume, fail, failedResult, renew, resultOf, transaction,
};
