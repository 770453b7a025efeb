/*
 * echo.js
 *		Endpoints that fail, and quote the request wherever an answer has room
 *		for it.  Prints two ports of 127.0.0.1, the second one with TLS, and the
 *		names of the ways to fail.  Ends with its standard input.
 *
 * Argument: a file name without its .key and .crt, for TLS.  The first part of
 * the path chooses the way to fail.
 */
'use strict';

const fs = require('fs');
const net = require('net');
const tls = require('tls');

const [, , certificate] = process.argv;

const answers = {
	ok: () => 'HTTP/1.1 204 No Content\r\n\r\n',
	gone: () => 'HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n',
	fail: () => 'HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n',
	body: (said) => `HTTP/1.1 500 No\r\nContent-Length: ${said.length}\r\n\r\n${said}`,
	refuse: (said) => `HTTP/1.1 422 No\r\nContent-Length: ${said.length}\r\n\r\n${said}`,
	reason: (said) => `HTTP/1.1 500 ${said}\r\nContent-Length: 0\r\n\r\n`,
	status: (said) => `HTTP/1.1 ${said}\r\n\r\n`,
	version: (said) => `HTTP/9.9 200 ${said}\r\n\r\n`,
	header: (said) => `HTTP/1.1 500 No\r\nX-Said: ${said}\r\nSet-Cookie: said=${said}\r\nContent-Length: 0\r\n\r\n`,
	name: (said) => `HTTP/1.1 500 No\r\n${said}\r\nContent-Length: 0\r\n\r\n`,
	location: (said) => `HTTP/1.1 302 Found\r\nLocation: http://${said}/\r\nContent-Length: 0\r\n\r\n`,
	length: (said) => `HTTP/1.1 500 No\r\nContent-Length: ${said}\r\n\r\n`,
	chunk: (said) => `HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n${said}\r\n`,
	encoding: (said) => `HTTP/1.1 500 No\r\nContent-Encoding: ${said}\r\nTransfer-Encoding: ${said}\r\n\r\n`,
	patience: (said) => `HTTP/1.1 503 No\r\nRetry-After: ${said}\r\nContent-Length: 0\r\n\r\n`,
	short: (said) => `HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n${said}`,
	garbage: (said) => said,
	drop: () => '',
	hang: null,
};

/* The whole request, in one line. */
function quote(request) {
	return request.replace(/[\r\n]+/g, ' ');
}

function serve(socket) {
	let request = '';

	socket.on('error', () => {}).setEncoding('latin1').on('data', (data) => {
		request += data;
		const [head, body] = request.split('\r\n\r\n');
		const [, length] = /content-length: (\d+)/i.exec(head) ?? [];
		if (body === undefined || body.length < Number(length))
			return;
		const answer = answers[/^POST \/(\w+)/.exec(head)?.[1] ?? 'drop'];
		if (answer)
			socket.end(answer(quote(request)), 'latin1');
	});
}

const secure = tls.createServer({
	key: fs.readFileSync(`${certificate}.key`),
	cert: fs.readFileSync(`${certificate}.crt`),
}, serve).on('tlsClientError', () => {});
const plain = net.createServer(serve);

plain.listen(0, '127.0.0.1', () => secure.listen(0, '127.0.0.1', () => {
	console.log(`ports ${plain.address().port} ${secure.address().port} ${Object.keys(answers).join(' ')}`);
}));
process.stdin.resume().on('end', () => process.exit(0));
