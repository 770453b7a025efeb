/*
 * stock_clients.js
 *		Clients of a shop that reserve, wait, confirm, cancel and forget, and a
 *		ledger of the answers that they got.  Commands and environment are in
 *		crowd.js.
 *
 * A reservation belongs to one client, so the ledger knows its possible states:
 * each answer keeps the states that fit, and a transaction with an unknown end
 * keeps the states before and after it.  Some names are shared by all clients,
 * and some are carts, whose lines change; of these only the log is checked.
 *
 * Environment: CLIENTS, SKUS.
 */
'use strict';

const { count, Died, Member, obey, report } = require('./crowd');

const SKUS = Number(process.env.SKUS);
const HOT_SKUS = 4;
const RECENT = 12;		// reservations that a client uses again
const SHARED_NAMES = 6;	// at the same time, by all clients
const SERVED_LATE_MS = 60 * 1000;

const sku = (number) => `sku-${number}`;

const reservations = new Map();	// by name
const notes = new Map();		// of received stock and corrections
let sharedSince = 0;

// ---- the ledger

/*
 * The state of a reservation: a letter for each line, in the order of the skus.
 * - not there, w waiting, o open, c confirmed, x cancelled, e expired, l left
 * cancelled: it was cancelled before the other lines expired, and these were
 * reinstated.  No later reinstatement opens it.  The log shows it as cancelled.
 */
function open(name, lines) {
  const skus = Object.keys(lines).sort();
  const entry = {
    name, lines, skus,
    states: new Set(['-'.repeat(skus.length)]),
    earliest: Infinity,	// when it can expire
    latest: 0,			// when it must have expired
    ttls: [],			// of the calls that may have made it wait
    told: [],
  };
  reservations.set(name, entry);
  return entry;
}

/* The states after it may have been served, and may have expired. */
function lapse(states, earliest, now) {
  const served = [...states, ...[...states].map((state) => state.replaceAll('w', 'o'))];
  return new Set(now < earliest ? served :
    [...served, ...served.map((state) => state.replaceAll('o', 'e').replaceAll('w', 'e'))]);
}

const SETTLED = { confirm: 'c', cancel: 'x' };
const ALREADY = { already_confirmed: 'c', already_cancelled: 'x', expired: 'e' };

/* Opens what has expired; if nothing has, what was cancelled and not left. */
function reinstate(state) {
  if (state.includes('e'))
    return state.replaceAll('x', 'l').replaceAll('e', 'o');
  return state.includes('x') ? state.replaceAll('x', 'o') : null;
}

const shown = (state) => state.replaceAll('l', 'x');

/* Returns the state after an answer, or null if the answer does not fit. */
function next(state, { kind, answer, among, byLine }) {
  const meant = [...state].filter((_, i) => among[i]);
  const has = (letter) => shown(meant.join('')).includes(letter);
  const absent = !/[^-]/.test(state);

  switch (`${kind} ${answer}`) {
    case 'reserve reserved':
      return absent || !/[^o]/.test(state) ? state.replaceAll('-', 'o') : null;
    case 'reserve waiting':
      return absent || state === 'w' ? 'w' : null;
    case 'reserve insufficient':
      return absent ? state : null;
    case 'confirm done':
    case 'cancel done': {
      const letter = SETTLED[kind];
      if (state === 'w')
        return kind === 'cancel' ? 'x' : null;
      const fits = has('o') && (byLine ?
        meant.every((one) => one === 'o' || shown(one) === letter) : true);
      return fits ? [...state].map((one, i) => (among[i] && one === 'o' ? letter : one)).join('') : null;
    }
    case 'extend done':
      return state.includes('o') ? state : null;
    case 'reinstate done':
      return reinstate(state);
    case 'reinstate insufficient':
      return /[xe]/.test(state) ? state : null;
    case 'reinstate already_reserved':
      return state.includes('o') && !/[xe]/.test(state) ? state : null;
    case 'reinstate already_confirmed':
      return state.includes('c') && !/[oxe]/.test(state) ? state : null;
    case 'reinstate expired':
    case 'reinstate already_cancelled':
      return null;
    default:
      if (answer === 'waiting')
        return state === 'w' ? state : null;
      if (answer === 'unknown')
        return absent ? state : null;
      return has(ALREADY[answer]) && (byLine || !state.includes('o')) ? state : null;
  }
}

/* When it expires, after an answer. */
function moveExpiry(entry, { kind, answer, expires, ttl, waitTtl, sent, got }) {
  if (waitTtl)
    entry.ttls.push(ttl);
  if (answer === 'unknown end') {
    if (kind === 'reserve' || kind === 'reinstate')
      entry.earliest = Math.min(entry.earliest, sent + Math.min(ttl, waitTtl || ttl));
    entry.latest = Math.max(entry.latest, got + ttl + waitTtl);
  } else if (answer === 'waiting') {
    entry.earliest = Math.min(expires, sent + Math.min(...entry.ttls));
    entry.latest = expires + Math.max(...entry.ttls) + SERVED_LATE_MS;
  } else if (kind === 'reserve') {
    entry.earliest = expires;
    entry.latest = expires;
  } else if (kind === 'extend') {
    entry.earliest = Math.max(entry.earliest, expires);
    entry.latest = expires;
  } else if (kind === 'reinstate') {
    entry.earliest = Math.min(entry.earliest, expires);
    entry.latest = Math.max(entry.latest, expires);
  }
}

const MOVES = { reserve: ['reserved', 'waiting'], extend: ['done'], reinstate: ['done'] };

/*
 * Applies the answers of a transaction that has ended.  sure: it is known to
 * have committed.
 */
function learn(steps, sure, got) {
  for (const step of steps) {
    if (step.note)
      notes.set(step.note, { ...step, sure });
  }
  for (const entry of new Set(steps.map((step) => step.entry).filter((one) => one && !one.shared && !one.cart))) {
    let states = entry.states;
    for (const step of steps.filter((one) => one.entry === entry)) {
      const before = lapse(states, entry.earliest, step.got ?? got);
      const answers = step.answer === undefined ? unanswered(step) : [step.answer];
      states = new Set();
      for (const answer of answers)
        for (const state of before) {
          const after = next(state, { ...step, answer });
          if (after !== null)
            states.add(after);
        }
      entry.told.push(`${step.kind} ${step.skus ?? ''} ${step.answer ?? '?'} ${sure ? '' : 'unknown end'}`);
      if (sure && states.size === 0) {
        report(`${entry.name}: ${step.answer} does not fit ${[...before]}: ${entry.told.join(', ')}`);
        states = before;
      }
      if (step.answer === 'done' && step.kind !== 'reinstate' && step.sent > entry.latest)
        report(`${entry.name}: ${step.kind} done ${step.sent - entry.latest} ms after it has expired`);
      if (!sure)
        moveExpiry(entry, { ...step, answer: 'unknown end', got });
      else if (MOVES[step.kind]?.includes(step.answer))
        moveExpiry(entry, step);
    }
    entry.states = sure ? states : new Set([...lapse(entry.states, entry.earliest, got), ...states]);
  }
}

/* What a statement whose answer is unknown may have done. */
function unanswered({ kind, waitTtl }) {
  if (kind !== 'reserve')
    return ['done', 'expired'];
  return waitTtl ? ['reserved', 'waiting'] : ['reserved'];
}

// ---- what clients do

const QUERIES = {
  one: 'SELECT outcome, expires_at FROM stock_reserve($1, $2, $3, ttl => $4)',
  wait: 'SELECT outcome, expires_at FROM stock_reserve($1, $2, $3, ttl => $4, wait => true, wait_ttl => $5)',
  many: 'SELECT outcome, expires_at FROM stock_reserve_many($1, $2, ttl => $3)',
  cart: 'SELECT outcome FROM stock_reserve_many($1, $2, ttl => $3, anew => $4, partial => $5)',
  change: 'SELECT outcome FROM stock_change_many($1, $2, ttl => $3)',
  confirm: 'SELECT outcome FROM stock_confirm($1, $2)',
  cancel: 'SELECT outcome FROM stock_cancel($1, $2)',
  extend: 'SELECT outcome, expires_at FROM stock_extend($1, $2)',
  reinstate: 'SELECT outcome, expires_at FROM stock_reinstate($1, $2)',
  receive: 'SELECT stock_receive($1, $2, $3)',
  adjust: 'SELECT stock_adjust($1, $2, $3)',
};

class Shopper extends Member {
  constructor(number) {
    super(number);
    this.recent = [];
    this.made = 0;
  }

  /* Clients compete for a few hot items; the others change. */
  sku() {
    return sku(this.random() < 0.5 ? Math.floor(this.random() * HOT_SKUS) :
      Math.floor(this.random() * SKUS));
  }

  ttl() {
    return this.random() < 0.3 ? 20 + Math.floor(this.random() * 400) : 3600 * 1000;
  }

  order() {
    const lines = {};
    const wanted = this.random() < 0.5 ? 1 : 2 + Math.floor(this.random() * 2);
    for (let i = 0; i < wanted; i++)
      lines[this.sku()] = 1 + Math.floor(this.random() * 4);
    return lines;
  }

  newEntry() {
    const entry = open(`client-${this.number}-${++this.made}`, this.order());
    this.recent.push(entry);
    if (this.recent.length > RECENT)
      this.recent.shift();
    return entry;
  }

  /* A name that all clients use, with the same lines. */
  sharedEntry() {
    const number = sharedSince + Math.floor(this.random() * SHARED_NAMES);
    if (this.random() < 0.02)
      sharedSince++;
    const name = `shared-${number}`;
    if (!reservations.has(name)) {
      open(name, { [sku(number % HOT_SKUS)]: 1, [sku(SKUS - 1 - (number % HOT_SKUS))]: 2 });
      reservations.get(name).shared = true;
    }
    return reservations.get(name);
  }

  reserve(entry) {
    const ttl = this.ttl();
    const [[only, quantity], ...others] = Object.entries(entry.lines);
    const waitTtl = others.length === 0 && !entry.shared && this.random() < 0.4 ? this.ttl() : 0;
    const one = waitTtl ? [QUERIES.wait, [only, quantity, entry.name, `${ttl} ms`, `${waitTtl} ms`]] :
      [QUERIES.one, [only, quantity, entry.name, `${ttl} ms`]];
    return {
      kind: 'reserve', entry, ttl, waitTtl, among: entry.skus.map(() => true),
      query: others.length === 0 ? one :
        [QUERIES.many, [JSON.stringify(entry.lines), entry.name, `${ttl} ms`]],
    };
  }

  /* A step with one of the client's last carts. */
  cart() {
    const number = Math.floor(this.made / RECENT) - Math.floor(this.random() * 3);
    const name = `cart-${this.number}-${Math.max(number, 0)}`;
    const entry = reservations.get(name) ?? open(name, {});
    const kind = this.pick(['cart', 'cart', 'change', 'change', 'confirm', 'cancel']);
    const order = JSON.stringify(this.order());
    const flags = [this.random() < 0.7, this.random() < 0.5];

    this.made++;
    entry.cart = true;
    return {
      kind, entry, ttl: 0, among: [],
      query: [QUERIES[kind], kind === 'cart' ? [order, name, `${this.ttl()} ms`, ...flags] :
        kind === 'change' ? [name, order, `${this.ttl()} ms`] : [name, null]],
    };
  }

  settle(entry, kind) {
    const partly = entry.skus.length > 1 && this.random() < 0.4;
    const skus = partly ? entry.skus.filter(() => this.random() < 0.5) : [];
    return {
      kind, entry, skus, ttl: 0, waitTtl: 0, byLine: skus.length > 0,
      among: entry.skus.map((one) => skus.length === 0 || skus.includes(one)),
      query: [QUERIES[kind], [entry.name, skus.length === 0 ? null : skus]],
    };
  }

  prolong(entry, kind) {
    const ttl = this.ttl();
    return {
      kind, entry, ttl, waitTtl: 0, among: entry.skus.map(() => true),
      query: [QUERIES[kind], [entry.name, `${ttl} ms`]],
    };
  }

  supply() {
    const correct = this.random() < 0.3;
    const note = `note-${this.number}-${++this.made}`;
    const of = this.sku();
    const quantity = correct ? this.pick([-3, -2, -1, 1, 2, 3]) : 10 + Math.floor(this.random() * 10);
    return {
      kind: correct ? 'adjust' : 'receive', note, sku: of, quantity,
      query: [QUERIES[correct ? 'adjust' : 'receive'], [of, quantity, note]],
    };
  }

  step() {
    const dice = this.random();
    if (dice < 0.08)
      return this.supply();
    if (dice < 0.14)
      return this.cart();
    if (dice < 0.42 || this.recent.length === 0)
      return this.reserve(this.newEntry());
    const entry = dice > 0.92 ? this.sharedEntry() : this.pick(this.recent);
    const kind = this.pick(['reserve', 'confirm', 'confirm', 'cancel', 'cancel', 'extend', 'reinstate', 'reinstate']);
    return kind === 'reserve' ? this.reserve(entry) :
      kind === 'confirm' || kind === 'cancel' ? this.settle(entry, kind) : this.prolong(entry, kind);
  }

  async take(step) {
    step.sent = Date.now();
    const [row] = await this.send(...step.query);
    step.got = Date.now();
    step.answer = row.outcome === 'unknown_sku' ? 'insufficient' : row.outcome ?? 'done';
    step.expires = row.expires_at ? row.expires_at.getTime() : null;
    count(`${step.kind} ${step.answer}`);
  }

  /* After an error the statement has changed nothing. */
  refused(step, error) {
    count(`refused ${error.code}`);
    const otherCart = step.entry?.cart && error.code === 'ID004';
    if (!otherCart && !['ID005', 'ID006', '53400', '40P01'].includes(error.code))
      report(`${step.kind} of ${step.entry?.name ?? step.note} is refused: ${error.code} ${error.message}`);
  }

  async alone() {
    const step = this.step();
    try {
      await this.take(step);
      learn([step], true, Date.now());
      count('acknowledged');
    } catch (error) {
      if (error instanceof Died) {
        learn([step], false, Date.now());
        count('unknown');
        throw error;
      }
      this.refused(step, error);
    }
  }

  /* Several steps, with savepoints, some of which are rolled back. */
  async together() {
    const levels = [[]];
    let end = this.random() < 0.75 ? 'COMMIT' : 'ROLLBACK';
    let ending = false;
    let failed = false;

    try {
      await this.send('BEGIN');
      for (let i = 1 + Math.floor(this.random() * 6); i > 0; i--) {
        const dice = this.random();
        if (failed || (dice < 0.15 && levels.length > 1)) {
          await this.send(`ROLLBACK TO s${levels.length - 1}`);
          levels[levels.length - 1] = [];
          failed = false;
          count('rolled back to savepoint');
        } else if (dice < 0.25 && levels.length > 1) {
          await this.send(`RELEASE s${levels.length - 1}`);
          levels[levels.length - 2].push(...levels.pop());
        } else if (dice < 0.45) {
          await this.send(`SAVEPOINT s${levels.length}`);
          levels.push([]);
        }
        const step = this.step();
        try {
          await this.take(step);
          levels[levels.length - 1].push(step);
        } catch (error) {
          if (error instanceof Died)
            throw error;
          this.refused(step, error);
          failed = true;
          if (levels.length === 1)
            break;
        }
      }
      if (failed)
        end = 'ROLLBACK';
      ending = end === 'COMMIT';
      await this.send(end);
      if (ending)
        learn(levels.flat(), true, Date.now());
      count(ending ? 'acknowledged' : 'rolled back');
    } catch (error) {
      if (!(error instanceof Died)) {
        report(`${end} fails: ${error.code} ${error.message}`);
        throw new Died();
      }
      if (ending)
        learn(levels.flat(), false, Date.now());
      count(ending ? 'unknown' : 'died before its end');
      throw error;
    }
  }

  async act() {
    await (this.random() < 0.5 ? this.alone() : this.together());
  }
}

// ---- the check

const ADDS = new Set(['receive', 'adjust', 'cancel', 'expire']);
const TAKES = new Set(['reserve', 'reinstate']);
const ENDS = new Set(['cancel', 'expire']);
const LETTERS = { reserve: 'o', reinstate: 'o', confirm: 'c', cancel: 'x', expire: 'e' };
const FOLLOWS = { reserve: '-', reinstate: 'xe', confirm: 'o', cancel: 'o', expire: 'o' };

/*
 * Never oversold: in the order of the log no sum is negative.  The end of a wait
 * gives nothing back.
 */
function checkSums(rows) {
  const available = {};
  for (const { id, sku: of, change, quantity, waited } of rows) {
    available[of] = (available[of] ?? 0) +
      (ADDS.has(change) && !waited ? quantity : TAKES.has(change) ? -quantity : 0);
    if (available[of] < 0)
      report(`${of} is oversold by ${-available[of]} with the row ${id}`);
  }
  return available;
}

/*
 * Each line must have been reserved once and closed at most once.  In a cart a
 * line can be opened again, with another quantity.
 */
function readLines(rows) {
  const lines = new Map();
  for (const row of rows) {
    const { sku: of, change, quantity, reservation } = row;
    if (!reservation)
      continue;
    const key = `${reservation} ${of}`;
    const entry = reservations.get(reservation);
    const line = lines.get(key) ?? { letter: '-', quantity };
    row.waited = ENDS.has(change) && line.letter === '-' && entry?.ttls.length > 0;
    if (entry?.cart && TAKES.has(change) && line.letter !== 'o') {
      line.letter = FOLLOWS[change][0];
      line.quantity = quantity;
    }
    if (!row.waited && (!FOLLOWS[change].includes(line.letter) || line.quantity !== quantity))
      report(`${key}: ${change} of ${quantity} after ${line.letter} of ${line.quantity}`);
    if (!entry?.cart && entry?.lines[of] !== quantity)
      report(`${key}: ${change} of ${quantity} that nobody has asked for`);
    line.letter = LETTERS[change];
    lines.set(key, line);
  }
  return lines;
}

function checkHolds(lines, holds) {
  const held = new Map(holds.map((hold) => [`${hold.reservation} ${hold.sku}`, hold.quantity]));
  for (const [key, line] of lines)
    if ((line.letter === 'o' ? line.quantity : undefined) !== held.get(key))
      report(`${key}: is ${line.letter} by the log, and the hold is ${held.get(key)}`);
  for (const key of held.keys())
    if (!lines.has(key))
      report(`${key}: is held and not in the log`);
}

function checkReservations(lines, waiting) {
  const now = Date.now();
  let checked = 0;
  for (const entry of reservations.values()) {
    const state = waiting.has(entry.name) ? 'w' :
      entry.skus.map((one) => lines.get(`${entry.name} ${one}`)?.letter ?? '-').join('');
    const possible = [...lapse(entry.states, entry.earliest, now)];
    const fitting = possible.filter((one) => shown(one) === state);
    if (entry.cart)
      continue;
    if (!entry.shared && fitting.length === 0)
      report(`${entry.name}: is ${state}, and can only be ${possible}: ${entry.told.join(', ')}`);
    if (entry.shared && /-/.test(state) && /[^-]/.test(state))
      report(`${entry.name}: is ${state}, which is reserved in part`);
    checked += /[^-]/.test(state);
    if (!entry.shared && fitting.length > 0)
      entry.states = new Set(fitting);
  }
  return checked;
}

function checkNotes(rows) {
  const found = new Map();
  for (const { note, sku: of, quantity, change } of rows) {
    if (change !== 'receive' && change !== 'adjust')
      continue;
    const wanted = notes.get(note);
    if (note !== 'opening' && (!wanted || wanted.sku !== of || wanted.quantity !== quantity))
      report(`${change} of ${quantity} of ${of}, ${note}: nobody was told`);
    if (note !== 'opening' && found.has(note))
      report(`${note} is there twice`);
    found.set(note, true);
  }
  for (const [note, { sure, kind }] of notes)
    if (sure && !found.has(note))
      report(`${kind}, ${note}: is lost`);
}

async function check(client) {
  const query = async (sql) => (await client.query(sql)).rows;
  await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
  const rows = await query('SELECT id, sku, change, quantity::int, reservation, note FROM stock_history ORDER BY id');
  const holds = await query('SELECT reservation, sku, quantity::int FROM stock_holds');
  const waiting = await query('SELECT reservation FROM stock_waiting');
  const ledger = await query('SELECT sku, available::int FROM stock_ledger');
  await client.query('COMMIT');
  const lines = readLines(rows);
  const sums = checkSums(rows);
  checkHolds(lines, holds);
  checkNotes(rows);
  for (const entry of ledger)
    if (entry.available !== sums[entry.sku])
      report(`${entry.sku}: ${entry.available} by root record and log, ${sums[entry.sku]} by the history`);
  const checked = checkReservations(lines, new Set(waiting.map((one) => one.reservation)));
  for (const { sku: of, detail } of await query('SELECT sku, detail FROM stock_verify() WHERE NOT ok'))
    report(`${of}: ${detail}`);
  return `${checked} reservations`;
}

const shoppers = Array.from({ length: Number(process.env.CLIENTS) }, (_, i) => new Shopper(i + 1));
obey(shoppers, check);
