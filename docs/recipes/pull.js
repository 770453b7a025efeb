// pull.js
//
// The common part of the programs that publish events to a broker. It repeats:
// wait, fetch a batch, publish it, acknowledge it.
//
// - Order per key: an event is published after the broker has confirmed the one
//   before it of the same key. If an event is refused, the later ones of its key
//   are not published; all of them are fetched again by the retry schedule.
// - If the broker does not answer, or breaks the connection, the program
//   connects again, and publishes what was not confirmed, one event at a time.
//   So it finds an event that breaks the connection each time, and refuses it.
// - When the lease of a batch has ended, nothing more of it is published, since
//   another program may have fetched the events.
//
// A program passes to run() a function that connects to its broker and returns
// an object with close() and publish(event). publish() returns when the broker
// has confirmed the event, throws Refused if it refuses this event, and any
// other error if it is not known what happened. In place of publish(event) there
// can be publishBatch(events), which keeps the order by itself.
//
// Environment: SUBSCRIPTION, the name of a subscription without a URL;
// MAX_EVENTS of a batch; LEASE_S, for how long a batch is this program's;
// CONFIRM_S, how long to wait for the broker; and that of database.js.

'use strict';

const { setTimeout: sleep } = require('timers/promises');
const { isRetryable } = require('idempotency-pg');
const { connectPool } = require('./database');

const SUBSCRIPTION = process.env.SUBSCRIPTION ?? 'broker';
const MAX_EVENTS = Number(process.env.MAX_EVENTS ?? 100);
const LEASE_S = Number(process.env.LEASE_S ?? 60);
const CONFIRM_MS = 1000 * Number(process.env.CONFIRM_S ?? 10);
const WAIT = '10 s';
const PAUSE_MS = 500;
const TRIES = 3; // of an event that is published alone

class Refused extends Error {}
class Abandoned extends Error {}

const pool = connectPool({ max: 1 });
let stopping = false;
let wake = () => {};

// ---------------------------------------------------------------------------
// The database
// ---------------------------------------------------------------------------

// Repeats a query until it has an answer, over restarts of the server.
async function query(sql, values) {
  for (;;) {
    try {
      return (await pool.query(sql, values)).rows;
    } catch (error) {
      if (!isRetryable(error) || stopping) {
        throw error;
      }
      console.error(`database: ${error.message}`);
    }
    await sleep(PAUSE_MS);
  }
}

// The payload is fetched as text, because JavaScript would round large numbers.
// The end of the lease is counted from before the call, so that it is not later
// here than in the database.
async function fetchBatch() {
  const end = performance.now() + 1000 * LEASE_S;
  const events = await query(
    `SELECT token, position, id, topic, key, type, payload::text AS body, headers, created_at
     FROM outbox_fetch($1, max_events => $2, lease => make_interval(secs => $3))`,
    [SUBSCRIPTION, MAX_EVENTS, LEASE_S],
  );
  return { events, end };
}

async function acknowledge({ events }) {
  const failed = events.filter(({ refused }) => refused);
  try {
    await query('SELECT outbox_ack($1, $2, failed => $3, error => $4)', [
      SUBSCRIPTION, events[0].token, failed.map(({ position }) => position), failed[0]?.refused,
    ]);
    console.log(`published ${events.length - failed.length} refused ${failed.length}`);
  } catch (error) {
    if (error.code !== 'ID001') {
      throw error;
    }
    console.error('the lease has ended, the events are fetched again');
  }
}

// ---------------------------------------------------------------------------
// The broker
// ---------------------------------------------------------------------------

// Waits for the broker, but not forever.
async function inTime(promise) {
  const timer = new AbortController();
  const late = sleep(CONFIRM_MS, null, { signal: timer.signal }).then(
    () => { throw new Error(`no answer within ${CONFIRM_MS} ms`); },
    () => {},
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
  }
}

async function close(broker) {
  try {
    await inTime(broker.close());
  } catch {
    // it was closed already, or is not to be waited for
  }
}

// Connects, as often as necessary. A connection that is made too late is closed.
async function connect(open, end) {
  while (!stopping && performance.now() < end) {
    const opening = open();
    try {
      return await inTime(opening);
    } catch (error) {
      console.error(`broker: ${error.message}`);
      opening.then(close, () => {});
    }
    await sleep(PAUSE_MS);
  }
  throw new Abandoned('the broker does not answer');
}

// Marks an event as refused, and with it the later ones of its key.
function refuse({ events }, event, reason) {
  const first = events.indexOf(event);
  events.forEach((other, i) => {
    if (i === first || (i > first && event.key !== null && other.key === event.key)) {
      other.refused = reason || 'refused';
    }
  });
}

async function publishChain(broker, batch, chain) {
  for (const event of chain) {
    if (performance.now() >= batch.end) {
      throw new Abandoned('the lease has ended');
    }
    try {
      await inTime(broker.publish(event));
      event.confirmed = true;
    } catch (error) {
      if (!(error instanceof Refused)) {
        throw error;
      }
      refuse(batch, event, error.message);
      return;
    }
  }
}

// Publishes the events of different keys at the same time, and those of one key
// one after the other. Events without a key have no order. All are waited for,
// so that nothing is in flight after that.
async function publishChains(broker, batch, events) {
  const chains = new Map();
  for (const event of events) {
    const name = event.key ?? Symbol('no key');
    if (!chains.has(name)) {
      chains.set(name, []);
    }
    chains.get(name).push(event);
  }
  const results = await Promise.allSettled(
    [...chains.values()].map((chain) => publishChain(broker, batch, chain)),
  );
  const failure = results.find(({ status }) => status === 'rejected');
  if (failure) {
    throw failure.reason;
  }
}

async function publishEvents(broker, batch, events) {
  if (!broker.publishBatch) {
    await publishChains(broker, batch, events);
    return;
  }
  await inTime(broker.publishBatch(events));
  for (const event of events) {
    event.confirmed = true;
  }
}

// Publishes a batch, and returns the connection, which may be a new one.
async function publishBatch(open, connection, batch) {
  let broker = connection;
  let alone = false;
  let tries = 0;
  for (;;) {
    const left = batch.events.filter(({ confirmed, refused }) => !confirmed && !refused);
    if (left.length === 0) {
      return broker;
    }
    broker ??= await connect(open, batch.end);
    try {
      await publishEvents(broker, batch, alone ? left.slice(0, 1) : left);
      tries = 0;
    } catch (error) {
      const isRefused = error instanceof Refused;
      if (!isRefused) {
        console.error(`broker: ${error.message}`);
        await close(broker);
        broker = null;
      }
      if (error instanceof Abandoned) {
        throw error;
      }
      tries += 1;
      if (alone && (isRefused || tries >= TRIES)) {
        refuse(batch, left[0], error.message);
        tries = 0;
      } else if (!alone) {
        alone = true;
        tries = 0;
      }
    }
  }
}

// ---------------------------------------------------------------------------
// The loop
// ---------------------------------------------------------------------------

// Sleeps until there is something to fetch, or until stop().
async function wait() {
  await new Promise((resolve, reject) => {
    wake = resolve;
    query('CALL outbox_wait($1, $2)', [SUBSCRIPTION, WAIT]).then(resolve, reject);
  });
}

async function loop(open) {
  let broker = null;
  while (!stopping) {
    try {
      broker ??= await connect(open, Infinity);
      const batch = await fetchBatch();
      if (batch.events.length > 0) {
        broker = await publishBatch(open, broker, batch);
        await acknowledge(batch);
      } else if (!stopping) {
        await wait();
      }
    } catch (error) {
      if (!(error instanceof Abandoned)) {
        throw error;
      }
      console.error(error.message);
      broker = null;
    }
  }
}

// Finishes the batch that is out. Without a broker, its lease runs out.
function stop() {
  stopping = true;
  wake();
}

async function run(open) {
  process.once('SIGTERM', stop);
  process.once('SIGINT', stop);
  console.log(`publishing the events of ${SUBSCRIPTION}`);
  try {
    await loop(open);
    process.exit(0);
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}

module.exports = { Refused, run };
