// endpoint.js
//
// The HTTP side of the receivers of webhooks: hands the headers and the body of
// each POST to a function, and answers with the status that it returns. What
// is not 2xx is sent again.
//
// Environment: PORT to listen on (0: any).

'use strict';

const http = require('http');

// A payload has at most 16 MiB as outbox_enqueue takes it, unless
// idempotency.outbox_payload_max says otherwise.
const BODY_BYTES_MAX = 17 * 1024 * 1024;

// Longer than the sender keeps a connection that is not in use, so that none
// is closed just as the next request comes.
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
  server.listen(process.env.PORT ?? 8080, '127.0.0.1', () => {
    console.log(`listening on port ${server.address().port}`);
  });
}

module.exports = { listen };
