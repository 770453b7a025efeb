/*
 * idle.js
 *		An endpoint that closes a connection QUIET_MS after its last answer, and
 *		with path /at-once together with that, on an ephemeral port of
 *		127.0.0.1, which it prints.  Ends with its standard input.
 *
 * A line of the input asks for the report: the connections that were opened and
 * are open, as JSON.
 */
'use strict';

const http = require('http');
const readline = require('readline');

const QUIET_MS = 200;
const report = { opened: 0, open: 0 };

const server = http.createServer((request, response) => {
	request.on('end', () => {
		if (request.url === '/at-once')
			response.setHeader('Connection', 'close');
		response.end();
		setTimeout(() => request.socket.destroy(), QUIET_MS);
	});
	request.resume();
});

server.on('connection', (socket) => {
	report.opened++;
	report.open++;
	socket.on('error', () => socket.destroy());
	socket.on('close', () => report.open--);
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));

readline.createInterface({ input: process.stdin })
	.on('line', () => console.log(`report ${JSON.stringify(report)}`))
	.on('close', () => process.exit());
