/*
 * quoting.js
 *		An endpoint that quotes the body of a request where HTTP does not allow
 *		it, on a port of 127.0.0.1 that it prints: each path is a way to do so.
 *		Ends with its standard input.
 */
'use strict';

const net = require('net');

const answers = {
	status: (body) => `HTTP/1.1 ${body} X\r\n\r\n`,
	length: (body) => `HTTP/1.1 200 OK\r\nContent-Length: ${body}\r\n\r\n`,
	encoding: (body) => `HTTP/1.1 200 OK\r\nTransfer-Encoding: ${body}\r\n\r\n`,
	chunk: (body) => `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${body}\r\n`,
	header: (body) => `HTTP/1.1 200 OK\r\n${body}\r\n\r\n`,
	folded: (body) => `${body}\r\n ${body}\r\n\r\n`,
};

const server = net.createServer((socket) => {
	let input = '';

	socket.on('error', () => {}).on('data', (data) => {
		input += data;
		const begin = input.indexOf('\r\n\r\n') + 4;
		if (begin < 4 || !input.endsWith('}'))
			return;
		const [, kind] = /^POST \/(\w+)/.exec(input);
		socket.end(answers[kind](input.slice(begin)));
	});
});

server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit(0));
