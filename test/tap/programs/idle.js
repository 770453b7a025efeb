/*
 * idle.js
 *		Endpoints that do something on connections between requests, on
 *		ephemeral ports of 127.0.0.1, which it prints.  Ends with its standard
 *		input.
 *
 * Argument: a file name without its .key and .crt.
 *   closing   HTTP/1.1: closes a connection QUIET_MS after its last answer, and
 *             with path /at-once together with that
 *   pinging   HTTP/2: sends a PING QUIET_MS after each answer
 * A line of the input asks for the report: for each the connections that were
 * opened and are open, and how many PINGs were sent, as JSON.
 */
'use strict';

const fs = require('fs');
const http = require('http');
const http2 = require('http2');
const readline = require('readline');

const QUIET_MS = 200;
const report = {
	closing: { opened: 0, open: 0 },
	pinging: { opened: 0, open: 0, pings: 0 },
};

function count(connections, connection) {
	connections.opened++;
	connections.open++;
	connection.on('error', () => connection.destroy());
	connection.on('close', () => connections.open--);
}

const closing = http.createServer((request, response) => {
	request.on('end', () => {
		if (request.url === '/at-once')
			response.setHeader('Connection', 'close');
		response.end();
		setTimeout(() => request.socket.destroy(), QUIET_MS);
	});
	request.resume();
});
closing.on('connection', (socket) => count(report.closing, socket));

const pinging = http2.createSecureServer({
	cert: fs.readFileSync(`${process.argv[2]}.crt`),
	key: fs.readFileSync(`${process.argv[2]}.key`),
});
pinging.on('session', (session) => count(report.pinging, session));
pinging.on('stream', (stream) => {
	const { session } = stream;

	stream.on('end', () => {
		stream.respond({ ':status': 204 }, { endStream: true });
		setTimeout(() => {
			report.pinging.pings++;
			session.ping(() => {});
		}, QUIET_MS);
	});
	stream.resume();
});

closing.listen(0, '127.0.0.1', () => {
	pinging.listen(0, '127.0.0.1', () => {
		console.log(`ports ${closing.address().port} ${pinging.address().port}`);
	});
});

readline.createInterface({ input: process.stdin })
	.on('line', () => console.log(`report ${JSON.stringify(report)}`))
	.on('close', () => process.exit());
