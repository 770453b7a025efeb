/*
 * clients.js
 *		Connections of node-postgres, each of which runs its queries one after
 *		another and does not wait for the others.  Ends with its standard input.
 *
 * A line of the input is a JSON array: the name of a connection, which is
 * opened when it is first used, a query, and its parameters.  The query "die"
 * drops the connection as a crash would.  For each line one line is printed
 * with the name and the result of the query, its values joined by bars, or the
 * SQLSTATE of its error.
 */
'use strict';

const readline = require('readline');

const { Client } = require(require.resolve('pg', { paths: [`${__dirname}/../../../docs/recipes`] }));

const clients = new Map();

function connect() {
  const client = new Client();

  client.on('error', () => {});
  client.connect();
  return client;
}

async function run(client, sql, parameters) {
  if (sql === 'die') {
    client.connection.stream.destroy();
    return 'dead';
  }
  try {
    const { rows } = await client.query({ text: sql, values: parameters, rowMode: 'array' });
    return rows.map((row) => row.join('|')).join(' ');
  } catch (error) {
    return error.code;
  }
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const [name, sql, ...parameters] = JSON.parse(line);

  if (!clients.has(name))
    clients.set(name, connect());
  console.log(`${name} ${await run(clients.get(name), sql, parameters)}`);
}).on('close', () => process.exit(0));
