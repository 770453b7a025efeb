/*
 * own_answers.js
 *		Endpoints on which answers could go to the wrong requests, each on a port
 *		of its own of 127.0.0.1.  Ends with its standard input.
 *
 * Argument: a file name without its .key and .crt, for TLS.  It prints "ports"
 * and the URL of each endpoint, as JSON.  Each answers a request after ANSWER_MS
 * or more with the number that its event has, as text, with 200 if that is odd,
 * else with 422.
 *   mixed     a balancer before a server of HTTP/2 and one of HTTP/1.1
 *   resets    a server of both, which resets streams of HTTP/2 and ends
 *             connections
 *   says2     a server of HTTP/1.1 whose answers say HTTP/2
 *   twice     another 200 follows each answer at once
 *   unasked, tls_unasked   another 200 follows each answer when the connection
 *             is idle; a line says so
 */
'use strict';

const fs = require('fs');
const http2 = require('http2');
const https = require('https');
const net = require('net');
const tls = require('tls');

const ANSWER_MS = 20;
const ANSWER_MORE_MS = 100;
const RESET_EVERY = 10;
const CLOSE_EVERY = 25;

const [, , path] = process.argv;
const certificate = { key: fs.readFileSync(`${path}.key`), cert: fs.readFileSync(`${path}.crt`) };

const numberOf = (body) => Number(/"n": ?(\d+)/.exec(body)[1]);
const statusOf = (n) => (n % 2 === 1 ? 200 : 422);
const later = (send) => setTimeout(send, ANSWER_MS + Math.random() * ANSWER_MORE_MS);

function answer(request, response) {
	let body = '';
	request.on('data', (data) => { body += data; });
	request.on('end', () => later(() => {
		if (response.stream?.destroyed)
			return;
		const n = numberOf(body);
		response.statusCode = statusOf(n);
		response.end(String(n));
	}));
}

function balance(servers) {
	let connections = 0;
	return net.createServer({ noDelay: true }, (from) => {
		const to = net.connect(servers[connections++ % servers.length].address().port, '127.0.0.1');
		to.setNoDelay(true);
		from.pipe(to).pipe(from);
		for (const [one, other] of [[from, to], [to, from]])
			one.on('error', () => other.destroy()).on('close', () => other.destroy());
	});
}

async function createMixed() {
	const servers = [
		http2.createSecureServer(certificate, answer),
		https.createServer({ ...certificate, ALPNProtocols: ['http/1.1'] }, answer),
	];
	for (const server of servers) {
		server.on('sessionError', () => {});
		await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
	}
	return balance(servers);
}

function createResets() {
	let streams = 0;
	return http2.createSecureServer({ ...certificate, allowHTTP1: true }, (request, response) => {
		if (request.stream && ++streams % RESET_EVERY === 0) {
			request.stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
			return;
		}
		if (request.stream && streams % CLOSE_EVERY === 0)
			request.stream.session.close();
		answer(request, response);
	}).on('sessionError', () => {});
}

/* Calls reply(n, socket) for each request of a connection, one after the other. */
function createRaw(reply, create = net.createServer) {
	return create({ ...certificate, noDelay: true }, (socket) => {
		let input = '';
		socket.on('error', () => {}).on('data', (data) => {
			input += data;
			const end = input.indexOf('\r\n\r\n') + 4;
			const length = end > 4 ? Number(/^content-length: (\d+)/mi.exec(input.slice(0, end))[1]) : Infinity;
			if (input.length < end + length)
				return;
			const n = numberOf(input.slice(end));
			input = input.slice(end + length);
			later(() => socket.writable && reply(n, socket));
		});
	});
}

const text = (version, status, body) =>
	`HTTP/${version} ${status} X\r\nContent-Length: ${String(body).length}\r\n\r\n${body}`;

function answerTwice(n, socket) {
	socket.write(text('1.1', statusOf(n), n));
	setTimeout(() => socket.write(text('1.1', 200, 'nobody'), () => console.log('unasked')), ANSWER_MS);
}

const endpoints = {
	mixed: ['https', createMixed],
	resets: ['https', createResets],
	says2: ['http', () => createRaw((n, socket) => socket.write(text('2', statusOf(n), n)))],
	twice: ['http', () => createRaw((n, socket) =>
		socket.write(text('1.1', statusOf(n), n) + text('1.1', 200, 'nobody')))],
	unasked: ['http', () => createRaw(answerTwice)],
	tls_unasked: ['https', () => createRaw(answerTwice, tls.createServer)],
};

async function start() {
	const urls = {};
	for (const [name, [scheme, create]] of Object.entries(endpoints)) {
		const server = await create();
		await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
		urls[name] = `${scheme}://127.0.0.1:${server.address().port}/`;
	}
	console.log(`ports ${JSON.stringify(urls)}`);
}

start();
process.stdin.resume().on('end', () => process.exit(0));
