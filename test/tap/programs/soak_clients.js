/*
 * soak_clients.js
 *		Clients that use all modules of the extension at once, the endpoints and
 *		readers of their events, and the ledger of all (soak_ledger.js).
 *		Commands are in crowd.js.
 *
 * Further commands:
 *   down MS      all endpoints but one drop every connection for so long
 *   patient      nothing is refused permanently any more
 *
 * Readers take the events of the subscription "read", by the function
 * read_some, or with a lease, and keep them in the table seen.
 *
 * Environment: CLIENTS; TTL_MS, that of the server's keys; that of soak_receiver.js.
 */
'use strict';

const { count, Died, Member, obey, report, sleep } = require('./crowd');
const ledger = require('./soak_ledger');
const receiver = require('./soak_receiver');

const TTL_MS = Number(process.env.TTL_MS);
const ORDER_TTL_MS = 10 * TTL_MS;
const SKUS = 40;
const KEYS = 16;			// of a scope, used by all clients at the same time
const KEYS_BACK = 400;		// older keys that are sometimes used again
const RECENT = 8;			// orders that a client uses again
const OWN_KEYS = 3;			// event keys of a client
const READERS = 2;
const LEASE_MS = 100;		// of a reader
const STRAGGLE_MS = 300;

/* Errors that may happen: late owners, conflicts with other clients. */
const REFUSALS = new Set(['ID001', 'ID002', 'ID003', '40P01', '53400', '22012']);

const MS = (time) => `extract(epoch FROM ${time}) * 1000`;
const SQL = {
  claim: `
    SELECT outcome, token, attempt, response, ${MS('statement_timestamp()')} AS asked_at, ${MS('clock_timestamp()')} AS claimed_at
    FROM idem_claim($1, scope => $2, lease => $3, request => $1, ttl => $4, wait => $5)`,
  many: `
    SELECT key, outcome, token, response, ${MS('statement_timestamp()')} AS asked_at, ${MS('clock_timestamp()')} AS claimed_at
    FROM idem_claim_many($1, scope => $2, wait => $3)`,
  complete: `
    SELECT ${MS('statement_timestamp()')} AS asked_at
    FROM idem_complete($1, $2, response => $3, scope => $4)`,
  fail: `
    SELECT ${MS('statement_timestamp()')} AS asked_at
    FROM idem_fail($1, $2, error => $3, scope => $4, retry => $5)`,
  renew: 'SELECT idem_renew($1, $2, lease => $3, scope => $4)',
  trace: 'INSERT INTO trace VALUES ($1)',
  effect: 'INSERT INTO effect VALUES ($1, $2, $3, $4, $5, $6)',
  reserve: 'SELECT outcome FROM stock_reserve_many($1, $2, ttl => $3)',
  bookReserve: `
    INSERT INTO booking SELECT $1::text, 'reserve', $2::text, key, value::bigint FROM jsonb_each_text($3)`,
  bookSettled: `
    INSERT INTO booking SELECT $1::text, $2::stock_change, reservation, sku, quantity FROM booking
    WHERE reservation = $3 AND change = 'reserve' RETURNING 1`,
  receive: `
    WITH t AS (INSERT INTO trace VALUES ($1)), b AS (INSERT INTO booking VALUES ($1, 'receive', NULL, $2, $3))
    SELECT stock_receive($2, $3, $1)`,
  enqueue: `
    SELECT outbox_enqueue('shop.event', $1, key => $2, deliver_at => clock_timestamp() + $3 * interval '1 ms', dedup_key => $1::jsonb ->> 'event') AS position`,
  cancel: 'SELECT outbox_cancel($1) AS cancelled',
  read: 'SELECT read_some(0.05) AS events',
  fetch: `SELECT token, json_agg(json_build_object('id', id, 'type', type, 'payload', payload) ORDER BY n) AS events FROM (
    SELECT *, row_number() OVER () AS n FROM outbox_fetch('read', 10, lease => '${LEASE_MS} ms')) f GROUP BY token`,
  keep: "INSERT INTO seen (id, payload) SELECT e ->> 'id', e -> 'payload' FROM json_array_elements($1::json) e",
  ack: "SELECT outbox_ack('read', $1)",
};
const TRACED = 'WITH t AS (INSERT INTO trace VALUES ($4))';

/* The keys of a scope; clients compete for the newest ones. */
class Keys {
  constructor() {
    this.newest = KEYS;
    this.granted = new Map();	// by key: the largest committed token
    this.leases = new Map();	// by key: until when the owner has the lease
  }

  pick(client) {
    if (client.random() < 0.05)
      return `${Math.max(1, this.newest - client.below(KEYS_BACK))}`;
    this.newest += client.random() < 0.3 ? 1 : 0;
    return `${this.newest - client.below(KEYS)}`;
  }

  /* Answers may arrive in another order than they were given. */
  grant(key, token, until) {
    ledger.grant(token);
    if (this.isLate(key, token))
      return;
    this.granted.set(key, token);
    this.leases.set(key, until);
  }

  /* Is there a newer token, and had its lease not ended at that time? */
  isLeased(key, token, at) {
    return token > (this.granted.get(key) ?? 0) && at < (this.leases.get(key) ?? 0);
  }

  letGo(key, token) {
    if (!this.isLate(key, token))
      this.leases.delete(key);
  }

  isLate(key, token) {
    return token < (this.granted.get(key) ?? 0);
  }
}

const requests = new Keys();
const messages = new Keys();
const jobs = new Keys();

class Rollback extends Error {}

class Client extends Member {
  constructor(number) {
    super(number);
    this.made = 0;
    this.orders = [];
    this.delayed = [];			// events that wait for their time
  }

  async greet() {
    this.soft = this.random() < 0.2;
    await this.send(`SET synchronous_commit = ${this.soft ? 'off' : 'on'}`);
  }

  newOperation() {
    return new ledger.Operation(`${this.number}.${++this.made}`, this.soft);
  }

  async act() {
    const dice = this.random();
    if (dice < 0.30) await this.order();
    else if (dice < 0.42) await this.batch();
    else if (dice < 0.64) await this.job();
    else if (dice < 0.80) await this.settle();
    else if (dice < 0.88) await this.announce();
    else if (dice < 0.91) await this.straggle();
    else if (dice < 0.95) await this.recant();
    else await this.restock();
  }

  // ---- transactions, and how they are recorded

  refuse(error) {
    count(`refused ${error.code}`);
    if (!REFUSALS.has(error.code))
      report(`refused: ${error.code} ${error.stack}`);
  }

  /* Some transactions are rolled back, and some clients die before the end. */
  chooseEnd() {
    const dice = this.random();
    return dice < 0.82 ? 'COMMIT' : dice < 0.95 ? 'ROLLBACK' : 'crash';
  }

  /* Returns whether the transaction has committed, as far as is known. */
  async transaction(work) {
    const operation = this.newOperation();
    let state = 'refused';

    try {
      await this.send('BEGIN');
      await work(operation);
      await this.send(SQL.trace, [operation.name]);
      const end = this.chooseEnd();
      if (end === 'crash')
        throw new Died('client');
      state = end === 'COMMIT' ? 'unknown' : 'refused';
      await this.send(end);
      state = end === 'COMMIT' ? 'acknowledged' : 'refused';
      return state === 'acknowledged' && operation;
    } catch (error) {
      if (error instanceof Died)
        throw error;
      state = 'refused';
      if (!(error instanceof Rollback))
        this.refuse(error);
      await this.send('ROLLBACK');
      return false;
    } finally {
      operation.end(state);
    }
  }

  /* Runs a single-statement transaction.  Returns its answer, or null. */
  async alone(work, operation = null) {
    let state = 'refused';

    try {
      const answer = await work();
      state = 'acknowledged';
      return answer;
    } catch (error) {
      if (error instanceof Died) {
        state = 'unknown';
        throw error;
      }
      this.refuse(error);
      return null;
    } finally {
      operation?.end(state);
    }
  }

  /* Event keys belong to one client, so that it knows the order of events. */
  eventKey() {
    return this.random() < 0.15 ? null : `${this.number}-${this.below(OWN_KEYS)}`;
  }

  newEvent(operation) {
    const delay = this.random() < 0.05 ? 50 + this.below(400) : null;
    const event = operation.addEvent(delay === null ? this.eventKey() : null, {
      refused: this.random() < 0.02,
      notBefore: delay === null ? 0 : Date.now() + delay,
    });
    return [event, [{ event: event.name, refused: event.refused }, event.key, delay]];
  }

  /* Sometimes twice, which is one event. */
  async enqueue(operation) {
    const [event, parameters] = this.newEvent(operation);
    const [{ position }] = await this.send(SQL.enqueue, parameters);
    event.position = Number(position);
    if (event.notBefore > 0)
      this.delayed = [...this.delayed, event].slice(-RECENT);
    if (this.random() > 0.1)
      return;
    count('enqueued again');
    const [again] = await this.send(SQL.enqueue, parameters);
    if (again.position !== position)
      report(`${event.name} was enqueued twice, at ${position} and ${again.position}`);
  }

  /* Cancels an event that waits for its time, perhaps too late. */
  async recant() {
    if (this.delayed.length === 0)
      return;
    const event = this.pick(this.delayed);
    this.delayed = this.delayed.filter((other) => other !== event);
    await this.transaction(async (one) => {
      const [{ cancelled }] = await this.send(SQL.cancel, [event.position]);
      count(cancelled ? 'cancelled' : 'not cancelled');
      if (cancelled)
        event.cancels.push(one);
    });
  }

  /* The effect of a claimed key: at most one while the key is remembered. */
  async takeEffect(operation, scope, key, { token, claimed_at: claimedAt }, keptUntil) {
    operation.effects++;
    await this.send(SQL.effect, [operation.name, scope, key, token, claimedAt, keptUntil]);
  }

  /* Records the answer to a claim that did not get the key. */
  replay(scope, key, { outcome, response }) {
    count(outcome);
    if (outcome === 'completed' || outcome === 'failed')
      ledger.hear(scope, key, response);
    else if (outcome !== 'in_progress')
      report(`${scope} ${key} is ${outcome}`);
  }

  // ---- orders

  newLines() {
    const lines = {};
    for (let i = 1 + this.below(3); i > 0; i--)
      lines[`sku-${this.random() < 0.4 ? this.below(4) : this.below(SKUS)}`] = 1 + this.below(3);
    return lines;
  }

  async reserve(operation, name) {
    const lines = this.newLines();
    const ttl = this.random() < 0.4 ? 50 + this.below(400) : 2000;
    const [{ outcome }] = await this.send(SQL.reserve, [lines, name, `${ttl} ms`]);

    count(outcome);
    if (outcome !== 'reserved')
      throw new Rollback();
    operation.bookings += Object.keys(lines).length;
    await this.send(SQL.bookReserve, [operation.name, name, lines]);
  }

  /* Part of a transaction that is rolled back to a savepoint, or not. */
  async trySomething(operation) {
    const mark = operation.mark();
    let fails = this.random() < 0.5;

    await this.send('SAVEPOINT s');
    try {
      await this.reserve(operation, `${operation.name}-more`);
      await this.enqueue(operation);
      await this.send('SELECT 1 / $1::int', [this.random() < 0.2 ? 0 : 1]);
    } catch (error) {
      if (error instanceof Died)
        throw error;
      if (!(error instanceof Rollback))
        this.refuse(error);
      fails = true;
    }
    if (fails)
      operation.undo(mark);
    count(fails ? 'rolled back to savepoint' : 'released');
    await this.send(fails ? 'ROLLBACK TO s' : 'RELEASE s');
  }

  async order() {
    const key = requests.pick(this);
    const operation = await this.transaction(async (one) => {
      const [claim] = await this.send(SQL.claim,
        [key, 'request', null, `${ORDER_TTL_MS} ms`, this.random() < 0.7]);
      if (claim.outcome !== 'claimed') {
        this.replay('request', key, claim);
        return;
      }
      await this.reserve(one, one.name);
      if (this.random() < 0.4)
        await this.trySomething(one);
      await this.takeEffect(one, 'request', key, claim, Number(claim.asked_at) + ORDER_TTL_MS);
      for (let i = this.below(3); i >= 0; i--)
        await this.enqueue(one);
      await this.send(SQL.complete, [key, claim.token, { operation: one.name, key }, 'request']);
    });
    if (operation.bookings > 0)
      this.orders = [...this.orders, operation].slice(-RECENT);
  }

  /* Confirms an order, or cancels it. */
  async settle() {
    if (this.orders.length === 0)
      return;
    const order = this.pick(this.orders);
    const kind = this.random() < 0.7 ? 'confirm' : 'cancel';
    let outcome;
    const committed = await this.transaction(async (one) => {
      [{ outcome }] = await this.send(`SELECT outcome FROM stock_${kind}($1)`, [order.name]);
      count(`${kind} ${outcome}`);
      if (outcome === 'unknown' && order.isSure())
        report(`${order.name} was acknowledged, and is unknown`);
      if (outcome !== 'done')
        throw new Rollback();
      const booked = await this.send(SQL.bookSettled, [one.name, kind, order.name]);
      one.bookings += booked.length;
      await this.enqueue(one);
    });
    if (committed || outcome !== 'done')
      this.orders = this.orders.filter((other) => other !== order);
  }

  async restock() {
    const operation = this.newOperation();
    operation.bookings = 1;
    const parameters = [operation.name, `sku-${this.below(SKUS)}`, 5 + this.below(20)];
    await this.alone(() => this.send(SQL.receive, parameters), operation);
  }

  // ---- messages, and events by themselves

  async batch() {
    const keys = Array.from({ length: 2 + this.below(4) }, () => messages.pick(this));

    await this.transaction(async (one) => {
      const claims = await this.send(SQL.many, [keys, 'message', this.random() < 0.7]);
      const seen = new Set();
      for (const claim of claims) {
        if (claim.outcome === 'claimed') {
          await this.takeEffect(one, 'message', claim.key, claim, Number(claim.asked_at) + TTL_MS);
          await this.send(SQL.complete, [claim.key, claim.token, { operation: one.name, key: claim.key }, 'message']);
        } else if (!seen.has(claim.key))
          this.replay('message', claim.key, claim);
        seen.add(claim.key);
      }
      await this.enqueue(one);
    });
  }

  async announce() {
    const operation = this.newOperation();
    const [event, parameters] = this.newEvent(operation);
    const rows = await this.alone(() => this.send(`${TRACED} ${SQL.enqueue}`, [...parameters, operation.name]), operation);
    if (rows)
      event.position = Number(rows[0].position);
  }

  /* Stays open for longer than the relay waits for it. */
  async straggle() {
    await this.transaction(async (one) => {
      for (let i = 1 + this.below(3); i > 0; i--) {
        await this.enqueue(one);
        await sleep(this.below(STRAGGLE_MS));
      }
      await this.enqueue(one);
    });
  }

  // ---- jobs, with a lease that may end

  async job() {
    const key = jobs.pick(this);
    const leaseMs = 20 + this.below(100);
    const [claim] = await this.send(SQL.claim,
      [key, 'job', `${leaseMs} ms`, `${TTL_MS} ms`, this.random() < 0.7]);
    if (claim.outcome !== 'claimed') {
      this.replay('job', key, claim);
      return;
    }
    count(claim.attempt > 1 ? 'taken over' : 'claimed');
    if (jobs.isLeased(key, Number(claim.token), Number(claim.claimed_at)))
      report(`job ${key} is granted with the token ${claim.token} while ${jobs.granted.get(key)} has it`);
    if (!this.soft)
      jobs.grant(key, Number(claim.token), Number(claim.asked_at) + leaseMs);
    if (this.random() < 0.1)
      return;
    await sleep(this.below(160));
    if (this.random() < 0.3)
      await this.alone(() => this.renew(key, claim));
    await this.finish(key, claim);
  }

  /* An owner that had lost its lease before the call must be refused. */
  async asOwner(what, key, { token }, call) {
    const late = jobs.isLate(key, Number(token));

    jobs.letGo(key, Number(token));
    try {
      const rows = await call();
      count(what);
      if (late)
        report(`job ${key}: ${what} by the token ${token}, after ${jobs.granted.get(key)} was granted`);
      return rows;
    } catch (error) {
      if (error.code === 'ID001')
        count('late');
      throw error;
    }
  }

  renew(key, claim) {
    return this.asOwner('renew', key, claim, () => this.send(SQL.renew, [key, claim.token, '50 ms', 'job']));
  }

  /* Gives the key back for the next owner. */
  giveBack(key, claim) {
    return this.asOwner('give back', key, claim, () => this.send(SQL.fail, [key, claim.token, null, 'job', true]));
  }

  /* Completed or failed permanently: the key has had its effect. */
  end(what, sql, more, key, claim) {
    return this.transaction(async (one) => {
      const parameters = [key, claim.token, { operation: one.name, key }, 'job', ...more];
      await this.enqueue(one);
      const [{ asked_at: askedAt }] = await this.asOwner(what, key, claim, () => this.send(sql, parameters));
      await this.takeEffect(one, 'job', key, claim, Number(askedAt) + TTL_MS);
    });
  }

  async finish(key, claim) {
    const dice = this.random();
    if (dice < 0.65) await this.end('complete', SQL.complete, [], key, claim);
    else if (dice < 0.8) await this.end('fail', SQL.fail, [false], key, claim);
    else await this.alone(() => this.giveBack(key, claim));
  }
}

/* Reads events, and keeps them in the transaction that acknowledges them. */
class Reader extends Member {
  async act() {
    try {
      if (this.random() < 0.7) await this.read();
      else await this.lease();
    } catch (error) {
      if (error instanceof Died)
        throw error;
      if (error.code === 'ID001')
        count('lapsed');
      else
        report(`reader: ${error.code} ${error.stack}`);
      await this.send('ROLLBACK');
    }
  }

  async end() {
    const dice = this.random();
    if (dice > 0.95)
      throw new Died('reader');
    await this.send(dice < 0.85 ? 'COMMIT' : 'ROLLBACK');
  }

  async read() {
    await this.send('BEGIN');
    const [{ events }] = await this.send(SQL.read);
    await this.end();
    if (events === 0)
      await this.send("CALL outbox_wait('read', '100 ms')");
  }

  /* The lease may lapse, and then somebody else reads the events. */
  async lease() {
    const [batch] = await this.send(SQL.fetch);
    if (!batch)
      return;
    await sleep(this.below(1.5 * LEASE_MS));
    await this.send('BEGIN');
    await this.send(SQL.keep, [JSON.stringify(batch.events)]);
    await this.send(SQL.ack, [batch.token]);
    count('leased');
    await this.end();
  }
}

const clients = Array.from({ length: Number(process.env.CLIENTS) }, (_, i) => new Client(i + 1));
const readers = Array.from({ length: READERS }, (_, i) => new Reader(clients.length + i + 1));
obey([...clients, ...readers], ledger.check, {
  down(ms) {
    receiver.setDown(true);
    setTimeout(receiver.setDown, Number(ms), false);
  },
  patient: receiver.setPatient,
});
receiver.listen();
