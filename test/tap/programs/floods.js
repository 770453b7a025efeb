/*
 * floods.js
 *		Endpoints that answer without end, each on a port of its own of
 *		127.0.0.1.  Ends with its standard input.
 *
 * Argument: a file name without its .key and .crt, for TLS.  At first it prints
 * "ports" and the URL of each flood, as JSON.  There are two of each kind: one
 * writes as fast as it can, and the one with slow_ before its name at most
 * 13 MB in a second.  A line of the input is one of
 *   flood    from now on each request is answered without end
 *   heal     from now on, as at first, each request is answered 200 and eight
 *            kilobytes, in pieces; ends all connections
 *   report   prints "report" and for each endpoint, as JSON, how many
 *            connections there were and, of the first flood, how many requests
 *            were answered on the connection before, how many bytes could be
 *            written, and how long that took, in ms
 */
'use strict';

const fs = require('fs');
const http = require('http');
const https = require('https');
const readline = require('readline');

const { pour } = require('./pour');

const FLOOD_BYTES = 1024 * 1024 * 1024;
const POUR_BYTES = 64 * 1024;
const PAUSE_MS = 5;
const PIECES = 8;
const PIECE = Buffer.alloc(1024, 'x');

const [, , path] = process.argv;
const certificate = { key: fs.readFileSync(`${path}.key`), cert: fs.readFileSync(`${path}.crt`) };

const repeat = (text) => text.repeat(Math.ceil(POUR_BYTES / text.length));
const chunked = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';

/* What is sent once, and what is then sent without end. */
const floods = {
	extension: [`${chunked}1;`, repeat('a')],
	extensions: [chunked, repeat(`1;${'a'.repeat(8192)}\r\nx\r\n`)],
	trailers: [`${chunked}0\r\n`, repeat('X-Trailer: value\r\n')],
	body: ['HTTP/1.1 500 No\r\nContent-Length: 1000000000000\r\n\r\n', repeat('a')],
	headers: ['HTTP/1.1 200 OK\r\n', repeat('X-Header: value\r\n')],
	interim: ['', repeat('HTTP/1.1 102 Processing\r\n\r\n')],
};

const reports = {};
const sockets = new Set();
let flooding = false;

/* Begins a flood on a connection on which so many requests were answered. */
function flood(socket, [begin, chunk], answered, report) {
	const isFirst = report.answered === null;
	const start = Date.now();
	const wrote = (bytes) => {
		if (!isFirst || bytes === report.bytes)
			return;
		report.bytes = bytes;
		report.ms = Date.now() - start;
	};

	if (isFirst)
		report.answered = answered;
	socket.write(begin);
	pour(socket, chunk, FLOOD_BYTES, wrote, report.pause_ms);
}

/* Calls send(isLast) for each piece of an answer. */
function sendPieces(send, left = PIECES) {
	send(left === 1);
	if (left > 1)
		setTimeout(sendPieces, 1, send, left - 1);
}

function accept(socket, report) {
	report.connections++;
	sockets.add(socket.setNoDelay(true).on('error', () => {}));
	socket.on('close', () => sockets.delete(socket));
}

function createEndpoint(scheme, name, report) {
	const create = scheme === 'http' ? http.createServer : https.createServer;
	const server = create(certificate, (request, response) => {
		const { socket } = request;

		request.resume().on('end', () => {
			if (flooding)
				flood(socket, floods[name], socket.answered, report);
			else {
				socket.answered++;
				sendPieces((isLast) => (isLast ? response.end(PIECE) : response.write(PIECE)));
			}
		});
	});

	server.keepAliveTimeout = 60000;
	return server.on(scheme === 'http' ? 'connection' : 'secureConnection', (socket) => {
		socket.answered = 0;
		accept(socket, report);
	});
}

async function start() {
	const urls = {};
	const kinds = [
		...Object.keys(floods).map((kind) => [kind, 'http']),
		['tls_extension', 'https'],
	];

	for (const [kind, scheme] of kinds) {
		for (const [name, pause_ms] of [[kind, 0], [`slow_${kind}`, PAUSE_MS]]) {
			reports[name] = { pause_ms, connections: 0, answered: null, bytes: 0, ms: 0 };
			const server = createEndpoint(scheme, kind.replace('tls_', ''), reports[name]);
			await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
			urls[name] = `${scheme}://127.0.0.1:${server.address().port}/`;
		}
	}
	console.log(`ports ${JSON.stringify(urls)}`);
}

function obey(line) {
	if (line !== 'report')
		flooding = line === 'flood';
	if (line === 'heal')
		sockets.forEach((socket) => socket.destroy());
	console.log(`${line} ${JSON.stringify(line === 'report' ? reports : true)}`);
}

start().then(() => {
	readline.createInterface({ input: process.stdin }).on('line', obey).on('close', () => process.exit(0));
});
