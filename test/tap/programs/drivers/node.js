/*
 * node.js
 *		Calls the functions by node-postgres, postgres.js or Prisma as an
 *		application does, and prints a line for each step.  t/drivers.pl has the
 *		expected lines.
 *
 * Arguments: the driver, and a file with the example of docs/drivers.md; or a
 * file with SQL, a statement a line, which is executed instead.
 */
'use strict';

const fs = require('fs');
const { setTimeout: sleep } = require('timers/promises');

const SCOPE = 'drivers';
const ANSWER = { order: 17, note: 'Grüße, 漢字' };
const LATER = new Date('2040-01-02T03:04:05Z');

// A driver has a function from a query and positional parameters to rows, one
// that makes JSON of an array, one from an error to its SQLSTATE, transactions,
// and the first argument of its example.
const drivers = {
  async pg() {
    const { Client } = require(require.resolve('pg', { paths: [`${__dirname}/../../../../docs/recipes`] }));
    const client = new Client();
    await client.connect();
    const rows = async (sql, ...values) => (await client.query(sql, values)).rows;
    return {
      rows,
      array: JSON.stringify,
      stateOf: (error) => error.code,
      transaction: async (work) => {
        await rows('BEGIN');
        await work(rows).finally(() => rows('ROLLBACK'));
      },
      connection: client,
      end: () => client.end(),
    };
  },

  async postgres() {
    const sql = require('postgres')({ max: 1, onnotice: () => {} });
    const rowsOf = (connection) => (text, ...values) => connection.unsafe(text, values);
    return {
      rows: rowsOf(sql),
      array: (value) => value,
      stateOf: (error) => error.code,
      transaction: (work) => sql.begin((connection) => work(rowsOf(connection))),
      connection: sql,
      end: () => sql.end(),
    };
  },

  async prisma() {
    const { PrismaPg } = require('@prisma/adapter-pg');
    const { PrismaClient } = require('@prisma/client');
    const prisma = new PrismaClient({ adapter: new PrismaPg({ max: 1 }) });
    const rowsOf = (connection) => (text, ...values) => (text.includes('idem_complete')
      ? connection.$executeRawUnsafe(text, ...values) : connection.$queryRawUnsafe(text, ...values));
    return {
      rows: rowsOf(prisma),
      array: JSON.stringify,
      stateOf: (error) => error.meta.driverAdapterError.cause.code,
      transaction: (work) => prisma.$transaction((connection) => work(rowsOf(connection))),
      connection: prisma,
      end: () => prisma.$disconnect(),
    };
  },
};

async function claims({ rows }) {
  const claim = (request) => rows('SELECT outcome, token, attempt, response FROM idem_claim($1, $2, $3, $4)',
    'key', SCOPE, '40 s', request);

  const [{ outcome, token, attempt }] = await claim('request');
  console.log(`claim: ${outcome} ${attempt}`);
  console.log(`claim again: ${(await claim('request'))[0].outcome}`);
  console.log(`claim for another request: ${(await claim('other'))[0].outcome}`);
  await rows('SELECT idem_complete($1, $2, $3, $4)', 'key', token, ANSWER, SCOPE);
  const [replay] = await claim('request');
  console.log(`replay: ${replay.outcome} ${replay.response.order} ${replay.response.note}`);

  const many = await rows('SELECT key, outcome FROM idem_claim_many($1, $2)', ['key', 'new'], SCOPE);
  console.log(`claim many: ${many.map((row) => `${row.key} ${row.outcome}`).join(', ')}`);
}

async function events({ rows }) {
  const [{ position }] = await rows('SELECT outbox_enqueue($1, $2, $3, $4, $5, $6) AS position',
    'order.placed', ANSWER, 'ann', 'order', { 'X-Shop': 'hats' }, LATER);
  console.log(`enqueue: ${position > 0}`);
}

async function reservations({ rows, array }) {
  const [one] = await rows('SELECT outcome FROM stock_reserve($1, $2, $3, $4, $5)', 'hat', 2, 'one', '2 h', 'ann');
  console.log(`reserve: ${one.outcome}`);
  const [short] = await rows('SELECT outcome FROM stock_reserve($1, $2, $3)', 'hat', 1, 'two');
  console.log(`reserve by three parameters: ${short.outcome}`);
  const [many] = await rows('SELECT outcome FROM stock_reserve_many($1, $2)', { hat: 1, scarf: 2 }, 'many');
  console.log(`reserve many: ${many.outcome}`);

  const [{ outcome, shortages }] = await rows('SELECT outcome, shortages FROM stock_reserve_many($1, $2)',
    array([{ sku: 'hat', quantity: 100 }, { sku: 'scarf', quantity: 1 }]), 'too many');
  const list = shortages.map((line) => `${line.sku} ${line.wanted} ${line.available} ${line.missing}`);
  console.log(`shortage: ${outcome} ${list.join(', ')}`);

  const [confirmed] = await rows('SELECT outcome FROM stock_confirm($1, $2)', 'many', ['hat']);
  console.log(`confirm: ${confirmed.outcome}`);
  const [{ state, lines }] = await rows('SELECT state, lines FROM stock_reservation_status($1)', 'many');
  console.log(`status: ${state}, ${lines.map((line) => `${line.sku} ${line.state}`).join(', ')}`);
}

async function lostLease({ rows, transaction, stateOf }) {
  const claim = () => rows('SELECT token FROM idem_claim($1, $2, $3)', 'lost', SCOPE, '1 ms');
  const [{ token }] = await claim();
  await sleep(50);
  await claim();
  try {
    await transaction(async (rows) => {
      await rows('SELECT stock_reserve($1, $2, $3)', 'hat', 1, 'lost');
      await rows('SELECT idem_complete($1, $2, $3, $4)', 'lost', token, ANSWER, SCOPE);
    });
  } catch (error) {
    console.log(`lost lease: ${stateOf(error)}`);
  }
  const [level] = await rows('SELECT available, reserved FROM stock_level($1)', 'hat');
  console.log(`level: ${level.available} ${level.reserved}`);
}

async function example({ connection }, file) {
  const checkout = new Function('module', `${fs.readFileSync(file)}; return checkout`)({});
  const outcome = (key, lines) => checkout(connection, key, lines).then((answer) => answer.outcome, (error) => error.message);

  console.log(`checkout: ${await outcome('order-1', { cup: 2, plate: 2 })}`);
  console.log(`checkout again: ${await outcome('order-1', { cup: 2, plate: 2 })}`);
  console.log(`checkout of another order: ${await outcome('order-1', { cup: 3 })}`);
  console.log(`checkout of too much: ${await outcome('order-2', { cup: 20 })}`);
}

async function executeAll({ rows }, file) {
  for (const statement of fs.readFileSync(file, 'utf8').trim().split('\n')) {
    await rows(statement);
  }
  console.log('executed');
}

async function main([name, file]) {
  const driver = await drivers[name]();

  if (file.endsWith('.sql')) {
    await executeAll(driver, file);
    await driver.end();
    return;
  }
  await claims(driver);
  await events(driver);
  await reservations(driver);
  await lostLease(driver);
  await example(driver, file);
  await driver.end();
}

main(process.argv.slice(2));
