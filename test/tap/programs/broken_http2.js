/*
 * broken_http2.js
 *		Endpoints over TLS whose HTTP/2 goes wrong, on a port that it prints.
 *		Ends with its standard input.
 *
 * Argument: a file name without its .key and .crt.  Paths:
 *   /reset   resets every stream; over HTTP/1.1 it works
 *   /drop    drops the connection at every 100th request, with all requests
 *            that are in flight on it
 * For each line of the input it prints "report" and, as JSON, for each path how
 * many different events have come, and how many requests by HTTP version.
 */
'use strict';

const fs = require('fs');
const http2 = require('http2');
const readline = require('readline');

const DROP_EVERY = 100;
const ANSWER_MS = 5;

const [, , path] = process.argv;
const paths = new Map(['/reset', '/drop'].map((url) => [url, { events: new Set(), requests: {} }]));

const server = http2.createSecureServer({
	allowHTTP1: true,
	key: fs.readFileSync(`${path}.key`),
	cert: fs.readFileSync(`${path}.crt`),
});

function answer(response) {
	if (!response.stream?.destroyed)
		response.writeHead(200).end();
}

function receive(request, response) {
	const { url, httpVersion, stream } = request;
	const { events, requests } = paths.get(url);

	events.add(request.headers['webhook-id']);
	requests[httpVersion] = (requests[httpVersion] ?? 0) + 1;
	if (stream && url === '/reset')
		stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
	else if (stream && url === '/drop' && requests[httpVersion] % DROP_EVERY === 0)
		stream.session.destroy();
	else
		request.resume().on('end', () => setTimeout(answer, ANSWER_MS, response));
}

function report() {
	const counts = [...paths].map(([url, { events, requests }]) => [url, { events: events.size, requests }]);
	console.log(`report ${JSON.stringify(Object.fromEntries(counts))}`);
}

server.on('request', receive);
server.on('session', (session) => session.on('error', () => {}));
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
readline.createInterface({ input: process.stdin }).on('line', report).on('close', () => process.exit(0));
