// grpc_client.js
//
// Calls grpc.js for each line of its input, {"key", "account", "sku",
// "quantity"}, and prints a line with the reply, or with the name of the status.
//
// The retry policy repeats calls that have ended with UNAVAILABLE, with the same
// metadata and so with the same id. That is safe because of the id, and only
// because of it.
//
// Environment: TARGET, the host and port of the service; ATTEMPTS, how often a
// call is sent (1 to 5); DEADLINE_MS, how long it may take with all attempts.

'use strict';

const path = require('path');
const readline = require('readline');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');

const ATTEMPTS = Number(process.env.ATTEMPTS ?? 5);
const DEADLINE_MS = Number(process.env.DEADLINE_MS ?? 30 * 1000);

const retryPolicy = {
  maxAttempts: ATTEMPTS,
  initialBackoff: '0.1s',
  maxBackoff: '2s',
  backoffMultiplier: 2,
  retryableStatusCodes: ['UNAVAILABLE'],
};
const serviceConfig = {
  loadBalancingConfig: [],
  methodConfig: [{
    name: [{ service: 'shop.Orders' }],
    waitForReady: true, // while there is no connection, the call waits for one
    ...(ATTEMPTS > 1 ? { retryPolicy } : {}),
  }],
};

const { shop } = grpc.loadPackageDefinition(loadSync(path.join(__dirname, 'grpc.proto'), { longs: String }));
const client = new shop.Orders(
  process.env.TARGET ?? '127.0.0.1:8080',
  grpc.credentials.createInsecure(),
  { 'grpc.service_config': JSON.stringify(serviceConfig) },
);

// The id is made once for each thing that the caller wants, and is kept until
// there is a reply. Here the caller sends it.
function placeOrder({ key, account, ...request }) {
  const metadata = new grpc.Metadata({ waitForReady: true });
  for (const value of [key].flat().filter((one) => one !== undefined)) {
    metadata.add('idempotency-key', value);
  }
  if (account !== undefined) {
    metadata.set('x-account', account);
  }
  return new Promise((resolve) => {
    const options = { deadline: Date.now() + DEADLINE_MS };
    let replayed = '';
    const call = client.PlaceOrder(request, metadata, options, (error, reply) => {
      const pushback = error?.metadata?.get('grpc-retry-pushback-ms')[0];
      call.on('status', (status) => {
        replayed = status.metadata.get('idempotent-replayed').length > 0 ? ' (replayed)' : '';
        const result = error
          ? `${grpc.status[error.code]} ${pushback ? `retry in ${pushback} ms: ` : ''}${error.details}`
          : `order ${reply.order}`;
        resolve(result + replayed);
      });
    });
  });
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const { name, ...order } = JSON.parse(line);
  console.log(`${name} ${await placeOrder(order)}`);
});
