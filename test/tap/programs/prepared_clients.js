/*
 * prepared_clients.js
 *		Clients that prepare their transactions, and end those of each other, and
 *		a ledger of what each of them has done to stock and to the outbox.
 *		Commands and environment are in crowd.js.
 *
 * A transaction is decided before it is prepared.  Whoever takes it up later
 * commits or rolls back as was decided, and again if the answer was lost.
 *
 * Another line of the input:
 *   end              ends all that is still prepared; prints "ended"
 *
 * Environment: CLIENTS, SKUS, OPENING: what there is of each item at the start.
 */
'use strict';

const {
  count, Died, Member, obey, report,
} = require('./crowd');

const SKUS = Number(process.env.SKUS);
const OPENING = Number(process.env.OPENING);
const CLIENTS = Number(process.env.CLIENTS);
const UNDECIDED_MAX = 5 * CLIENTS; // less than max_prepared_transactions
const BUSY = ['55000', '42704']; // another session is about to end it, or has

const sku = (number) => `sku-${number}`;

const undecided = []; // prepared, or perhaps prepared
const received = new Map(); // by sku, less what was confirmed, of all that was committed
const reservations = new Map(); // lines by name, of those that are open
const events = new Set(); // numbers of committed events
let names = 0;

const add = (item, quantity) => received.set(item, (received.get(item) ?? OPENING) + quantity);

/* Adds the effects of a transaction that has been committed. */
function learn({ steps, number }) {
  for (const step of steps) {
    if (step.kind === 'receive')
      add(step.sku, step.quantity);
    else if (step.kind === 'reserve')
      reservations.set(step.name, step.lines);
    else
      reservations.delete(step.name);
    if (step.kind === 'confirm')
      Object.entries(step.lines).forEach(([item, quantity]) => add(item, -quantity));
  }
  events.add(number);
}

function ended(transaction, committed) {
  count(committed ? 'committed' : 'rolled back');
  if (committed)
    learn(transaction);
  else if (transaction.taken)
    reservations.set(...transaction.taken);
}

class Shopper extends Member {
  async receive(steps) {
    const step = { kind: 'receive', sku: sku(this.below(SKUS)), quantity: 1 + this.below(3) };
    await this.send('SELECT stock_receive($1, $2)', [step.sku, step.quantity]);
    steps.push(step);
  }

  async reserve(steps, name) {
    const lines = {};
    for (let i = this.below(3); i >= 0; i--)
      lines[sku(this.below(SKUS))] = 1 + this.below(2);
    const [{ outcome }] = await this.send('SELECT outcome FROM stock_reserve_many($1, $2, $3)',
      [JSON.stringify(lines), name, '1 day']);
    count(outcome);
    if (outcome === 'reserved')
      steps.push({ kind: 'reserve', name, lines });
  }

  /* No other client knows of it until this transaction has ended. */
  async settle(steps, name, lines) {
    const kind = this.pick(['confirm', 'cancel']);
    const [{ outcome }] = await this.send(`SELECT stock_${kind}($1) AS outcome`, [name]);
    if (outcome !== 'done')
      report(`${kind} of ${name}: ${outcome}`);
    steps.push({ kind, name, lines });
  }

  async savepoint() {
    await this.send('SAVEPOINT s');
    await this.send('SELECT stock_receive($1, 1000)', [sku(this.below(SKUS))]);
    await this.send('SELECT stock_reserve($1, 1, $2)', [sku(this.below(SKUS)), `undone ${names}`]);
    await this.send('ROLLBACK TO s');
    count('rolled back to savepoint');
  }

  async steps(transaction) {
    const { number, steps } = transaction;
    await this.send("SELECT outbox_enqueue('t', jsonb_build_object('n', $1::int))", [number]);
    if (this.random() < 0.5)
      await this.receive(steps);
    if (this.random() < 0.3)
      await this.savepoint();
    if (this.random() < 0.7)
      await this.reserve(steps, `order ${number}`);
    if (transaction.taken)
      await this.settle(steps, ...transaction.taken);
  }

  async prepare() {
    const number = ++names;
    const transaction = { number, gid: `t${number}`, steps: [], commit: this.random() < 0.5 };

    if (reservations.size > 0 && this.random() < 0.4) {
      transaction.taken = this.pick([...reservations]);
      reservations.delete(transaction.taken[0]);
    }
    try {
      await this.send('BEGIN');
      [{ pid: transaction.pid }] = await this.send('SELECT pg_backend_pid() AS pid');
      await this.steps(transaction);
    } catch (error) {
      ended(transaction, false);
      throw error;
    }
    try {
      await this.send(`PREPARE TRANSACTION '${transaction.gid}'`);
      transaction.prepared = true;
      count('prepared');
    } finally {
      undecided.push(transaction);
    }
  }

  /* A session whose client has gone may still be preparing or ending it. */
  async find({ gid, pid, prepared }) {
    const busy = prepared ? [] :
      await this.send("SELECT FROM pg_stat_activity WHERE pid = $1 AND query LIKE 'PREPARE%'", [pid]);
    const there = await this.send('SELECT FROM pg_prepared_xacts WHERE gid = $1', [gid]);
    return busy.length > 0 ? null : there.length > 0;
  }

  async endOne(transaction) {
    const there = await this.find(transaction);

    if (there === false)
      return ended(transaction, transaction.ending === true && transaction.commit);
    if (there === null)
      return undecided.push(transaction);
    transaction.ending = true;
    await this.send(`${transaction.commit ? 'COMMIT' : 'ROLLBACK'} PREPARED '${transaction.gid}'`);
    return ended(transaction, transaction.commit);
  }

  async end() {
    const [transaction] = undecided.splice(this.below(undecided.length), 1);

    try {
      await this.endOne(transaction);
      count('acknowledged');
    } catch (error) {
      undecided.push(transaction);
      if (!BUSY.includes(error.code))
        throw error;
    }
  }

  async endAll() {
    await this.connect();
    while (undecided.length > 0)
      await this.end();
    await this.client.end();
  }

  async act() {
    const wait = undecided.length === 0 ? 0 : undecided.length / UNDECIDED_MAX;
    await (this.random() < wait ? this.end() : this.prepare());
  }
}

/* Compares what is there with what was committed. */
async function check(client) {
  const rows = async (sql) => (await client.query(sql)).rows;
  const there = await rows('SELECT reservation, sku, quantity::int FROM stock_holds');
  const held = new Map();

  for (const { reservation, sku: item, quantity } of there)
    held.set(reservation, { ...held.get(reservation), [item]: quantity });
  for (const [name, lines] of reservations) {
    if (JSON.stringify(Object.entries(lines).sort()) !== JSON.stringify(Object.entries(held.get(name) ?? {}).sort()))
      report(`${name} has ${JSON.stringify(held.get(name))} instead of ${JSON.stringify(lines)}`);
  }
  for (const name of held.keys()) {
    if (!reservations.has(name))
      report(`${name} is reserved`);
  }
  for (const { sku: item, available, reserved } of await rows('SELECT sku, available::int, reserved::int FROM stock_levels')) {
    if (available + reserved !== (received.get(item) ?? OPENING))
      report(`${item} has ${available} and ${reserved} instead of ${received.get(item)}`);
  }
  const logged = new Set((await rows("SELECT (payload ->> 'n')::int AS n FROM outbox_log WHERE topic = 't'")).map(({ n }) => n));
  for (const number of new Set([...logged, ...events])) {
    if (logged.has(number) !== events.has(number))
      report(`event ${number} is ${logged.has(number) ? '' : 'not '}in the log`);
  }
  for (const { sku: item, detail } of await rows('SELECT sku, detail FROM stock_verify() WHERE NOT ok'))
    report(`${item}: ${detail}`);
  return `${events.size + held.size} things`;
}

const members = Array.from({ length: CLIENTS }, (_, number) => new Shopper(number));
const last = new Shopper(CLIENTS);

obey(members, check, { end: () => last.endAll().then(() => console.log('ended')) });
