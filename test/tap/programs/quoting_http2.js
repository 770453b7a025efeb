/*
 * quoting_http2.js
 *		An endpoint that only supports HTTP/2, over TLS, on a port that it
 *		prints, and quotes the request in a header that is not allowed.  No
 *		library does that, so the frames are built here.  Ends with its standard
 *		input.
 *
 * Argument: a file name without its .key and .crt.  The first request is
 * answered correctly.  Then it waits for COUNT requests in flight; the last of
 * them is answered in this way, and the others never.
 */
'use strict';

const {
	createServer, frame, literal, readRequests, status, END_HEADERS, END_STREAM, HEADERS,
} = require('./http2_frames');

const COUNT = 4;
const QUOTED_BYTES = 100;

const [, , certificate] = process.argv;
let isFirst = true;

function answer(socket, waiting) {
	const [stream, body] = waiting.at(-1);
	if (isFirst)
		socket.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, status(200)));
	else if (waiting.length < COUNT)
		return;
	else
		socket.write(frame(HEADERS, END_HEADERS, stream, Buffer.concat([status(200),
			literal('x-said', Buffer.concat([Buffer.from([1]), body.subarray(-QUOTED_BYTES)]))])));
	isFirst = false;
	waiting.length = 0;
}

const server = createServer(certificate, (socket) => {
	const waiting = [];		// requests that are complete

	readRequests(socket, (stream, body) => {
		waiting.push([stream, body]);
		answer(socket, waiting);
	});
});

server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit(0));
