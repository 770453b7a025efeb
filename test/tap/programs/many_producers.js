/*
 * many_producers.js
 *		Producers of events for many subscriptions.  Commands are in crowd.js.
 *
 * What a transaction enqueues it also inserts into the table sent, so that the
 * database says which events have committed.  A key belongs to one producer, so
 * its events are ordered.
 *
 * Environment: SEED; RATE, transactions a second of all producers; CUSTOMERS
 * and ZONES, of the topics zone.N.customer.N.
 */
'use strict';

const { count, Died, Member, obey, sleep } = require('./crowd');

const RATE = Number(process.env.RATE);
const CUSTOMERS = Number(process.env.CUSTOMERS);
const ZONES = Number(process.env.ZONES);
const PRODUCERS = 8;
const OWN_KEYS = 4;
const STRAGGLE_MS = 400;	// longer than the relay waits for a transaction
const LATER_MS = 2000;
const BURST = 50;			// events of one customer, more than a limited endpoint gets at once

const ENQUEUE = `
  INSERT INTO sent
  SELECT outbox_enqueue($1, $2, key => $3, deliver_at => clock_timestamp() + $4 * interval '1 ms'), $1, $2, $3, $4 IS NOT NULL`;

class Producer extends Member {
  async greet() {
    await this.send(`SET synchronous_commit = ${this.random() < 0.2 ? 'off' : 'on'}`);
  }

  async enqueue(customer = 1 + this.below(CUSTOMERS)) {
    const key = this.random() < 0.2 ? null : `${this.number}-${this.below(OWN_KEYS)}`;
    const later = this.random() < 0.05 ? this.below(LATER_MS) : null;

    await this.send(ENQUEUE, [`zone.${customer % ZONES}.customer.${customer}`, { amount: this.below(100) }, key, later]);
  }

  async burst() {
    const customer = 1 + this.below(CUSTOMERS);

    for (let i = 0; i < BURST; i++)
      await this.enqueue(customer);
  }

  async work() {
    const straggles = this.random() < 0.05;

    await this.send('BEGIN');
    if (this.random() < 0.004)
      await this.burst();
    for (let i = this.below(3); i >= 0; i--) {
      await this.enqueue();
      if (straggles)
        await sleep(this.below(STRAGGLE_MS));
    }
    if (this.random() < 0.1) {
      await this.send('SAVEPOINT s');
      await this.enqueue();
      await this.send('ROLLBACK TO s');
    }
    if (this.random() < 0.01)
      throw new Died('producer');
    await this.send(this.random() < 0.1 ? 'ROLLBACK' : 'COMMIT');
    count('acknowledged');
  }

  async act() {
    await sleep(this.below(2000 * PRODUCERS / RATE));
    await this.work();
  }
}

const members = Array.from({ length: PRODUCERS }, (_, i) => new Producer(i));

obey(members, async (client) => {
  const { rows: [{ n }] } = await client.query('SELECT count(*) AS n FROM sent');
  return `${n} events`;
});
