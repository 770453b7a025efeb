/*
 * soak_ledger.js
 *		The answers that the clients of soak_clients.js got, and the events that
 *		have arrived, kept outside of the server; and a comparison of the
 *		database with them.
 *
 * An operation is one transaction with a row in trace.  At the end it was
 * acknowledged or refused; or it is unknown, if the connection broke at its
 * commit, and then the database decides once.  The same holds for an operation
 * that was acknowledged with synchronous_commit = off: a crash may undo it, but
 * not in part, and not after an event of it has arrived.
 */
'use strict';

const { count, report } = require('./crowd');

const operations = new Map();	// by name
const arrivals = new Map();		// by subscription: by event
const eventOf = new Map();		// by webhook-id
const idOf = new Map();			// by event: its webhook-id
const expiries = new Map();		// by subscription: expired reservations
const tokens = new Set();		// of leases that are certainly committed
const start = Date.now();
let clock = 0;					// counts arrivals and acceptances

// ---- operations

class Operation {
  constructor(name, soft) {
    Object.assign(this, { name, soft, state: 'open', effects: 0, bookings: 0, events: [], heard: false });
    operations.set(name, this);
  }

  addEvent(key, { refused = false, notBefore = 0 } = {}) {
    const event = { name: `${this.name}:${this.events.length}`, key, refused, notBefore, position: null, undone: false, cancels: [] };
    this.events.push(event);
    return event;
  }

  /* The present state, for a rollback to a savepoint. */
  mark() {
    return { effects: this.effects, bookings: this.bookings, events: this.events.length };
  }

  undo({ effects, bookings, events }) {
    Object.assign(this, { effects, bookings });
    for (const event of this.events.slice(events))
      event.undone = true;
  }

  end(state) {
    this.state = state;
    this.story = `${this.soft ? 'softly ' : ''}${state} at ${Date.now() - start}`;
    count(state);
  }

  isSure() {
    return this.state === 'acknowledged' && !this.soft;
  }
}

function findOperation(event) {
  return operations.get(event.split(':')[0]);
}

function findEvent(name) {
  return findOperation(name)?.events[name.split(':')[1]];
}

/* A saved answer names the operation that has saved it. */
function hear(scope, key, answer) {
  const operation = operations.get(answer?.operation);

  count('replayed');
  if (!operation || answer.key !== key)
    report(`${scope} ${key} was answered ${JSON.stringify(answer)}, which nobody has said`);
  else if (operation.state === 'refused')
    report(`${scope} ${key} was answered by ${operation.name}, which was rolled back`);
  else
    operation.heard = true;
}

function grant(token) {
  if (tokens.has(token))
    report(`the token ${token} was granted twice`);
  tokens.add(token);
}

// ---- arrivals

/* Each event has one webhook-id, for all subscriptions and attempts. */
function checkId(name, id) {
  const event = findEvent(name);
  const position = Number(/_(\d+)_\d+$/.exec(id)[1]);

  if (!event)
    report(`${name} has arrived, which nobody has enqueued`);
  else if ((event.position ?? position) !== position)
    report(`${name} has the position ${event.position}, and arrives as ${id}`);
  if ((idOf.get(name) ?? id) !== id || (eventOf.get(id) ?? name) !== name)
    report(`${name} arrives as ${id}, which is ${eventOf.get(id)}, and before as ${idOf.get(name)}`);
  idOf.set(name, id);
  eventOf.set(id, name);
  return event;
}

/* Records a request and its fault.  Returns what to call when accepted. */
function arrive(subscription, id, type, data, fault) {
  if (type === 'stock.expired') {
    expiries.set(subscription, (expiries.get(subscription) ?? new Set()).add(data.reservation));
    return () => {};
  }
  const event = checkId(data.event, id);
  if (event?.notBefore > Date.now())
    report(`${data.event} arrives ${event.notBefore - Date.now()} ms before its time`);
  if (!arrivals.has(subscription))
    arrivals.set(subscription, new Map());
  const events = arrivals.get(subscription);
  count(events.has(data.event) ? 'repeated' : 'arrived');
  const arrival = events.get(data.event) ?? { first: ++clock, accepted: null, story: '' };
  events.set(data.event, arrival);
  arrival.story += ` ${fault} at ${Date.now() - start}`;
  return () => {
    if (arrival.accepted === null)
      count('delivered');
    arrival.accepted ??= ++clock;
    arrival.story += ` accepted at ${Date.now() - start}`;
  };
}

// ---- the check

const PRESENT = `
  SELECT operation, sum(t)::int AS traces, sum(e)::int AS effects, sum(b)::int AS bookings FROM (
    SELECT operation, 1 AS t, 0 AS e, 0 AS b FROM trace
    UNION ALL SELECT operation, 0, 1, 0 FROM effect
    UNION ALL SELECT operation, 0, 0, 1 FROM booking) r
  GROUP BY operation`;

/* Each query finds rows that must not exist, as one text. */
const IMPOSSIBLE = [
  `SELECT format('%s %s: %s takes effect while that of %s is remembered', scope, key, operation, earlier) FROM (
     SELECT *, lag(operation) OVER w AS earlier, lag(kept_until) OVER w AS earlier_until
     FROM effect WINDOW w AS (PARTITION BY scope, key ORDER BY token)) e
   WHERE claimed_at < earlier_until`,
  `SELECT format('token %s has %s effects', token, count(*)) FROM effect GROUP BY token HAVING count(*) > 1`,
  `SELECT format('%s %s of %s, %s: %s in the shop, %s in the stock', change, name, sku, quantity, shop.n, stock.n) FROM (
     SELECT change, coalesce(reservation, operation) AS name, sku, quantity, count(*) AS n
     FROM booking GROUP BY 1, 2, 3, 4) shop
   FULL JOIN (
     SELECT change, coalesce(reservation, note) AS name, sku, quantity, count(*) AS n
     FROM stock_history WHERE change <> 'expire' GROUP BY 1, 2, 3, 4) stock
   USING (change, name, sku, quantity)
   WHERE shop.n IS DISTINCT FROM stock.n`,
  `SELECT format('%s of %s was made %s times and ended %s times', reservation, sku, made, ended) FROM (
     SELECT reservation, sku, count(*) FILTER (WHERE change = 'reserve') AS made,
       count(*) FILTER (WHERE change <> 'reserve') AS ended
     FROM stock_history WHERE reservation IS NOT NULL GROUP BY 1, 2) r
   WHERE made <> 1 OR ended > 1`,
  `SELECT format('%s: received %s, confirmed %s, in the shop %s, %s', sku, l.received, l.confirmed, b.received, b.confirmed)
   FROM stock_levels l LEFT JOIN (
     SELECT sku, coalesce(sum(quantity) FILTER (WHERE change = 'receive'), 0) AS received,
       coalesce(sum(quantity) FILTER (WHERE change = 'confirm'), 0) AS confirmed
     FROM booking GROUP BY sku) b USING (sku)
   WHERE (l.received, l.confirmed) IS DISTINCT FROM (b.received, b.confirmed)
     OR l.available < 0 OR l.available + l.reserved <> l.received + l.adjusted - l.confirmed`,
  `SELECT format('%s: %s', sku, detail) FROM stock_verify() WHERE NOT ok`,
  `SELECT format('%s was read %s times', id, count(*)) FROM seen GROUP BY id HAVING count(*) > 1`,
];

function isWhole(operation, row) {
  return row.traces === 1 && row.effects === operation.effects && row.bookings === operation.bookings;
}

/* The database decides about an unknown operation, and must not change. */
function checkOperation(operation, row) {
  if (row && !isWhole(operation, row))
    report(`${operation.name} is there in part: ${JSON.stringify(row)}`);
  if (!row && operation.isSure())
    report(`${operation.name} was acknowledged, and is lost`);
  if (!row && operation.heard && !operation.soft)
    report(`${operation.name} has answered for its key, and is lost`);
  if (row && operation.state === 'refused')
    report(`${operation.name} was ${operation.state}, and is there`);
  operation.state = row ? 'acknowledged' : 'refused';
  operation.soft = operation.heard = false;
}

async function checkOperations(query) {
  const present = new Map((await query(PRESENT)).map((row) => [row.operation, row]));

  for (const operation of operations.values())
    checkOperation(operation, present.get(operation.name));
  for (const name of present.keys())
    if (!operations.has(name) && name !== 'opening')
      report(`${name} is there, which nobody has done`);
}

/* Has it to arrive?  An event can be cancelled by an operation. */
function isCommitted(event) {
  return !event.undone && findOperation(event.name).state === 'acknowledged'
    && !event.cancels.some((operation) => operation.state === 'acknowledged');
}

/* Exactly the committed events must have arrived at a subscription. */
function checkArrivals(subscription, events, dead) {
  for (const event of events) {
    const arrival = arrivals.get(subscription)?.get(event.name);
    const isDead = dead.has(`${subscription} ${event.position}`);
    if (!isCommitted(event)) {
      if (arrival)
        report(`${event.name} was rolled back or cancelled, and has arrived at ${subscription}`);
    } else if (!arrival)
      report(`${event.name} has not arrived at ${subscription}`);
    else if (arrival.accepted === null && !(event.refused && isDead))
      report(`${event.name} was not accepted by ${subscription}, and is not dead`);
    else if (isDead && !event.refused)
      report(`${event.name} is dead at ${subscription}`);
  }
}

/* What is known of an event, to help find the cause of an error. */
function tell(subscription, { name, key, position }) {
  const arrival = arrivals.get(subscription)?.get(name);
  return `${name} of ${key}, position ${position}, ${findOperation(name).story}, at ${subscription}${arrival?.story ?? ' never'}`;
}

/*
 * Before an event of a key comes for the first time, all earlier ones of the
 * key must have been accepted or permanently refused.
 */
function checkOrder(subscription, events) {
  const last = new Map();	// by key: what was accepted last

  for (const event of events) {
    const { name, key, refused } = event;
    const arrival = arrivals.get(subscription)?.get(name);
    if (key === null || !arrival)
      continue;
    const before = last.get(key);
    if (before && arrival.first < before.accepted)
      report(`${tell(subscription, event)} overtakes ${tell(subscription, before.event)}`);
    const accepted = refused ? arrival.first : arrival.accepted ?? Infinity;
    if (!before || accepted > before.accepted)
      last.set(key, { event, accepted });
  }
}

/* What readers have kept counts as arrived and accepted, in the order of n. */
async function takeSeen(query) {
  arrivals.delete('read');
  for (const { id, payload } of await query('SELECT id, payload FROM seen ORDER BY n'))
    arrive('read', id, 'event', payload, 'read')();
}

async function checkEvents(query) {
  const subscriptions = await query('SELECT name, ordered FROM outbox_subscription');
  const deadRows = await query('SELECT subscription, position FROM outbox_dead');
  const dead = new Set(deadRows.map(({ subscription, position }) => `${subscription} ${position}`));
  const events = [...operations.values()].flatMap((operation) => operation.events);

  for (const event of events)
    event.position ??= Number(/_(\d+)$/.exec(idOf.get(event.name))?.[1] ?? 0);
  events.sort((a, b) => a.position - b.position);
  for (const { name, ordered } of subscriptions) {
    checkArrivals(name, events, dead);
    if (ordered)
      checkOrder(name, events);
  }
}

async function checkExpiries(query) {
  const rows = await query("SELECT DISTINCT reservation FROM stock_history WHERE change = 'expire'");
  const booked = new Set(rows.map((row) => row.reservation));

  for (const [subscription, announced] of expiries) {
    for (const reservation of booked)
      if (!announced.has(reservation))
        report(`the end of ${reservation} was not announced to ${subscription}`);
    for (const reservation of announced)
      if (!booked.has(reservation))
        report(`the end of ${reservation} was announced to ${subscription}, and is not booked`);
  }
}

/* First makes everything durable, so that a later crash cannot undo it. */
async function check(client) {
  const query = async (sql) => (await client.query(sql)).rows;

  await query('CHECKPOINT');
  await checkOperations(query);
  for (const sql of IMPOSSIBLE)
    for (const { format } of await query(sql))
      report(format);
  await takeSeen(query);
  await checkEvents(query);
  await checkExpiries(query);
  return `${operations.size} operations`;
}

module.exports = { arrive, check, grant, hear, Operation };
