// claims.test.js
//
// The calls, transactions and leases of the library, with both drivers, on a
// real server: one effect for each key, whatever breaks in between.

'use strict';

const assert = require('assert/strict');
const { execFile, spawn } = require('child_process');
const { once } = require('events');
const fs = require('fs');
const os = require('os');
const path = require('path');
const { after, describe, test } = require('node:test');
const { setTimeout } = require('timers/promises');
const { promisify } = require('util');
const {
  claim, complete, consume, fail, isRetryable, lease, renew, transact, transaction,
} = require('idempotency-pg');
const {
  DRIVERS, admin, effects, gate, waitUntil,
} = require('./lib');
const { startProxy } = require('./proxy');

const COPIES = 20;
const TEST_MS = 120 * 1000;

async function leaseUntil(key) {
  const [[until]] = await admin('SELECT lease_until FROM idem_keys WHERE key = $1', [key]);
  return until.getTime();
}

// Another caller takes a key over, as if the lease had run out.
async function takeOver(key) {
  await admin('SELECT idem_forget($1)', [key]);
  const [[outcome]] = await admin("SELECT outcome FROM idem_claim($1, lease => '1 h')", [key]);
  assert.equal(outcome, 'claimed');
}

async function restartServer() {
  await promisify(execFile)('pg_ctl', ['restart', '-w', '-s', '-m', 'immediate',
    '-D', process.env.SERVER_DATA, '-l', process.env.SERVER_LOG]);
}

for (const [driver, open] of Object.entries(DRIVERS)) {
  describe(driver, () => {
    const { pool, query, end } = open();
    const name = (key) => `${driver} ${key}`;

    async function effect(client, key) {
      await query(client, 'INSERT INTO effects VALUES ($1)', [key]);
    }

    // A pool behind a proxy. Both are closed after the test.
    async function openFar(t, options) {
      const proxy = await startProxy();
      const far = open({ ...proxy.options, ...options });
      t.after(async () => {
        proxy.close();
        await far.end();
      });
      return { proxy, far: far.pool };
    }

    // Work that counts its calls.
    function counted(key, work = () => ({ done: 1 })) {
      const counter = { calls: 0 };
      counter.work = async (client) => {
        counter.calls += 1;
        await effect(client, key);
        return work(client, counter.calls);
      };
      return counter;
    }

    after(end);

    test('claim, complete, fail and renew', async () => {
      const key = name('calls');
      const scope = 'a scope';
      const options = { scope, lease: 40, request: 'the body' };
      const first = await claim(pool, key, options);
      assert.match(first.token, /^[0-9]+$/);
      assert.deepEqual(first, {
        outcome: 'claimed', token: first.token, attempt: 1, response: null, error: null, retryAfter: null, lease: 40,
      });

      const second = await claim(pool, key, options);
      assert.equal(second.outcome, 'in_progress');
      assert.equal(second.attempt, 1);
      assert.ok(second.retryAfter > 30 && second.retryAfter <= 40, `retry after ${second.retryAfter}`);
      assert.equal((await claim(pool, key, { ...options, request: 'other' })).outcome, 'mismatch');
      assert.equal((await claim(pool, key, { lease: 40 })).outcome, 'claimed', 'another scope');

      const until = await renew(pool, key, first.token, { scope, lease: '5 min' });
      assert.ok(until - Date.now() > 4 * 60 * 1000, `renewed until ${until}`);

      await fail(pool, key, first.token, { why: 'busy' }, { scope });
      const next = await claim(pool, key, options);
      assert.deepEqual([next.outcome, next.attempt], ['claimed', 2]);
      await assert.rejects(complete(pool, key, first.token, null, { scope }), { code: 'ID001' });

      const response = [1, { text: 'Grüße, "漢字"', none: null }];
      await complete(pool, key, next.token, response, { scope, ttl: 3600 });
      const replay = await claim(pool, key, options);
      assert.deepEqual([replay.outcome, replay.response, replay.error], ['completed', response, null]);
      const [[ttl]] = await admin(`SELECT extract(epoch FROM expires_at - now())::float8 FROM idem_keys
        WHERE key = $1 AND scope = $2`, [key, scope]);
      assert.ok(ttl > 3000 && ttl <= 3600, `remembered for ${ttl} s`);
    });

    test('a final failure, and an answer that is only a string', async () => {
      const key = name('final');
      const { token } = await claim(pool, key, { lease: '1 min', ttl: '2 days' });
      await fail(pool, key, token, 'no "such" thing', { retry: false });
      const again = await claim(pool, key);
      assert.deepEqual([again.outcome, again.error, again.response], ['failed', 'no "such" thing', null]);
    });

    test('transaction: the answer of the first call, and of the next one', async () => {
      const key = name('transaction');
      const { work } = counted(key, () => ({ at: new Date(0), none: undefined }));
      const first = await transaction(pool, key, work, { request: 'a' });
      assert.deepEqual(first, {
        outcome: 'claimed', attempt: 1, response: { at: '1970-01-01T00:00:00.000Z' }, error: null, retryAfter: null, replayed: false,
      });
      assert.deepEqual(
        await transaction(pool, key, work, { request: 'a' }),
        { ...first, outcome: 'completed', replayed: true },
      );
      assert.equal((await transaction(pool, key, work, { request: 'b' })).outcome, 'mismatch');
      assert.equal(await effects(key), 1);
    });

    test('transaction: after an error nothing is changed', async () => {
      const key = name('error');
      const broken = counted(key, () => {
        throw new TypeError('a mistake');
      });
      await assert.rejects(transaction(pool, key, broken.work), /a mistake/);
      assert.deepEqual([broken.calls, await effects(key)], [1, 0]);
      assert.equal((await transaction(pool, key, counted(key).work)).outcome, 'claimed');
      assert.equal(await effects(key), 1);
    });

    test('transaction: an error that work does not pass on', async () => {
      const key = name('swallowed');
      const swallow = (client) => query(client, 'SELECT 1 / 0').then(() => undefined, () => undefined);
      await assert.rejects(transaction(pool, key, counted(key, swallow).work));
      assert.equal(await effects(key), 0);
      assert.equal((await claim(pool, key, { wait: false })).outcome, 'claimed', 'the key is free');
    });

    test('transaction: copies at the same time', async () => {
      const key = name('copies');
      const counter = counted(key, async (client) => {
        await query(client, 'SELECT pg_sleep(0.2)');
        return { winner: Math.random() };
      });
      const results = await Promise.all(Array.from({ length: COPIES }, () => transaction(pool, key, counter.work)));
      assert.deepEqual([counter.calls, await effects(key)], [1, 1]);
      assert.equal(results.filter(({ replayed }) => !replayed).length, 1);
      assert.equal(new Set(results.map(({ response }) => response.winner)).size, 1);
    });

    test('transaction: a serialization failure is repeated, but no other error', async () => {
      const key = name('serialization');
      const failing = (code) => async (client, call) => {
        if (call <= 2) {
          await query(client, `DO $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '${code}'; END $$`);
        }
        return { call };
      };
      const never = counted(key, failing('40001'));
      await assert.rejects(transaction(pool, key, never.work, { retries: 1 }), { code: '40001' });
      assert.equal(never.calls, 2);
      const wrong = counted(key, failing('23514'));
      await assert.rejects(transaction(pool, key, wrong.work), { code: '23514' });
      assert.equal(wrong.calls, 1);
      const { response } = await transaction(pool, key, counted(key, failing('40P01')).work);
      assert.deepEqual([response, await effects(key)], [{ call: 3 }, 1]);
    });

    test('transaction: a connection that breaks', async () => {
      const key = name('broken connection');
      const counter = counted(key, async (client, call) => {
        if (call === 1) {
          await query(client, 'SELECT pg_terminate_backend(pg_backend_pid())');
        }
        return { call };
      });
      const { response } = await transaction(pool, key, counter.work);
      assert.deepEqual([response, await effects(key)], [{ call: 2 }, 1]);
    });

    test('transaction: a final failure is saved', async () => {
      const key = name('failure');
      const counter = counted(key, (client) => query(client, 'SELECT 1 / 0'));
      const failure = (error) => (error.code === '22012' ? { error: error.message } : undefined);
      const first = await transaction(pool, key, counter.work, { failure });
      assert.deepEqual([first.outcome, first.error, first.replayed], ['failed', { error: 'division by zero' }, false]);
      const again = await transaction(pool, key, counter.work, { failure });
      assert.deepEqual([again.outcome, again.error, again.replayed], ['failed', { error: 'division by zero' }, true]);
      assert.deepEqual([counter.calls, await effects(key)], [1, 0]);
    });

    test('consume', async () => {
      const id = name('message');
      const { work } = counted(id);
      const message = { scope: 'a queue', id, request: 'the body' };
      const outcomes = [];
      outcomes.push((await consume(pool, message, work)).outcome);
      outcomes.push((await consume(pool, message, work)).outcome);
      outcomes.push((await consume(pool, { ...message, request: 'other' }, work)).outcome);
      assert.deepEqual(outcomes, ['claimed', 'completed', 'mismatch']);
      assert.equal(await effects(id), 1);
      const refused = { scope: 'a queue', id: name('bad message'), failure: ({ message: error }) => ({ error }) };
      const bad = () => {
        throw new SyntaxError('no JSON');
      };
      const { outcome, error, replayed } = await consume(pool, refused, bad);
      assert.deepEqual([outcome, error, replayed], ['failed', { error: 'no JSON' }, false]);
      assert.equal((await consume(pool, refused, work)).replayed, true);
    });

    test('lease: it is renewed, and other callers are told to wait', async () => {
      const key = name('renewed');
      const { outcome, response } = await lease(pool, key, async ({ commit, signal, attempt }) => {
        const first = await leaseUntil(key);
        await waitUntil(async () => await leaseUntil(key) > first + 4000);
        const other = await lease(pool, key, assert.fail, { lease: 2 });
        assert.equal(other.outcome, 'in_progress');
        assert.ok(other.retryAfter > 0 && other.retryAfter <= 2);
        assert.equal(signal.aborted, false);
        return commit(async (client) => {
          await effect(client, key);
          return { attempt };
        });
      }, { lease: 2 });
      assert.deepEqual([outcome, response], ['claimed', { attempt: 1 }]);
      const again = await lease(pool, key, assert.fail);
      assert.deepEqual([again.outcome, again.response, again.replayed], ['completed', { attempt: 1 }, true]);
      assert.equal(await effects(key), 1);
    });

    test('lease: an error frees the key at once, a final one is saved, an answer needs no commit', async () => {
      const key = name('lease error');
      const broken = () => {
        throw new Error('the provider is down');
      };
      await assert.rejects(lease(pool, key, broken, { lease: '1 h' }), /the provider is down/);
      const failure = ({ message }) => ({ error: message });
      const undone = await lease(pool, key, ({ commit }) => commit(async (client) => {
        await effect(client, key);
        broken();
      }), { lease: '1 h', failure });
      assert.deepEqual([undone.outcome, undone.attempt, undone.replayed], ['failed', 2, false]);
      const again = await lease(pool, key, assert.fail, { lease: '1 h' });
      assert.deepEqual([again.outcome, again.error], ['failed', { error: 'the provider is down' }]);
      assert.equal(await effects(key), 0);
      const plain = await lease(pool, name('plain lease'), () => [1, 2]);
      assert.deepEqual((await claim(pool, name('plain lease'))).response, plain.response);
    });

    test('work that ends its transaction', async () => {
      const end = (client) => query(client, 'ROLLBACK').then(() => undefined);
      const ways = {
        transaction: (key, work) => transaction(pool, key, work, { retries: 0 }),
        consume: (key, work) => consume(pool, { id: key, retries: 0 }, work),
        lease: (key, work) => lease(pool, key, ({ commit }) => commit(work), { retries: 0 }),
      };
      for (const [way, run] of Object.entries(ways)) {
        const key = name(`ended ${way}`);
        await assert.rejects(run(key, counted(key, end).work), way);
        assert.equal((await claim(pool, key, { wait: false })).outcome, 'claimed', `${way}: the key is free`);
      }
    });

    test('transact', async () => {
      const key = name('transact');
      assert.deepEqual(await transact(pool, (client) => effect(client, key).then(() => ({ at: key }))), { at: key });
      await assert.rejects(transact(pool, async (client) => {
        await effect(client, key);
        throw new TypeError('a mistake');
      }), /a mistake/);
      assert.equal(await effects(key), 1);
    });

    test('transact: an error does not wait for a query that hangs', { timeout: TEST_MS }, async () => {
      const since = performance.now();
      await assert.rejects(transact(pool, async (client) => {
        query(client, `SELECT pg_sleep(${TEST_MS})`).catch(() => {});
        throw new Error('given up');
      }), /given up/);
      assert.ok(performance.now() - since < TEST_MS / 2);
      await admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(%'");
    });

    // A renewal comes between the two calls: the key is completed, but not lost.
    test('lease: commit is called again', async (t) => {
      const key = name('again');
      const { proxy, far } = await openFar(t);
      const { response } = await lease(far, key, async ({ commit, signal }) => {
        const change = async (client) => {
          await effect(client, key);
          return { done: 1 };
        };
        proxy.loseCommit();
        await assert.rejects(commit(change));
        await setTimeout(3500);
        assert.equal(signal.aborted, false);
        assert.deepEqual(await commit(change), { done: 1 });
        await assert.rejects(commit(change), /called again/);
      }, { retries: 0, lease: 3 });
      assert.deepEqual([response, await effects(key)], [{ done: 1 }, 1]);
      await assert.rejects(lease(pool, name('no lease'), assert.fail, { lease: null }), /needs a duration/);
    });

    test('lease: what looks like a failure was committed', async (t) => {
      const key = name('not failed');
      const { proxy, far } = await openFar(t);
      const { outcome, response } = await lease(far, key, ({ commit }) => {
        proxy.loseCommit();
        return commit(async (client) => {
          await effect(client, key);
          return { done: 1 };
        });
      }, { retries: 0, failure: ({ message }) => ({ error: message }) });
      assert.deepEqual([outcome, response, await effects(key)], ['claimed', { done: 1 }, 1]);
    });

    test('lease: nobody waits for a commit that fails', async () => {
      const key = name('not awaited');
      await assert.rejects(lease(pool, key, ({ commit }) => {
        commit(() => {
          throw new Error('a late mistake');
        });
      }), /a late mistake/);
      assert.equal((await claim(pool, key, { wait: false })).outcome, 'claimed', 'the key is free');
    });

    test('lease: a renewal that hangs', async (t) => {
      const key = name('hanging');
      const { proxy, far } = await openFar(t);
      proxy.hang(/idem_renew/);
      await lease(far, key, async ({ commit, signal }) => {
        await waitUntil(proxy.hasHung);
        await commit((client) => effect(client, key));
        await setTimeout(5000);
        assert.equal(signal.aborted, false, 'it was completed in time');
      }, { lease: 5 });
      await lease(far, name('hanging too'), async ({ commit, signal }) => {
        const since = performance.now();
        await waitUntil(() => signal.aborted);
        assert.match(signal.reason.message, /has run out/);
        assert.equal(signal.reason.code, 'ID001');
        assert.ok(performance.now() - since < 30 * 1000);
        await commit((client) => effect(client, key)); // nobody else has taken the key
      }, { lease: 1 });
      assert.equal(await effects(key), 2);
    });

    test('lease: a renewal that hangs is repeated in time', async (t) => {
      const key = name('repeated');
      const { proxy, far } = await openFar(t);
      proxy.hang(/idem_renew/, 1);
      await lease(far, key, async ({ signal }) => {
        const until = await leaseUntil(key);
        await waitUntil(async () => signal.aborted || await leaseUntil(key) > until);
        assert.deepEqual([proxy.hasHung(), signal.aborted], [true, false]);
      }, { lease: 9 });
    });

    // node-postgres tells of it by an event, too, which must not end the process.
    test('lease: the connection of a renewal breaks', async (t) => {
      const key = name('broken renewal');
      const { proxy, far } = await openFar(t);
      proxy.hang(/idem_renew/, 1);
      await lease(far, key, async ({ signal }) => {
        const until = await leaseUntil(key);
        await waitUntil(proxy.hasHung);
        proxy.resume();
        await waitUntil(async () => signal.aborted || await leaseUntil(key) > until);
        assert.equal(signal.aborted, false);
      }, { lease: 9 });
    });

    test('lease: an error does not wait for a server that hangs', { timeout: TEST_MS }, async (t) => {
      const { proxy, far } = await openFar(t);
      proxy.hang(/idem_fail/);
      const broken = () => {
        throw new Error('the provider is down');
      };
      await assert.rejects(lease(far, name('unfailed'), broken, { lease: 3 }), /the provider is down/);
      const failure = ({ message }) => ({ error: message });
      await assert.rejects(lease(far, name('unsaved'), broken, { lease: 3, failure, retries: 1 }), { code: 'ETIMEDOUT' });
    });

    test('lease: the answer to the claim is late', async (t) => {
      const { proxy, far } = await openFar(t);
      for (const isTaken of [false, true]) {
        const key = name(`late claim, taken ${isTaken}`);
        proxy.hold(/claimed/);
        const late = lease(far, key, isTaken ? assert.fail : async () => 'done', { lease: 3 });
        late.catch(() => {});
        await waitUntil(proxy.isHolding);
        await setTimeout(1500);
        if (isTaken) {
          await takeOver(key);
        }
        proxy.release();
        if (isTaken) {
          await assert.rejects(late, { code: 'ID001' });
          assert.equal((await claim(pool, key)).outcome, 'in_progress', 'the other owner keeps the key');
        } else {
          assert.equal((await late).response, 'done');
        }
      }
    });

    test('lease: an owner that is too late', async () => {
      const key = name('late');
      const late = lease(pool, key, async ({ commit, signal }) => {
        await takeOver(key);
        await waitUntil(() => signal.aborted);
        assert.equal(signal.reason.code, 'ID001');
        return commit((client) => effect(client, key));
      }, { lease: 2 });
      await assert.rejects(late, { code: 'ID001' });
      assert.equal(await effects(key), 0);
      assert.equal((await claim(pool, key)).outcome, 'in_progress', 'the other owner keeps the key');
    });

    test('lease: the server cannot be reached', async (t) => {
      const key = name('unreachable');
      const { proxy, far } = await openFar(t, { max: 5 });
      const late = lease(far, key, async ({ commit, signal }) => {
        proxy.stop();
        await waitUntil(() => signal.aborted);
        assert.match(signal.reason.message, /has run out/);
        await waitUntil(async () => (await claim(pool, key, { lease: '1 h' })).outcome === 'claimed');
        proxy.resume();
        return commit((client) => effect(client, key));
      }, { lease: 1 });
      await assert.rejects(late, { code: 'ID001' });
      assert.equal(await effects(key), 0);
    });

    test('the answer to COMMIT is lost', async (t) => {
      const { proxy, far } = await openFar(t);
      const work = (key) => async (client) => {
        await effect(client, key);
        return { saved: 'answer' };
      };
      proxy.loseCommit();
      const first = await transaction(far, name('lost'), (client) => work(name('lost'))(client));
      assert.deepEqual(
        [first.outcome, first.response, await effects(name('lost'))],
        ['completed', { saved: 'answer' }, 1],
      );
      const second = await lease(far, name('lost too'), ({ commit }) => {
        proxy.loseCommit();
        return commit(work(name('lost too')));
      });
      assert.deepEqual(
        [second.outcome, second.response, await effects(name('lost too'))],
        ['claimed', { saved: 'answer' }, 1],
      );
    });

    test('the server is restarted during a lease', async () => {
      const key = name('restart');
      const { response } = await lease(pool, key, async ({ commit, signal }) => {
        await restartServer();
        const until = await leaseUntil(key);
        await waitUntil(async () => await leaseUntil(key) > until);
        assert.equal(signal.aborted, false);
        return commit(async (client) => {
          await effect(client, key);
          return { done: 1 };
        });
      }, { lease: 15, retries: 20 });
      assert.deepEqual([response, await effects(key)], [{ done: 1 }, 1]);
    });

    test('the process is killed', async (t) => {
      for (const [how, line, outcome] of [
        ['transaction, in work', 'working', 'claimed'],
        ['transaction, committed', 'committed', 'completed'],
        ['lease, in work', 'working', 'claimed'],
        ['lease, in commit', 'working', 'claimed'],
        ['lease, committed', 'committed', 'completed'],
      ]) {
        await t.test(how, async () => {
          const key = name(how);
          const program = path.join(__dirname, 'programs/worker.js');
          const worker = spawn(process.execPath, [program, driver, key, how], { stdio: ['ignore', 'pipe', 'inherit'] });
          const [said] = await once(worker.stdout, 'data');
          assert.equal(said.toString().trim(), line);
          worker.kill('SIGKILL');
          await once(worker, 'exit');
          let result;
          await waitUntil(async () => {
            result = await lease(pool, key, ({ commit }) => commit(async (client) => {
              await effect(client, key);
              return { done: 1 };
            }));
            return result.outcome !== 'in_progress';
          });
          assert.deepEqual([result.outcome, result.response, await effects(key)], [outcome, { done: 1 }, 1]);
        });
      }
    });
  });
}

// The pool has one connection, so that what comes too late would be sent in the
// transaction of another caller.
test('postgres: the client of a transaction that is over', async (t) => {
  const { pool, end } = DRIVERS.postgres({ max: 1 });
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'guard-'));
  t.after(async () => {
    fs.rmSync(dir, { recursive: true });
    await end();
  });
  const file = path.join(dir, 'effect.sql');
  fs.writeFileSync(file, "INSERT INTO effects VALUES ('guard, file')");
  const insert = (db, id) => db`INSERT INTO effects ${db([{ id }])}`;

  await transact(pool, async (client) => {
    await client.file(file);
    await client.file(file, { cache: false });
    await client.savepoint((inner) => [insert(inner, 'guard, in'), inner.unsafe('INSERT INTO effects VALUES ($1)', ['guard, in'])]);
    await assert.rejects(client.savepoint('name', async (inner) => {
      await insert(inner, 'guard, undone');
      throw new Error('only this');
    }), /only this/);
    await client.savepoint`INSERT INTO effects VALUES ('guard, in')`;
    assert.equal(await insert(client, 'guard, in').then(({ count }) => count), 1);
  });
  for (const [id, count] of [['file', 2], ['in', 4], ['undone', 0]]) {
    assert.equal(await effects(`guard, ${id}`), count, id);
  }

  await transact(pool, async (client) => {
    await assert.rejects(client.file(path.join(dir, 'missing')), { code: 'ENOENT' });
    await insert(client, 'guard, after a missing file');
  });
  assert.equal(await effects('guard, after a missing file'), 1);

  const entered = gate();
  const leave = gate();
  let late;
  let made;
  let inSavepoint;
  let saving;
  await assert.rejects(transact(pool, async (client) => {
    late = client;
    made = insert(client, 'guard, late');
    saving = client.savepoint(async (inner) => {
      inSavepoint = inner;
      entered.open();
      await leave.opened;
      throw new Error('late');
    });
    saving.catch(() => {});
    await entered.opened;
    throw new Error('given up');
  }), /given up/);
  await transact(pool, async (client) => {
    await insert(client, 'guard, other');
    for (const [way, run] of Object.entries({
      made: () => made,
      tagged: () => insert(late, 'guard, late'),
      unsafe: () => late.unsafe("INSERT INTO effects VALUES ('guard, late')"),
      file: () => late.file(file),
      notify: () => late.notify('channel', 'late'),
      cursor: () => late`SELECT 1`.cursor(() => {}),
      savepoint: () => late.savepoint((inner) => insert(inner, 'guard, late')),
      'in a savepoint': () => insert(inSavepoint, 'guard, late'),
    })) {
      await assert.rejects(Promise.resolve(run()), /the transaction is over/, way);
    }
    leave.open();
    await assert.rejects(saving, /the transaction is over/);
  });
  assert.deepEqual([await effects('guard, other'), await effects('guard, late'), await effects('guard, file')], [1, 0, 2]);
});

test('which errors are worth another try', () => {
  for (const code of ['08006', '40001', '40P01', '53300', '57P01', '57P03', '25006', 'ECONNREFUSED', 'CONNECTION_CLOSED',
    'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'ENETDOWN']) {
    assert.equal(isRetryable({ code }), true, code);
  }
  assert.equal(isRetryable({ code: 'ENOTFOUND', syscall: 'getaddrinfo' }), true);
  for (const message of ['Connection terminated unexpectedly', 'timeout exceeded when trying to connect']) {
    assert.equal(isRetryable(new Error(message)), true, message);
  }
  for (const code of ['22012', '23505', '55P03', '57014', 'ID001', 'ENOENT', 'ENOTFOUND', undefined]) {
    assert.equal(isRetryable({ code }), false, String(code));
  }
});
