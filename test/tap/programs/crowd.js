/*
 * crowd.js
 *		Clients of a server that may be killed at any time.  Each has a
 *		connection of its own, which it opens again.  Counts what happens,
 *		collects errors, and obeys the commands of a test.
 *
 * Lines of the input:
 *   run PORT         the clients work with the server on that port
 *   stop             they finish their current work; prints "stopped"
 *   check            compares the database with the ledger; prints "wrong ..."
 *                    for each error so far, and then "checked N ..."
 *   counts           prints "counts" and JSON: how often each answer came
 *
 * Environment: SEED, that of libpq.
 */
'use strict';

const readline = require('readline');

const { Client } = require(require.resolve('pg', { paths: [`${__dirname}/../../../docs/recipes`] }));

const RETRY_MS = 25;
const CONNECT_MS = 5000;
const MAX_WRONG = 20;

let port = null;
let stopping = true;
let running = [];
const counts = {};
const wrong = [];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function count(what) {
  counts[what] = (counts[what] ?? 0) + 1;
}

function report(what) {
  if (wrong.length < MAX_WRONG)
    wrong.push(what);
  count('wrong');
}

/* The generator mulberry32. */
function randomizer(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/* The connection has broken: the last statement may have worked or not. */
class Died extends Error {}

/*
 * One client.  greet() is called for each new connection, and act() again and
 * again; both may end in Died.
 */
class Member {
  constructor(number) {
    this.number = number;
    this.random = randomizer(Number(process.env.SEED) + 7919 * number);
  }

  below(limit) {
    return Math.floor(this.random() * limit);
  }

  pick(list) {
    return list[this.below(list.length)];
  }

  /* Sends a query; if the connection breaks, its answer is unknown. */
  async send(sql, parameters) {
    try {
      return (await this.client.query({ text: sql, values: parameters })).rows;
    } catch (error) {
      if (error.severity !== 'ERROR')
        throw new Died(error.message);
      throw error;
    }
  }

  async greet() {}

  async connect() {
    this.client = new Client({ port, connectionTimeoutMillis: CONNECT_MS });
    this.client.on('error', () => {});
    await this.client.connect().catch((error) => {
      throw new Died(error.message);
    });
    await this.greet();
  }

  /* Drops the connection as a crashed client would. */
  crash() {
    this.client.connection.stream.destroy();
  }

  async run() {
    while (!stopping) {
      try {
        await this.connect();
        while (!stopping)
          await this.act();
        await this.client.end();
      } catch (error) {
        if (!(error instanceof Died))
          report(`client ${this.number}: ${error.stack}`);
        this.crash();
        if (!stopping)
          await sleep(RETRY_MS);
      }
    }
  }
}

/* Calls check(client), which returns what it has checked. */
async function checkAll(check) {
  const client = new Client({ port });
  let checked = 'nothing';

  try {
    await client.connect();
    checked = await check(client);
    await client.end();
  } catch (error) {
    report(error.stack);
  }
  wrong.splice(0).forEach((what) => console.log(`wrong ${what}`));
  console.log(`checked ${checked}`);
}

/* Runs the commands of the input; more has other commands, by their verb. */
function obey(members, check, more = {}) {
  const verbs = {
    run(argument) {
      port = Number(argument);
      if (stopping) {
        stopping = false;
        running = members.map((member) => member.run());
      }
    },
    async stop() {
      stopping = true;
      await Promise.all(running);
      console.log('stopped');
    },
    check: () => checkAll(check),
    counts: () => console.log(`counts ${JSON.stringify(counts)}`),
    ...more,
  };
  let last = Promise.resolve();

  readline.createInterface({ input: process.stdin }).on('line', (line) => {
    const [verb, argument] = line.split(' ');
    last = last.then(() => verbs[verb](argument));
  }).on('close', () => process.exit(0));
}

module.exports = { count, Died, Member, obey, randomizer, report, sleep };
