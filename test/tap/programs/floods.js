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
 *   heal     from now on, as at first, each request is answered 200 and a
 *            kilobyte, in small pieces; ends all connections
 *   report   prints "report" and for each endpoint, as JSON, how many
 *            connections there were and, of the first flood, how many requests
 *            were answered on the connection before, how many bytes could be
 *            written, and how long that took, in ms
 */
'use strict';

const http = require('http');
const readline = require('readline');

const { pour } = require('./pour');
const {
	createServer, frame, literal, readRequests, status,
	CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED,
} = require('./http2_frames');

const FLOOD_BYTES = 1024 * 1024 * 1024;
const POUR_BYTES = 64 * 1024;
const PAUSE_MS = 5;
const FRAME_BYTES = 16 * 1024;
const UNKNOWN = 0xfa;
const PIECES = 8;
const PIECE = Buffer.alloc(1024 / PIECES, 'x');

const [, , certificate] = process.argv;

const repeat = (text) => text.repeat(Math.ceil(POUR_BYTES / text.length));
const chunked = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';

/* Over HTTP/1.1: what is sent once, and what is then sent without end. */
const floods = {
	extension: [`${chunked}1;`, repeat('a')],
	extensions: [chunked, repeat(`1;${'a'.repeat(8192)}\r\nx\r\n`)],
	trailers: [`${chunked}0\r\n`, repeat('X-Trailer: value\r\n')],
	body: ['HTTP/1.1 500 No\r\nContent-Length: 1000000000000\r\n\r\n', repeat('a')],
	headers: ['HTTP/1.1 200 OK\r\n', repeat('X-Header: value\r\n')],
	interim: ['', repeat('HTTP/1.1 102 Processing\r\n\r\n')],
};

const nothing = Buffer.alloc(0);
const many = (buffer) => Buffer.concat(Array(Math.ceil(POUR_BYTES / buffer.length)).fill(buffer));

/* The same over HTTP/2, for a request's stream. */
const floods2 = {
	h2_frames: () => [nothing, many(frame(UNKNOWN, 0, 0, Buffer.alloc(FRAME_BYTES)))],
	h2_empty: (stream) => [frame(HEADERS, END_HEADERS, stream, status(200)),
		many(frame(DATA, 0, stream, nothing))],
	h2_padding: (stream) => [frame(HEADERS, END_HEADERS, stream, status(200)),
		many(frame(DATA, PADDED, stream, Buffer.alloc(256, 255).fill(0, 1)))],
	h2_body: (stream) => [frame(HEADERS, END_HEADERS, stream, status(500)),
		many(frame(DATA, 0, stream, Buffer.alloc(FRAME_BYTES)))],
	h2_headers: (stream) => [frame(HEADERS, 0, stream, status(200)),
		many(frame(CONTINUATION, 0, stream, literal('x-header', 'value')))],
	h2_interim: (stream) => [nothing, many(frame(HEADERS, END_HEADERS, stream, status(103)))],
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

function createEndpoint(name, report) {
	const server = http.createServer((request, response) => {
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
	return server.on('connection', (socket) => {
		socket.answered = 0;
		accept(socket, report);
	});
}

function createEndpoint2(name, report) {
	return createServer(certificate, (socket) => {
		let answered = 0;

		accept(socket, report);
		readRequests(socket, (stream) => {
			if (flooding)
				flood(socket, floods2[name](stream), answered, report);
			else {
				answered++;
				socket.write(frame(HEADERS, END_HEADERS, stream, status(200)));
				sendPieces((isLast) => socket.write(frame(DATA, isLast ? END_STREAM : 0, stream, PIECE)));
			}
		});
	});
}

async function start() {
	const urls = {};
	const kinds = [
		...Object.keys(floods).map((kind) => [kind, createEndpoint, 'http']),
		...Object.keys(floods2).map((kind) => [kind, createEndpoint2, 'https']),
	];

	for (const [kind, create, scheme] of kinds) {
		for (const [name, pause_ms] of [[kind, 0], [`slow_${kind}`, PAUSE_MS]]) {
			reports[name] = { pause_ms, connections: 0, answered: null, bytes: 0, ms: 0 };
			const server = create(kind, reports[name]);
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
