// servers.js
//
// A server of each framework, with POST /orders/new. It prints their names and
// ports. The body is {effect, do}: the key of the effect, and what to answer.

'use strict';

const { once } = require('events');
const express = require('express');
const { fastify } = require('fastify');
const { Hono } = require('hono');
const { serve } = require('@hono/node-server');
const { Pool } = require('pg');
const { idempotencyKey: forExpress, keepRawBody } = require('idempotency-pg/express');
const { idempotencyKey: forFastify } = require('idempotency-pg/fastify');
const { idempotencyKey: forHono } = require('idempotency-pg/hono');

const pool = new Pool();

const LINKS = ['</1>; rel=next', '</2>; rel=last'];

const ANSWERS = {
  work: [201, { 'content-type': 'application/json', 'x-order': '17' }, '{"text": "ä"}'],
  links: [201, { 'content-type': 'text/html', link: LINKS }, 'linked'],
  binary: [200, { 'content-type': 'application/octet-stream' }, Buffer.from(Array.from({ length: 256 }, (_, i) => i))],
  conflict: [409, { 'content-type': 'application/json' }, '{"do": "conflict"}'],
};

async function order({ client }, body) {
  await client.query('INSERT INTO effects VALUES ($1)', [body.effect]);
  return ANSWERS[body.do];
}

const STARTS = {
  async express() {
    const app = express();
    app.use(express.json({ verify: keepRawBody }));
    app.use(forExpress({ pool, scope: (request) => request.get('x-account') }));
    app.post('/orders/new', async (request, response) => {
      const [status, headers, body] = await order(request.idempotency, request.body);
      response.writeHead(status, headers).end(body);
    });
    const server = app.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return server.address().port;
  },

  async fastify() {
    const app = fastify();
    app.register(forFastify({ pool, scope: (request) => request.headers['x-account'] }));
    app.post('/orders/new', async (request, reply) => {
      const [status, headers, body] = await order(request.idempotency, request.body);
      return reply.code(status).headers(headers).send(body);
    });
    await app.listen({ port: 0, host: '127.0.0.1' });
    return app.server.address().port;
  },

  async hono() {
    const app = new Hono();
    app.use(forHono({ pool, scope: (context) => context.req.header('x-account') }));
    app.post('/orders/new', async (context) => {
      const [status, headers, body] = await order(context.get('idempotency'), await context.req.json());
      return context.body(body, status, headers);
    });
    const server = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' });
    await once(server, 'listening');
    return server.address().port;
  },
};

async function main() {
  for (const [framework, start] of Object.entries(STARTS)) {
    console.log(framework, await start());
  }
}

main();
