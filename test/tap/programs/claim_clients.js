/*
 * claim_clients.js
 *		Clients that claim, complete, fail, renew and forget the same few keys, in
 *		transactions of every kind; the history of their answers; and a check of
 *		it.  Commands and environment are in crowd.js.
 *
 * Each answer is kept with the times between which it was found, the snapshot
 * of its statement, and what its transaction had done to the key before.  When
 * all clients have stopped, it is known which transactions have committed, and
 * so the versions of each key, in the order of tokens.  Each answer must fit a
 * version that the statement can have found.  All times are from one clock,
 * since the server runs on this machine.
 *
 * Environment: CLIENTS, MORTALS (how many of them may be killed), KEYS.
 */
'use strict';

const { count, Died, Member, obey, report, sleep } = require('./crowd');

const CLIENTS = Number(process.env.CLIENTS);
const MORTALS = Number(process.env.MORTALS);
const KEYS = Number(process.env.KEYS);
const KEYS_LAST_MS = 700;	// then other keys are used
const CLOCK_MS = 2;			// how much the two clocks may differ
const TTLS = [1, 3, 10, 30, 100, 1000];
const LEASES = [1, 3, 10, 30, 1000];
const RECENT = 4;			// claims that an owner uses again

const answers = [];			// of all statements
const transactions = [];	// whose end is not known yet
const histories = new Map();	// by key
const started = Date.now();
let alive = 0;				// number of running claimers

function history(key) {
  if (!histories.has(key))
    histories.set(key, { versions: [], forgets: [] });
  return histories.get(key);
}

// ---- versions of a key

/*
 * What a statement does to a key; others see it between the two times in seen,
 * if its transaction has committed.  Times are [earliest, latest].
 */
function claimed(step, { token, attempt }) {
  const at = [step.sent, step.got];
  const lease = step.lease === null ? null : at.map((time) => time + step.lease);
  return {
    token, attempt, order: 0, response: null, ttl: step.ttl, lease,
    state: lease ? 'p' : 'c',
    expires: (lease ?? at).map((time) => time + step.ttl),
  };
}

function finished(step, before) {
  const at = [step.sent, step.got];
  const after = { ...before, order: before.order + 1 };
  if (step.kind === 'renew') {
    after.lease = at.map((time, i) => Math.max(time + step.lease, before.lease[i]));
    after.expires = after.lease.map((time) => time + before.ttl);
    return after;
  }
  after.state = { complete: 'c', fail: 'r', 'fail for good': 'f' }[step.kind];
  after.response = step.response;
  if (step.ttl !== null)
    after.expires = at.map((time) => time + step.ttl);
  else if (before.state === 'p')
    after.expires = at.map((time) => time + before.ttl);
  return after;
}

/* The transaction has committed, between two times. */
function publish(transaction, seen) {
  for (const [key, own] of transaction.own)
    if (own.state !== 'gone')
      history(key).versions.push({ ...own, xid: transaction.xid, seen });
  for (const { key, sent } of transaction.forgets)
    history(key).forgets.push({ sent, seen });
}

// ---- what clients do

const TELL = 'pg_current_snapshot()::text AS snapshot, pg_current_xact_id_if_assigned()::text AS xid';
const CLAIM = `SELECT outcome::text, token::int, attempt, response, ${TELL} FROM`;
const QUERIES = {
  claim: `${CLAIM} idem_claim($1, lease => $2, ttl => $3, wait => $4)`,
  many: `${CLAIM} idem_claim_many($1, lease => $2, ttl => $3, wait => $4) WITH ORDINALITY ORDER BY ordinality`,
  complete: `SELECT ${TELL} FROM idem_complete($1, $2, $3, ttl => $4)`,
  fail: `SELECT ${TELL} FROM idem_fail($1, $2, $3)`,
  'fail for good': `SELECT ${TELL} FROM idem_fail($1, $2, $3, retry => false)`,
  renew: `SELECT ${TELL} FROM idem_renew($1, $2, $3)`,
  forget: `SELECT forgotten, ${TELL} FROM idem_forget($1) forgotten`,
};
const LEVELS = ['READ COMMITTED', 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'];
const REFUSALS = ['ID001', 'ID002', 'ID003'];
const span = (ms) => (ms === null ? null : `${ms} ms`);

class Claimer extends Member {
  constructor(number) {
    super(number);
    this.owned = [];	// {key, version}: leases, in their last state
    this.made = 0;
  }

  async run() {
    alive++;
    await super.run();
    alive--;
  }

  async greet() {
    await this.send(`SET application_name = '${this.number < MORTALS ? 'mortal' : 'immortal'}'`);
  }

  key() {
    const round = Math.floor((Date.now() - started) / KEYS_LAST_MS);
    return `${round}-${this.below(KEYS)}`;
  }

  claim() {
    const lease = this.random() < 0.5 ? this.pick(LEASES) : null;
    return {
      kind: 'claim', lease, ttl: this.pick(TTLS), wait: this.random() < 0.7,
      keys: this.random() < 0.15 ? [this.key(), this.key(), this.key()] : [this.key()],
    };
  }

  step(transaction) {
    const dice = this.random();
    const own = [...transaction.own].map(([key, version]) => ({ key, version }))
      .filter(({ version }) => version.token);
    const owned = [...this.owned, ...own];
    if (dice < 0.04)
      return { kind: 'forget', keys: [this.key()] };
    if (dice < 0.5 || owned.length === 0)
      return this.claim();
    const { key, version } = this.pick(owned);
    const kind = this.pick(['complete', 'complete', 'fail', 'fail for good', 'renew']);
    return {
      kind, keys: [key], token: version.token, lease: this.pick(LEASES),
      ttl: kind === 'complete' && this.random() < 0.5 ? this.pick(TTLS) : null,
      response: this.random() < 0.3 || kind === 'renew' ? null : `${this.number} ${++this.made}`,
      before: version,
    };
  }

  ask(step) {
    const { kind, keys: [key], token, lease, ttl, wait } = step;
    switch (kind) {
      case 'claim':
        return step.keys.length > 1 ?
          this.send(QUERIES.many, [step.keys, span(lease), span(ttl), wait]) :
          this.send(QUERIES.claim, [key, span(lease), span(ttl), wait]);
      case 'forget':
        return this.send(QUERIES.forget, [key]);
      case 'renew':
        return this.send(QUERIES.renew, [key, token, span(lease)]);
      case 'complete':
        return this.send(QUERIES.complete, [key, token, JSON.stringify(step.response), span(ttl)]);
      default:
        return this.send(QUERIES[kind], [key, token, JSON.stringify(step.response)]);
    }
  }

  /* Records an answer, and what the transaction does to the key. */
  note(step, transaction, key, answer) {
    const own = transaction.own.get(key) ?? null;
    const entry = {
      ...step, ...answer, key, own, transaction, client: this.number,
      level: transaction.level,
      before: own && own.token === step.token ? own : step.before,
    };
    answers.push(entry);
    count(`${step.kind} ${answer.error ?? answer.outcome ?? 'done'}`);
    if (answer.error)
      return;
    transaction.xid ??= answer.xid;
    if (step.kind === 'forget') {
      transaction.forgets.push({ key, sent: step.sent });
      if (answer.forgotten)
        transaction.own.set(key, { state: 'gone' });
    } else if (step.kind === 'claim') {
      if (answer.outcome === 'claimed')
        transaction.own.set(key, claimed(step, answer));
    } else {
      entry.repeated = step.kind === 'complete' && own === null && step.before.state === 'c';
      if (!entry.repeated)
        transaction.own.set(key, finished(step, entry.before));
    }
  }

  async take(step, transaction) {
    step.sent = Date.now();
    try {
      const rows = await this.ask(step);
      step.got = Date.now();
      rows.forEach((row, i) => this.note(step, transaction, step.keys[i], row));
    } catch (error) {
      step.got = Date.now();
      if (REFUSALS.includes(error.code))
        this.note(step, transaction, step.keys[0], { error: error.code });
      throw error;
    }
  }

  /* An error of a statement; only refusals tell something about a key. */
  refused(error) {
    if (error instanceof Died)
      throw error;
    count(`error ${error.code}`);
    if (![...REFUSALS, '40P01', '40001', '55P03'].includes(error.code))
      report(`client ${this.number}: ${error.code} ${error.message}`);
  }

  /* Records what the client owns after a committed transaction. */
  remember(transaction) {
    for (const [key, version] of transaction.own) {
      this.owned = this.owned.filter((one) => one.version.token !== version.token);
      if (version.token && (version.state === 'p' || this.random() < 0.3))
        this.owned.push({ key, version });
    }
    this.owned.splice(0, this.owned.length - RECENT);
  }

  begin(level) {
    const transaction = { level, own: new Map(), forgets: [], xid: null };
    return transaction;
  }

  async alone() {
    const transaction = this.begin('READ COMMITTED');
    const step = this.step(transaction);
    try {
      await this.take(step, transaction);
      publish(transaction, [step.sent, step.got]);
      this.remember(transaction);
    } catch (error) {
      this.refused(error);
    }
    count('acknowledged');
  }

  /* Statements and savepoints; false: they cannot be committed. */
  async work(transaction) {
    const savepoints = [];
    for (let i = 1 + this.below(5); i > 0; i--) {
      const dice = this.random();
      if (dice < 0.3) {
        await this.send(`SAVEPOINT s${savepoints.length}`);
        savepoints.push({ own: new Map(transaction.own), forgets: [...transaction.forgets] });
      } else if (dice < 0.4 && savepoints.length > 0)
        await this.undo(transaction, savepoints);
      else if (dice < 0.5 && savepoints.length > 0)
        await this.send(`RELEASE s${(savepoints.pop(), savepoints.length)}`);
      if (this.random() < 0.2)
        await sleep(this.below(15));
      try {
        await this.take(this.step(transaction), transaction);
      } catch (error) {
        this.refused(error);
        if (savepoints.length === 0)
          return false;
        await this.undo(transaction, savepoints);
      }
    }
    return true;
  }

  async undo(transaction, savepoints) {
    const saved = savepoints.pop();
    await this.send(`ROLLBACK TO s${savepoints.length}`);
    await this.send(`RELEASE s${savepoints.length}`);
    transaction.own = saved.own;
    transaction.forgets = saved.forgets;
    count('rolled back to savepoint');
  }

  async together() {
    const transaction = this.begin(this.pick(LEVELS));
    try {
      await this.send(`BEGIN ISOLATION LEVEL ${transaction.level}`);
      [{ xid: transaction.xid }] = await this.send('SELECT pg_current_xact_id()::text AS xid');
      const good = await this.work(transaction);
      const dice = this.random();
      if (!good || dice < 0.2) {
        await this.send('ROLLBACK');
        count('rolled back');
      } else if (dice < 0.35 && this.number >= MORTALS)
        await this.prepare(transaction);
      else
        await this.commit(transaction, 'COMMIT');
      count('acknowledged');
    } catch (error) {
      if (!(error instanceof Died))
        return this.failed(error);
      this.owned = [];
      throw error;
    }
  }

  /* An error at the end of a transaction, possible with SERIALIZABLE. */
  async failed(error) {
    this.refused(error);
    await this.send('ROLLBACK');
  }

  async commit(transaction, command) {
    const sent = Date.now();
    try {
      await this.send(command);
      publish(transaction, [sent, Date.now()]);
      this.remember(transaction);
    } catch (error) {
      if (error instanceof Died)
        transactions.push({ transaction, sent });
      throw error;
    }
  }

  /* A Finisher ends it a moment later; this client has finished with it. */
  async prepare(transaction) {
    const name = `claim ${transaction.xid}`;
    await this.send(`PREPARE TRANSACTION '${name}'`);
    this.owned = this.owned.filter(({ key }) => !transaction.own.has(key));
    finisher.due.push({ transaction, name, at: Date.now() + this.below(30), commit: this.random() < 0.7 });
    count('prepared');
  }

  async act() {
    await (this.number >= MORTALS && this.random() < 0.5 ? this.alone() : this.together());
  }
}

/* Ends prepared transactions; other clients may wait for their end. */
class Finisher extends Member {
  constructor(number) {
    super(number);
    this.due = [];
  }

  async finish({ transaction, name, commit }) {
    const sent = Date.now();
    await this.send(`${commit ? 'COMMIT' : 'ROLLBACK'} PREPARED '${name}'`);
    if (commit)
      publish(transaction, [sent, Date.now()]);
  }

  async run() {
    await this.connect();
    while (alive > 0 || this.due.length > 0)
      await this.finishDue();
    await this.client.end();
  }

  async finishDue() {
    const now = Date.now();
    const due = this.due.filter(({ at }) => at <= now);
    this.due = this.due.filter(({ at }) => at > now);
    for (const one of due)
      await this.finish(one);
    await sleep(1);
  }
}

/*
 * Who works on the tables.  The sweeper gives up after 100 ms if it waits for a
 * REINDEX that waits for it.  The test has a shorter deadlock_timeout, and the
 * one that looks first is the victim.
 */
class Keeper extends Member {
  async send(sql) {
    try {
      return await super.send(sql);
    } catch (error) {
      if (error.code !== '40P01')
        throw error;
      count('deadlock of a keeper');
      return [];
    }
  }
}

/* Turns the ring as the sweeper does, but much faster and in small steps. */
class Turner extends Keeper {
  async act() {
    for (const step of ['idem_switch()', `idem_migrate(${1 + this.below(20)})`, 'idem_retire()', 'idem_truncate()']) {
      const [row] = await this.send(`SELECT ${step}::int AS done`);
      if (row?.done > 0)
        count(step.replace(/\(.*/, ''));
    }
    await sleep(this.below(4));
  }
}

/* Does what an administrator may do at any time. */
class Janitor extends Keeper {
  async act() {
    const table = `idem_key_${this.below(3)}`;
    await this.send(this.pick([`VACUUM FULL ${table}`, `VACUUM ${table}`, `REINDEX TABLE ${table}`,
      `REINDEX TABLE CONCURRENTLY ${table}`, `CLUSTER ${table} USING ${table}_pkey`, `ANALYZE ${table}`]));
    count('maintained');
    await sleep(this.below(60));
  }
}

// ---- the check

/* Does the snapshot of a statement show the transaction as open? */
function isOpen(xid, snapshot) {
  const [, xmax, open] = snapshot.split(':');
  return BigInt(xid) >= BigInt(xmax) || open.split(',').includes(xid);
}

const follows = (one, other) => one.token > other.token ||
  (one.token === other.token && one.order > other.order);

/* Was it certainly replaced before the statement began? */
function isPast(version, entry, { versions, forgets }) {
  return versions.some((other) => follows(other, version) && other.seen[1] < entry.sent) ||
    isForgotten(version, entry, forgets);
}

const isForgotten = (version, entry, forgets) =>
  forgets.some(({ sent, seen }) => version.seen[1] < sent && seen[1] < entry.sent);

/* The versions that a statement can have found. */
function candidates(entry, past) {
  if (entry.own)
    return [entry.own];
  return past.versions.filter((version) => version.seen[0] <= entry.got && !isPast(version, entry, past));
}

const mayHaveEnded = (times, entry) => times[0] - CLOCK_MS <= entry.got;
const mustHaveEnded = (times, entry) => times[1] + CLOCK_MS < entry.sent;

/* Can the ttl have passed for this statement?  See key_row_has_expired(). */
const canExpire = (version, entry) => version !== entry.own && !isOpen(version.xid, entry.snapshot);

/* The attempts that a claimer that found this version can get. */
function attemptsAfter(version, entry) {
  const attempts = [];
  if (version.state === 'gone' || (canExpire(version, entry) && mayHaveEnded(version.expires, entry)))
    attempts.push(1);
  if (version.state === 'r' || (version.state === 'p' && mayHaveEnded(version.lease, entry)))
    attempts.push(version.attempt + 1);
  return attempts;
}

/*
 * The version that a claimer has taken over is the one before its own, if its
 * transaction has committed.  Otherwise it is any that it can have found.
 */
function taken(entry, past) {
  if (entry.own)
    return [entry.own];
  const before = past.versions.filter((version) => version.token < entry.token && version.seen[0] <= entry.got);
  if (!past.versions.some((version) => version.token === entry.token))
    return before.filter((version) => !isPast(version, entry, past));
  const last = before.reduce((one, other) => (one && follows(one, other) ? one : other), null);
  return last ? [last] : [];
}

/* Was the key forgotten, and not certainly claimed again, before the claim? */
const mayBeForgotten = ({ seen }, entry, { versions }) => seen[0] <= entry.got &&
  !versions.some((version) => version.token < entry.token && version.seen[0] > seen[1] &&
    version.seen[1] < entry.sent);

function checkClaimed(entry, past) {
  const met = taken(entry, past);
  const attempts = met.flatMap((version) => attemptsAfter(version, entry));
  if (entry.own)
    return attempts.includes(entry.attempt) ? null : 'its own transaction has it';
  if (!past.versions.some((version) => version.token < entry.token && version.seen[1] < entry.sent) ||
    past.forgets.some((forget) => mayBeForgotten(forget, entry, past)))
    attempts.push(1);
  return attempts.includes(entry.attempt) ? null : `has another owner or attempt, ${attempts}`;
}

function checkFinished(entry, past) {
  const state = entry.outcome === 'completed' ? 'c' : 'f';
  const fits = candidates(entry, past).some((version) => version.state === state &&
    version.attempt === entry.attempt && version.response === entry.response &&
    !(entry.level === 'READ COMMITTED' && canExpire(version, entry) && mustHaveEnded(version.expires, entry)));
  return fits ? null : 'is not what was saved';
}

/* Without waiting, a row that is being written or migrated is in progress. */
function checkInProgress(entry, past) {
  if (!entry.wait && entry.attempt === null)
    return null;
  return candidates(entry, past).some((version) => version.state === 'p' && version.attempt === entry.attempt &&
    !mustHaveEnded(version.lease, entry)) ? null : 'nobody has it';
}

function checkOwner(entry, past) {
  const { before, own } = entry;
  const isOwn = own !== null && own === before;
  if (entry.repeated ? before.response !== entry.response : before.state !== 'p' && !isOwn)
    return 'it was finished before';
  if (isOwn)
    return null;
  if (own !== null)
    return 'its own transaction has another claim';
  if (past.versions.some((version) => version.token > entry.token && version.seen[1] < entry.sent))
    return 'another one has taken it over';
  if (before.seen && isForgotten(before, entry, past.forgets))
    return 'it was forgotten';
  return entry.level === 'READ COMMITTED' && before.xid && canExpire(before, entry) &&
    mustHaveEnded(before.expires, entry) ? 'it has expired' : null;
}

function checkRefusal(entry, past) {
  const { before, own } = entry;
  const newer = past.versions.filter((version) => version.token > entry.token && version.seen[0] <= entry.got);
  const overtaken = newer.length > 0 || (own !== null && own !== before);
  const gone = [before, ...newer].some((version) => version !== own && mayHaveEnded(version.expires, entry)) ||
    (own !== null && own.state === 'gone') || past.forgets.some(({ seen }) => seen[0] <= entry.got);
  const fits = { ID001: overtaken, ID002: gone, ID003: before.state !== 'p' }[entry.error];
  return fits ? null : 'it is the owner';
}

function checkEntry(entry) {
  const past = history(entry.key);
  if (entry.kind === 'forget')
    return null;
  if (entry.error)
    return checkRefusal(entry, past);
  if (entry.kind !== 'claim')
    return checkOwner(entry, past);
  switch (entry.outcome) {
    case 'claimed':
      return checkClaimed(entry, past);
    case 'in_progress':
      return checkInProgress(entry, past);
    default:
      return checkFinished(entry, past);
  }
}

const show = (value) => JSON.stringify(value, (name, part) =>
  (['transaction', 'keys'].includes(name) ? undefined : part));

/* What was known of a key around the time of an answer. */
function around(entry, { versions, forgets }) {
  const near = ({ seen }) => seen[1] > entry.sent - 200 && seen[0] < entry.got + 50;
  return show({ versions: versions.filter(near), forgets: forgets.filter(near) });
}

/* Tokens rise over all keys: a later claim gets a larger token. */
function checkTokens() {
  const claims = answers.filter((entry) => entry.kind === 'claim' && entry.outcome === 'claimed');
  const bySent = [...claims].sort((one, other) => one.sent - other.sent);
  const byGot = [...claims].sort((one, other) => one.got - other.got);
  let highest = 0;
  let next = 0;
  for (const entry of bySent) {
    for (; next < byGot.length && byGot[next].got < entry.sent; next++)
      highest = Math.max(highest, byGot[next].token);
    if (entry.token <= highest)
      report(`${entry.key}: the token ${entry.token} comes after ${highest}`);
  }
}

/* The tables must have the last version of each key. */
async function checkTables(client) {
  const { rows } = await client.query(`SELECT key, token::int, state, attempt, response FROM idem_key`);
  const found = new Map();
  for (const row of rows) {
    const { versions } = history(row.key);
    const last = versions.reduce((one, other) => (one && follows(one, other) ? one : other), null);
    if (found.has(row.key))
      report(`${row.key} is there twice`);
    found.set(row.key, row);
    if (!last || last.token !== row.token || last.state !== row.state ||
      last.attempt !== row.attempt || last.response !== row.response)
      report(`${row.key} is ${show(row)}, and was last ${show(last)}`);
  }
}

/* Learns the ends of transactions whose client does not know them. */
async function learnEnds(client) {
  for (const { transaction, sent } of transactions.splice(0)) {
    const { rows: [{ status }] } = await client.query('SELECT pg_xact_status($1::xid8) AS status', [transaction.xid]);
    count(`unknown: ${status}`);
    if (status === 'committed')
      publish(transaction, [sent, Infinity]);
  }
}

async function check(client) {
  await learnEnds(client);
  checkTokens();
  for (const entry of answers) {
    const wrong = checkEntry(entry);
    if (wrong)
      report(`${entry.kind} ${entry.outcome ?? entry.error ?? ''}: ${wrong}: ${show(entry)} of ${around(entry, history(entry.key))}`);
  }
  await checkTables(client);
  return `${answers.length} answers`;
}

const finisher = new Finisher(CLIENTS);
const members = Array.from({ length: CLIENTS }, (_, i) => new Claimer(i));

obey([...members, finisher, new Turner(CLIENTS + 1), new Turner(CLIENTS + 2), new Janitor(CLIENTS + 3)], check);
