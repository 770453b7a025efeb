/*
 * proxy_clients.js
 *		Clients that place orders, and repeat each until it has an answer; then
 *		sometimes once more, to compare the answers.
 *
 * Lines of the input:
 *   counts       prints "counts", and how many orders have an answer
 *   stop         lets each client finish its order; prints "stopped", and the
 *                answers as JSON: the id of the order of each request
 *
 * Environment: that of psql, for the proxy; CLIENTS, CUSTOMERS.
 */
'use strict';

const readline = require('readline');
const { setTimeout: sleep } = require('timers/promises');

const { Client } = require(require.resolve('pg', { paths: [`${__dirname}/../../../docs/recipes`] }));

const CLIENTS = Number(process.env.CLIENTS);
const CUSTOMERS = Number(process.env.CUSTOMERS);
const TRY_MS = 2000;
const PAUSE_MS = 20;
const REPEATED = 0.3;		// of the orders, once they have an answer

const answers = {};
const different = [];
let stopping = false;

class Shopper {
  /* One try; a connection on which it fails is not used again. */
  async try(order) {
    if (!this.client) {
      this.client = new Client({ query_timeout: TRY_MS, connectionTimeoutMillis: TRY_MS });
      this.client.on('error', () => {});
      await this.client.connect();
    }
    const { rows } = await this.client.query('SELECT place_order($1, $2, $3) AS answer', order);
    return rows[0].answer;
  }

  async repeat(order) {
    for (;;) {
      try {
        return await this.try(order);
      } catch (error) {
        this.client?.end().catch(() => {});
        this.client = null;
        await sleep(PAUSE_MS);
      }
    }
  }

  async run(name) {
    for (let n = 1; !stopping; n++) {
      const order = [`${name}-${n}`, `customer ${Math.floor(Math.random() * CUSTOMERS)}`, 'hat'];
      const answer = await this.repeat(order);
      if (answer.request !== order[0])
        different.push(order[0]);
      if (Math.random() < REPEATED && (await this.repeat(order)).order !== answer.order)
        different.push(order[0]);
      answers[order[0]] = answer.order;
    }
    await this.client?.end();
  }
}

const shoppers = Array.from({ length: CLIENTS }, (_, i) => new Shopper().run(`client${i}`));

const input = readline.createInterface({ input: process.stdin });

input.on('line', async (line) => {
  if (line === 'counts') {
    console.log(`counts ${Object.keys(answers).length}`);
    return;
  }
  stopping = true;
  await Promise.all(shoppers);
  console.log(`stopped ${JSON.stringify({ answers, different })}`);
  input.close();
});
console.log('started');
