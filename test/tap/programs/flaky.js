/*
 * flaky.js
 *		A network between an application and a PostgreSQL server that loses
 *		messages when told to: forwards the Unix socket argv[3] to argv[2].
 *		Ends with its standard input.
 *
 * A line of the input tells what to do to the next N queries:
 *   lose-question N   the query never arrives, and the connection hangs
 *   lose-answer N     the server answers it, and the connection hangs
 *   cut N             the server answers it, and the connection is closed
 * It prints the word each time it has done so.
 */
'use strict';

const net = require('net');
const readline = require('readline');

const [, , real, flaky] = process.argv;
const todo = [];

/* After ReadyForQuery the answer is complete and its effect committed. */
const READY = Buffer.from([0x5a, 0, 0, 0, 5]);

function accept(client) {
  const server = net.connect(real);
  let started = false;	// the first message of a client is not a query
  let fault = null;

  const end = () => {
    client.destroy();
    server.destroy();
  };
  client.on('data', (data) => {
    if (started)
      fault ??= todo.shift() ?? null;
    started = true;
    if (fault === 'lose-question')
      console.log(fault);
    else
      server.write(data);
  });
  server.on('data', (data) => {
    if (!fault)
      client.write(data);
    else if (data.includes(READY)) {
      console.log(fault);
      if (fault === 'cut')
        end();
    }
  });
  for (const socket of [client, server]) {
    socket.on('error', end);
    socket.on('close', end);
  }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const [fault, times] = line.split(' ');
  todo.push(...Array(Number(times)).fill(fault));
  console.log('told');
}).on('close', () => process.exit(0));

net.createServer(accept).listen(flaky, () => console.log('listening'));
