// endpoint.js
//
// The HTTP server of the webhook receivers. It passes the headers and the body
// of each POST to a function, and answers with the status that the function
// returns. If the status is not 2xx, the sender sends the event again.
//
// Environment: PORT to listen on (0: any), and HOST, the address (127.0.0.1).

'use strict';

const http = require('http');

// outbox_enqueue accepts payloads of at most 16 MiB, unless
// idempotency.outbox_payload_max was changed.
const BODY_BYTES_MAX = 17 * 1024 * 1024;

// Longer than the sender keeps an idle connection, so that the receiver does
// not close a connection just when the next request arrives.
const KEEP_ALIVE_MS = 65 * 1000;

async function readBody(message) {
  const chunks = [];
  let size = 0;
  for await (const chunk of message) {
    size += chunk.length;
    if (size > BODY_BYTES_MAX) {
      return null;
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

async function statusOf(message, receive) {
  try {
    const body = await readBody(message);
    return body === null ? 413 : await receive(message.headers, body);
  } catch (error) {
    console.error(error);
    return 500;
  }
}

function listen(receive) {
  const server = http.createServer(async (message, response) => {
    response.writeHead(await statusOf(message, receive)).end();
  });
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  server.listen(process.env.PORT ?? 8080, process.env.HOST ?? '127.0.0.1', () => {
    console.log(`listening on port ${server.address().port}`);
  });
}

module.exports = { listen };
