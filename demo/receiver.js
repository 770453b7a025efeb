'use strict';
/*
 * receiver.js DIRECTORY: the other end of the webhooks, and not a good one.
 *
 * It checks the signature of each request with the standardwebhooks package,
 * as any receiver would, and takes in each event once, by its webhook-id. Some
 * requests it fails on purpose: it answers 500, or that it is busy, or it takes
 * the event in and cuts the connection before it has answered, so that the
 * same event has to come again.
 *
 * It listens on a free port of 127.0.0.1, which it writes to DIRECTORY/port.
 * When its standard input ends, or at SIGTERM, it writes what it has seen to
 * DIRECTORY/summary.json and ends. WEBHOOK_SECRET has the secret.
 */

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { Webhook } = require('standardwebhooks');

const ERROR_SHARE = 0.02;
const BUSY_SHARE = 0.01;
const CUT_SHARE = 0.02;
const BUSY_SECONDS = 1;
const BODY_BYTES_MAX = 1024 * 1024;

const directory = process.argv[2];
const webhook = new Webhook(process.env.WEBHOOK_SECRET);

const seen = {
  requests: 0,
  badly_signed: 0,
  failed: 0, // answered 500
  busy: 0, // answered 429
  cut: 0, // taken in, but not answered
  duplicates: 0,
  out_of_order: 0,
};
const events = new Map(); // by webhook-id
const latest = new Map(); // timestamp of the last event taken in, by order

// Milliseconds since 1970, with the microseconds that a Date would drop.
function milliseconds(timestamp) {
  const [seconds, fraction] = timestamp.replace('Z', '').split('.');
  return Date.parse(`${seconds}Z`) + Number(`0.${fraction}`) * 1000;
}

function now() {
  return performance.timeOrigin + performance.now();
}

// The events of one order have to come in the order in which they happened.
function noteOrder(order, timestamp) {
  if (timestamp < latest.get(order)) {
    seen.out_of_order += 1;
  } else {
    latest.set(order, timestamp);
  }
}

function takeIn(id, event) {
  if (events.has(id)) {
    seen.duplicates += 1;
    return;
  }
  const order = event.data.reservation ?? `order-${event.data.order}`;
  noteOrder(order, event.timestamp);
  events.set(id, {
    type: event.type,
    order,
    latency_ms: now() - milliseconds(event.timestamp),
  });
}

function verify(request, body) {
  try {
    return webhook.verify(body, request.headers);
  } catch {
    return null;
  }
}

function answer(request, response, body) {
  const luck = Math.random();
  const event = verify(request, body);

  seen.requests += 1;
  if (event === null) {
    seen.badly_signed += 1;
    response.writeHead(401).end();
  } else if (luck < ERROR_SHARE) {
    seen.failed += 1;
    response.writeHead(500).end();
  } else if (luck < ERROR_SHARE + BUSY_SHARE) {
    seen.busy += 1;
    response.writeHead(429, { 'Retry-After': BUSY_SECONDS }).end();
  } else {
    takeIn(request.headers['webhook-id'], event);
    if (luck < ERROR_SHARE + BUSY_SHARE + CUT_SHARE) {
      seen.cut += 1;
      request.socket.destroy();
    } else {
      response.writeHead(204).end();
    }
  }
}

// A file appears at once and whole, so that a reader can wait for it.
function write(name, text) {
  const file = path.join(directory, name);
  fs.writeFileSync(`${file}.tmp`, text);
  fs.renameSync(`${file}.tmp`, file);
}

const server = http.createServer((request, response) => {
  const chunks = [];
  let bytes = 0;
  request.on('data', (chunk) => {
    bytes += chunk.length;
    if (bytes > BODY_BYTES_MAX) {
      request.destroy();
    }
    chunks.push(chunk);
  });
  request.on('end', () => answer(request, response, Buffer.concat(chunks).toString()));
  request.on('error', () => {});
});

server.listen(0, '127.0.0.1', () => {
  write('port', `${server.address().port}\n`);
});

function finish() {
  write('summary.json', JSON.stringify({ ...seen, events: [...events.values()] }));
  process.exit(0);
}

process.on('SIGTERM', finish);
process.stdin.on('end', finish).resume();
