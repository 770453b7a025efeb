// lease.js
//
// Work outside the database, under a lease: the claim is committed before the
// work, the lease is renewed during it, and its last changes are committed
// together with the saved answer.

'use strict';

const {
  callWithin, fromJson, query, repeat, toJson, transact,
} = require('./database');
const {
  RETRIES, claim, claimedResult, complete, fail, failedResult, renew, resultOf,
} = require('./claims');

const LEASE = '1 min';
const RENEWALS_PER_LEASE = 3;
const RENEWAL_REPEAT_MS = 500;
const FAIL_MAX_MS = 30 * 1000;
const TIMER_MAX_MS = 2 ** 31 - 1;

// The key belongs to another owner, was forgotten or has moved.
const LOST = ['ID001', 'ID002', 'ID007'];
const ENDED = 'ID003'; // completed or failed, by this owner

// Renews a lease until it is stopped, and calls lose(reason) as soon as the key
// may have another owner: the server says so, or it could not be reached for as
// long as the lease lasts, since this time. Returns a function that stops it.
function keepRenewing(renewOnce, lastsMs, sentAt, lose) {
  const pauseMs = lastsMs / RENEWALS_PER_LEASE;
  let next;
  let deadline;
  let stopped = false;

  function stop() {
    stopped = true;
    clearTimeout(next);
    clearTimeout(deadline);
  }

  function loseFor(reason) {
    stop();
    lose(reason);
  }

  // The server counts a lease from when it has got the request. The error has the
  // code of an owner that is too late, since work may pass it on.
  function extend(since) {
    clearTimeout(deadline);
    deadline = setTimeout(
      loseFor,
      since + lastsMs - performance.now(),
      Object.assign(new Error('the lease has run out, and could not be renewed'), { code: 'ID001' }),
    );
  }

  async function beat() {
    const since = performance.now();
    let waitMs = pauseMs;
    try {
      await renewOnce();
      if (!stopped) {
        extend(since);
      }
    } catch (error) {
      waitMs = Math.min(pauseMs, RENEWAL_REPEAT_MS);
      if (error.code === ENDED) {
        stop();
      } else if (LOST.includes(error.code) && !stopped) {
        loseFor(error);
      }
    }
    if (!stopped) {
      next = setTimeout(beat, waitMs);
    }
  }

  extend(sentAt);
  next = setTimeout(beat, pauseMs);
  return stop;
}

// Renews a lease that may have run out already, and returns since when it lasts:
// the answer to the claim was late, so that the key may have another owner.
async function confirm(renewOnce) {
  let since;
  await repeat(RETRIES, () => {
    since = performance.now();
    return renewOnce();
  });
  return since;
}

// How a key that has ended did end, with its saved answer or error. This claims
// nothing.
async function readEnd(pool, key, scope) {
  const [end] = await query(pool, "CALL idem_wait($1::text, $2::text, timeout => '1 ms')", [key, scope]);
  return end;
}

// Does the last changes and saves the answer that change returns, in one
// transaction. If the outcome of an earlier COMMIT is unknown, idem_renew tells
// whether the key is completed, before anything is repeated. The savepoint fails
// if change has ended the transaction: the key would be completed without it.
async function commitLease(pool, owner, change, { scope, lease, retries }) {
  const { key, token } = owner;
  return repeat(retries, async () => {
    const isRepeated = owner.hasTried;
    owner.hasTried = true;
    try {
      return await transact(pool, async (client) => {
        if (isRepeated) {
          await renew(client, key, token, { scope, lease });
        }
        const response = await change(client);
        await query(client, 'SAVEPOINT idempotency_pg');
        await complete(client, key, token, response, { scope });
        return { response: fromJson(toJson(response)) };
      });
    } catch (error) {
      const end = isRepeated && error.code === ENDED ? await readEnd(pool, key, scope) : null;
      if (end?.outcome !== 'completed') {
        throw error;
      }
      return end;
    }
  });
}

// Lets the key fail for good. It may have ended before: the answer to an earlier
// try, or to a commit, was lost.
async function failLease(pool, failMs, claimed, key, error, { scope, retries }) {
  return repeat(retries, async () => {
    try {
      await callWithin(failMs, pool, (db) => fail(db, key, claimed.token, error, { scope, retry: false }));
      return failedResult(claimed, error);
    } catch (reason) {
      const end = reason.code === ENDED ? await readEnd(pool, key, scope) : null;
      switch (end?.outcome) {
        case 'completed':
          return claimedResult(claimed, end.response);
        case 'failed':
          return failedResult(claimed, end.response);
        default:
          throw reason;
      }
    }
  });
}

// Claims the key with a lease, and does the work outside any transaction. If
// the work does not call commit, what it returns is the saved answer.
async function lease(pool, key, work, {
  scope = '', request, ttl, wait, lease: duration = LEASE, retries = RETRIES,
  failure = () => undefined,
} = {}) {
  if (duration === null) {
    throw new TypeError('lease needs a duration');
  }
  let since = performance.now();
  const claimed = await claim(pool, key, {
    scope, request, ttl, wait, lease: duration,
  });
  if (claimed.outcome !== 'claimed') {
    return resultOf(claimed);
  }
  const { token, attempt } = claimed;
  const lastsMs = Math.min(claimed.lease * 1000, TIMER_MAX_MS);
  const answerMs = lastsMs / RENEWALS_PER_LEASE;
  const failMs = Math.min(lastsMs, FAIL_MAX_MS);
  function renewOnce() {
    return callWithin(answerMs, pool, (db) => renew(db, key, token, { scope, lease: duration }));
  }
  if (performance.now() - since >= answerMs) {
    since = await confirm(renewOnce);
  }
  const loss = new AbortController();
  const stop = keepRenewing(renewOnce, lastsMs, since, (reason) => loss.abort(reason));
  const owner = { key, token, hasTried: false };
  let committing;
  let mayCommit = true;
  let hasCommitted = false;
  async function commitOnce(change) {
    mayCommit = false;
    try {
      const committed = await commitLease(pool, owner, change, { scope, lease: duration, retries });
      hasCommitted = true;
      stop(); // nobody can take the key over any more
      return committed;
    } catch (error) {
      mayCommit = true;
      throw error;
    }
  }
  // Work need not wait for the promise: lease throws its error, too.
  function commit(change) {
    if (!mayCommit) {
      return Promise.reject(new Error('commit was called again, during another commit or after it'));
    }
    committing = commitOnce(change);
    const answer = committing.then(({ response }) => response);
    answer.catch(() => {});
    return answer;
  }
  try {
    const response = await work({
      key, token, attempt, signal: loss.signal, commit,
    });
    if (!committing) {
      await commit(() => response);
    }
    return claimedResult(claimed, (await committing).response);
  } catch (error) {
    if (hasCommitted) {
      throw error;
    }
    const final = failure(error);
    if (final === undefined) {
      // Free the key for the next try. If this fails too, the lease runs out.
      await callWithin(failMs, pool, (db) => fail(db, key, token, { error: error?.message }, { scope })).catch(() => {});
      throw error;
    }
    return await failLease(pool, failMs, claimed, key, final, { scope, retries });
  } finally {
    stop();
  }
}

module.exports = { TIMER_MAX_MS, lease };
