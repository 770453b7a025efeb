// lease.js
//
// Work outside the database, under a lease: the claim is committed before the
// work, the lease is renewed during it, and its last changes are committed
// together with the saved answer.

'use strict';

const {
  fromJson, query, repeat, toJson, transact,
} = require('./database');
const {
  RETRIES, claim, claimedResult, complete, fail, failedResult, renew, resultOf,
} = require('./claims');

const LEASE = '1 min';
const RENEWALS_PER_LEASE = 3;
const TIMER_MAX_MS = 2 ** 31 - 1;

// The key belongs to another owner, was forgotten or has moved.
const LOST = ['ID001', 'ID002', 'ID007'];
const ENDED = 'ID003'; // completed or failed, by this owner

// Renews a lease until it is stopped, and calls lose(reason) as soon as the key
// may have another owner: the server says so, or it could not be reached for as
// long as the lease lasts. The claim was sent at this time. Returns a function
// that stops it.
function keepRenewing(renewOnce, leaseMs, sentAt, lose) {
  const lastsMs = Math.min(leaseMs, TIMER_MAX_MS);
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

  // The server counts a lease from when it has got the request.
  function extend(since) {
    clearTimeout(deadline);
    deadline = setTimeout(
      loseFor,
      since + lastsMs - performance.now(),
      new Error('the lease has run out, and could not be renewed'),
    );
  }

  async function beat() {
    const since = performance.now();
    try {
      await renewOnce();
      if (!stopped) {
        extend(since);
      }
    } catch (error) {
      if (error.code === ENDED) {
        stop();
      } else if (LOST.includes(error.code) && !stopped) {
        loseFor(error);
      }
    }
    if (!stopped) {
      next = setTimeout(beat, pauseMs);
    }
  }

  // If the claim has waited for another transaction, it is not known when the
  // lease began, so it is renewed at once.
  const now = performance.now();
  const isFresh = now - sentAt < pauseMs;
  extend(isFresh ? sentAt : now);
  next = setTimeout(beat, isFresh ? pauseMs : 0);
  return stop;
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
async function failLease(pool, claimed, key, error, { scope, retries }) {
  return repeat(retries, async () => {
    try {
      await fail(pool, key, claimed.token, error, { scope, retry: false });
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
  const sentAt = performance.now();
  const claimed = await claim(pool, key, {
    scope, request, ttl, wait, lease: duration,
  });
  if (claimed.outcome !== 'claimed') {
    return resultOf(claimed);
  }
  const { token, attempt } = claimed;
  const loss = new AbortController();
  const stop = keepRenewing(
    () => renew(pool, key, token, { scope, lease: duration }),
    claimed.lease * 1000,
    sentAt,
    (reason) => loss.abort(reason),
  );
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
      await fail(pool, key, token, { error: error?.message }, { scope }).catch(() => {});
      throw error;
    }
    return await failLease(pool, claimed, key, final, { scope, retries });
  } finally {
    stop();
  }
}

module.exports = { lease };
