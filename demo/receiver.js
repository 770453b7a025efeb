'use strict';
/*
 * receiver.js DIRECTORY: the other end of the webhooks, and not a good one.
 *
 * It checks the signature of each request with the standardwebhooks package,
 * as any receiver would, and takes in each event once, by its webhook-id. Some
 * requests it fails on purpose: it answers 503, or that it is busy, or it takes
 * the event in and cuts the connection before it has answered, so that the
 * same event has to come again. It prints a line for each request.
 *
 * It listens on a free port of 127.0.0.1, which it writes to DIRECTORY/port,
 * and its process id to DIRECTORY/pid. A GET request gets a page (watch.html)
 * that shows how it stands (watch.js); the first one makes the file
 * DIRECTORY/watched. At SIGUSR2 it writes what it has seen to
 * DIRECTORY/summary.json. WEBHOOK_SECRET has the secret.
 */

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { Webhook } = require('standardwebhooks');
const { startWatching, writeFile } = require('./watch');

const ERROR_SHARE = 0.02;
const BUSY_EVERY = 2000; // requests; each time, nothing is sent for BUSY_SECONDS
const CUT_SHARE = 0.02;
const BUSY_SECONDS = 1;
const BODY_BYTES_MAX = 1024 * 1024;

const PAGE_HEADERS = {
  'Content-Type': 'text/html; charset=utf-8',
  'Content-Security-Policy': "default-src 'none'; connect-src 'self'; img-src data:; "
    + "script-src 'unsafe-inline'; style-src 'unsafe-inline'",
};

const directory = process.argv[2];
const page = fs.readFileSync(path.join(__dirname, 'watch.html'));
const webhook = new Webhook(process.env.WEBHOOK_SECRET);

const seen = {
  requests: 0,
  badly_signed: 0,
  arrived: 0, // different events, taken in
  failed: 0, // answered 503
  busy: 0, // answered 429
  cut: 0, // taken in, but not answered
  duplicates: 0,
  out_of_order: 0,
};
const events = new Map(); // by webhook-id
const latest = new Map(); // timestamp of the last event taken in, by order
const refused = new Map(); // status and time of the first refusal, by webhook-id
let watch;

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

function orderOf(event) {
  return event.data.reservation ?? `order-${event.data.order}`;
}

function refuse(id, response, status, headers = {}) {
  if (!refused.has(id)) {
    refused.set(id, { status, at: now() });
  }
  response.writeHead(status, headers).end();
  return status;
}

// An event that was refused before.
function noteRetry(id, event) {
  const first = refused.get(id);
  if (first) {
    const seconds = ((now() - first.at) / 1000).toFixed(1);
    watch.happened('retried', `${event.type} of ${orderOf(event)} was answered ${first.status}, `
      + `and is accepted ${seconds} s later`);
    refused.delete(id);
  }
}

function takeIn(id, event) {
  if (events.has(id)) {
    seen.duplicates += 1;
    watch.happened('duplicate', `${event.type} of ${orderOf(event)} comes again, and is recognised`);
    return;
  }
  noteRetry(id, event);
  noteOrder(orderOf(event), event.timestamp);
  const at = now();
  events.set(id, {
    type: event.type,
    order: orderOf(event),
    arrived_ms: at,
    latency_ms: at - milliseconds(event.timestamp),
  });
  seen.arrived += 1;
  watch.arrived();
}

function verify(request, body) {
  try {
    return webhook.verify(body, request.headers);
  } catch {
    return null;
  }
}

// Returns what was answered.
function answer(request, response, event) {
  const luck = Math.random();
  const id = request.headers['webhook-id'];

  if (luck < ERROR_SHARE) {
    seen.failed += 1;
    return refuse(id, response, 503);
  }
  if (seen.requests % BUSY_EVERY === 0) {
    seen.busy += 1;
    return refuse(id, response, 429, { 'Retry-After': BUSY_SECONDS });
  }
  takeIn(id, event);
  if (luck < ERROR_SHARE + CUT_SHARE) {
    seen.cut += 1;
    request.socket.destroy();
    return 'cut';
  }
  response.writeHead(204).end();
  return 204;
}

function receive(request, response, body) {
  const event = verify(request, body);

  seen.requests += 1;
  if (event === null) {
    seen.badly_signed += 1;
    response.writeHead(401).end();
    return;
  }
  const answered = answer(request, response, event);
  console.log(`${new Date().toISOString()} ${answered} ${event.type} ${orderOf(event)}`);
}

function show(request, response) {
  if (request.url === '/') {
    response.writeHead(200, PAGE_HEADERS).end(page);
    fs.writeFileSync(path.join(directory, 'watched'), '');
  } else if (request.url === '/state') {
    response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(watch.state()));
  } else {
    response.writeHead(404).end();
  }
}

const server = http.createServer((request, response) => {
  if (request.method === 'GET') {
    show(request, response);
    return;
  }
  const chunks = [];
  let bytes = 0;
  request.on('data', (chunk) => {
    bytes += chunk.length;
    if (bytes > BODY_BYTES_MAX) {
      request.destroy();
    }
    chunks.push(chunk);
  });
  request.on('end', () => receive(request, response, Buffer.concat(chunks).toString()));
  request.on('error', () => {});
});

process.on('SIGUSR2', () => {
  writeFile(path.join(directory, 'summary.json'),
    JSON.stringify({ ...seen, events: [...events.values()] }));
});

startWatching(directory, seen).then((started) => {
  watch = started;
  server.listen(0, '127.0.0.1', () => {
    writeFile(path.join(directory, 'pid'), `${process.pid}\n`);
    writeFile(path.join(directory, 'port'), `${server.address().port}\n`);
  });
});
