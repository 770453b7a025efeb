/*
 * early.js
 *		An endpoint that refuses large requests without reading them, over
 *		HTTP/1.1, on an ephemeral port of 127.0.0.1, which it prints.  Ends with
 *		its standard input.
 *
 * It answers 200 to bodies of at most LIMIT bytes, and treats others as their
 * path says:
 *   /whole     answers 413, and breaks the connection
 *   /part      the same, but its answer has no end
 *   /late      as /whole, but after LATE_MS without reading
 *   /cut       breaks the connection without an answer
 * A line of the input asks for the report: for each path how many requests it
 * has accepted, and how many it has refused, as JSON.
 */
'use strict';

const net = require('net');
const readline = require('readline');

const LIMIT = 100000;
const LATE_MS = 50;
const HEAD = 'HTTP/1.1 413 Too Large\r\nConnection: close\r\n';
const report = {};

const refusals = {
	whole: (socket) => socket.write(`${HEAD}Content-Length: 3\r\n\r\nno\n`, () => socket.resetAndDestroy()),
	part: (socket) => socket.write(`${HEAD}\r\nno`, () => socket.resetAndDestroy()),
	late: (socket) => setTimeout(refusals.whole, LATE_MS, socket.pause()),
	cut: (socket) => socket.resetAndDestroy(),
};

/* Takes a request from what has come; returns the rest, or null to wait. */
function take(socket, bytes) {
	const end = bytes.indexOf('\r\n\r\n');
	if (end < 0)
		return null;
	const head = bytes.subarray(0, end).toString();
	const size = Number(/content-length: (\d+)/i.exec(head)[1]);
	const [, path] = /^POST \/(\w+)/.exec(head);
	const counts = report[path] ??= { accepted: 0, refused: 0 };

	if (size > LIMIT) {
		counts.refused++;
		socket.removeAllListeners('data');
		refusals[path](socket);
		return null;
	}
	if (bytes.length < end + 4 + size)
		return null;
	counts.accepted++;
	socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
	return bytes.subarray(end + 4 + size);
}

const server = net.createServer((socket) => {
	let bytes = Buffer.alloc(0);

	socket.on('error', () => socket.destroy());
	socket.on('data', (data) => {
		bytes = Buffer.concat([bytes, data]);
		for (let rest = take(socket, bytes); rest !== null; rest = take(socket, bytes))
			bytes = rest;
	});
});

readline.createInterface({ input: process.stdin })
	.on('line', () => console.log(`report ${JSON.stringify(report)}`))
	.on('close', () => process.exit(0));
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
