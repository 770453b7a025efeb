/*
 * soak_receiver.js
 *		The endpoints of soak_clients.js, on a port of 127.0.0.1.  All of them
 *		fail sometimes, and tell the ledger what they received and accepted.
 *
 * The last part of a path is the name of the subscription.  The one named picky
 * permanently refuses events that are marked so, and has no other faults, so
 * that no other event can become a dead letter.
 *
 * Environment: SEED; SECRET, of all subscriptions.
 */
'use strict';

const http = require('http');
const { Webhook } = require('standardwebhooks');

const { count, randomizer, report } = require('./crowd');
const ledger = require('./soak_ledger');

const random = randomizer(Number(process.env.SEED));
const webhook = new Webhook(process.env.SECRET);
let down = false;
let patient = false;	// nothing is refused any more

/* The share of requests with each fault, instead of 200. */
const FAULTS = { error: 0.04, busy: 0.01, reset: 0.02, half: 0.01, hang: 0.005, late: 0.01, slow: 0.05 };
const SLOW_MS = 150;
const LATE_MS = 600;	// longer than the subscriptions' timeout

function pickFault() {
  let dice = random();
  for (const [fault, share] of Object.entries(FAULTS)) {
    dice -= share;
    if (dice < 0)
      return fault;
  }
  return 'none';
}

/* The client may have disconnected. */
function accept(response, accepted) {
  if (response.socket?.destroyed)
    return;
  accepted();
  response.writeHead(200).end();
}

function answer(fault, response, accepted) {
  switch (fault) {
    case 'refuse':
      return response.writeHead(422).end();
    case 'error':
      return response.writeHead(500).end('no');
    case 'busy':
      return response.writeHead(503, { 'Retry-After': '0' }).end();
    case 'reset':
      return response.socket.resetAndDestroy();
    case 'half':
      return response.writeHead(200, { 'Content-Length': 100 }).write('half of', () => response.socket?.destroy());
    case 'hang':
      return undefined;
    case 'late':
      return setTimeout(accept, LATE_MS, response, accepted);
    case 'slow':
      return setTimeout(accept, random() * SLOW_MS, response, accepted);
    default:
      return accept(response, accepted);
  }
}

function chooseFault(name, data) {
  if (name === 'picky')
    return data.refused && !patient ? 'refuse' : 'none';
  return down ? 'reset' : pickFault();
}

/* In format cloudevents the type is in a header, and the body is the data. */
function receive(name, { headers }, response, body) {
  const parsed = JSON.parse(body);
  const [type, data] = headers['ce-type'] ? [headers['ce-type'], parsed] : [parsed.type, parsed.data];
  const fault = chooseFault(name, data);

  try {
    webhook.verify(body, headers);
  } catch (error) {
    report(`${name} gets a request that is not signed: ${error.message}`);
  }
  count(`fault ${fault}`);
  answer(fault, response, ledger.arrive(name, headers['webhook-id'], type, data, fault));
}

const server = http.createServer((request, response) => {
  const chunks = [];

  response.on('error', () => {});
  request.on('error', () => {});
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => receive(request.url.split('/').pop(), request, response, Buffer.concat(chunks).toString()));
});

function listen() {
  server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
}

function setDown(value) {
  down = value;
}

function setPatient() {
  patient = true;
}

module.exports = { listen, setDown, setPatient };
