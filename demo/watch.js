'use strict';
/*
 * watch.js: how it stands, in the shop and at its receiver.
 *
 *     const watch = await startWatching(directory, seen);    // seen: its counters
 *     watch.happened(kind, text);                            // notes what it did
 *     watch.arrived();                                       // counts an event
 *     watch.state();                                         // all, for the page
 *
 * It reads the numbers of the shop from the database every half a second, and
 * writes DIRECTORY/progress for demo/run: "DONE TOTAL WHAT", the numbers, and the
 * last of what has happened. The environment says where the database is, as for
 * psql, and how many COPIES of each request are sent.
 */

const fs = require('node:fs');
const path = require('node:path');
const postgres = require('postgres');

const INTERVAL_MS = 500;
const TICKER_LINES = 12;
const NEW_LINES_MAX = 2; // of the ticker, at a time
const CHART_SECONDS = 60;

const query = fs.readFileSync(path.join(__dirname, 'state.sql'), 'utf8');
const pretty = (number) => number.toLocaleString('en-US');

// A file appears at once and whole, so that a reader can wait for it.
function writeFile(file, text) {
  fs.writeFileSync(`${file}.tmp`, text);
  fs.renameSync(`${file}.tmp`, file);
}

async function startWatching(directory, seen) {
  const sql = postgres({ max: 1, onnotice: () => {} });
  const latest = new Map(); // what has happened since the last look, by kind
  const told = new Map(); // when the ticker had a kind last
  const perSecond = new Map(); // events, by second
  let lastSecond = 0; // in which an event has arrived
  let ticker = []; // { kind, text }, the newest last
  let shop = null;

  const second = () => Math.floor(Date.now() / 1000);

  function count() {
    lastSecond = second();
    perSecond.set(lastSecond, (perSecond.get(lastSecond) ?? 0) + 1);
  }

  // The kinds that the ticker did not have for the longest time come next.
  function extendTicker() {
    const kinds = [...latest.keys()].sort((a, b) => (told.get(a) ?? 0) - (told.get(b) ?? 0));
    for (const kind of kinds.slice(0, NEW_LINES_MAX)) {
      ticker.push({ kind, text: latest.get(kind) });
      told.set(kind, performance.now());
    }
    ticker = ticker.slice(-TICKER_LINES);
    latest.clear();
  }

  function state() {
    const callsTotal = shop.requests * Number(process.env.COPIES);
    const due = shop.orders + shop.paid + shop.expired; // one event each
    let phase = 'settled';
    if (shop.calls < callsTotal) {
      phase = 'open';
    } else if (shop.unpaid > 0 || seen.arrived < due) {
      phase = 'settling';
    }
    return {
      ...seen, ...shop, calls_total: callsTotal, due, phase, ticker,
      rate: perSecond.get(second() - 1) ?? 0,
      per_second: Array.from({ length: CHART_SECONDS },
        (_, i) => perSecond.get(lastSecond - CHART_SECONDS + 1 + i) ?? 0),
    };
  }

  function describe() {
    const now = state();
    const bar = now.phase === 'open'
      ? `${now.calls} ${now.calls_total} of ${pretty(now.calls_total)} checkouts answered`
      : `${now.arrived} ${now.due} of ${pretty(now.due)} events delivered`;
    const numbers = `${pretty(now.orders)} orders, ${pretty(now.repeated)} copies recognised, `
      + `${pretty(now.paid)} paid, ${pretty(now.expired)} expired, ${pretty(now.arrived)} events`;
    return [bar, numbers, ...ticker.map(({ text }) => text)].map((line) => `${line}\n`).join('');
  }

  // The database may be away for a while, when it is restarted.
  async function look() {
    try {
      const since = shop?.now ?? new Date(0);
      [shop] = await sql.unsafe(query, [since]);
      shop.happened.forEach(({ kind, text }) => latest.set(kind, text));
      extendTicker();
      writeFile(path.join(directory, 'progress'), describe());
    } catch (error) {
      console.error(`no look at the shop: ${error.message}`);
    }
    setTimeout(look, INTERVAL_MS);
  }
  await look();

  return { arrived: count, happened: (kind, text) => latest.set(kind, text), state };
}

module.exports = { startWatching, writeFile };
