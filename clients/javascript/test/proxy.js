// proxy.js
//
// A proxy between a driver and the server, which can lose the answer to a
// COMMIT, let a query hang, hold an answer back, or stop forwarding.

'use strict';

const net = require('net');
const { once } = require('events');

const COMMIT = /commit/i;

async function startProxy() {
  const path = `${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT}`;
  const sockets = new Set();
  const state = {
    losesCommit: false, isStopped: false, hanging: undefined, hangsLeft: 0, hasHung: 0, holding: undefined, held: [],
  };

  const listener = net.createServer((client) => {
    const server = net.connect(path);
    let hasLost = false;
    let hangs = false;
    sockets.add(client).add(server);
    client.on('data', (data) => {
      if (state.losesCommit && COMMIT.test(data.toString('latin1'))) {
        state.losesCommit = false;
        hasLost = true;
      }
      if (state.hangsLeft > 0 && state.hanging.test(data.toString('latin1'))) {
        hangs = true;
        state.hangsLeft -= 1;
        state.hasHung += 1;
      }
      if (!state.isStopped && !hangs) {
        server.write(data);
      }
    });
    server.on('data', (data) => {
      if (hasLost) {
        client.destroy(); // the server has committed
        server.destroy();
      } else if (state.holding?.test(data.toString('latin1'))) {
        state.held.push(() => client.write(data));
      } else if (!state.isStopped) {
        client.write(data);
      }
    });
    for (const [from, to] of [[client, server], [server, client]]) {
      from.on('error', () => {});
      from.on('close', () => to.destroy());
    }
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return {
    options: { host: '127.0.0.1', port: listener.address().port },
    loseCommit() {
      state.losesCommit = true;
    },
    // From now on, queries like this have no answer, at most so many.
    hang(pattern, times = Infinity) {
      state.hanging = pattern;
      state.hangsLeft = times;
    },
    hasHung: () => state.hasHung > 0,
    // From now on, answers like this are held back, until they are released.
    hold(pattern) {
      state.holding = pattern;
    },
    isHolding: () => state.held.length > 0,
    release() {
      state.holding = undefined;
      state.held.splice(0).forEach((forward) => forward());
    },
    stop() {
      state.isStopped = true;
    },
    // Connections that were stopped are lost.
    resume() {
      state.isStopped = false;
      sockets.forEach((socket) => socket.destroy());
    },
    close() {
      sockets.forEach((socket) => socket.destroy());
      listener.close();
    },
  };
}

module.exports = { startProxy };
