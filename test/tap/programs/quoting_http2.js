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

const fs = require('fs');
const tls = require('tls');

const COUNT = 4;
const PREFACE_BYTES = 24;
const FRAME_HEADER_BYTES = 9;
const QUOTED_BYTES = 100;
const DATA = 0, HEADERS = 1, SETTINGS = 4;
const END_STREAM = 1, ACK = 1, END_HEADERS = 4;
const STATUS_200 = Buffer.from([0x88]);	// of HPACK's static table

const [, , certificate] = process.argv;
let isFirst = true;

function frame(type, flags, stream, payload) {
	const header = Buffer.alloc(FRAME_HEADER_BYTES);
	header.writeUIntBE(payload.length, 0, 3);
	header.writeUInt8(type, 3);
	header.writeUInt8(flags, 4);
	header.writeUInt32BE(stream, 5);
	return Buffer.concat([header, payload]);
}

/* A literal header in HPACK. */
function literal(name, value) {
	return Buffer.concat([Buffer.from([0, name.length]), Buffer.from(name), Buffer.from([value.length]), value]);
}

function answer(socket, waiting) {
	const [stream, body] = waiting.at(-1);
	if (isFirst)
		socket.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, STATUS_200));
	else if (waiting.length < COUNT)
		return;
	else
		socket.write(frame(HEADERS, END_HEADERS, stream, Buffer.concat([STATUS_200,
			literal('x-said', Buffer.concat([Buffer.from([1]), body.subarray(-QUOTED_BYTES)]))])));
	isFirst = false;
	waiting.length = 0;
}

function serve(socket) {
	const bodies = new Map();
	const waiting = [];		// requests that are complete
	let input = Buffer.alloc(0);
	let skip = PREFACE_BYTES;

	const take = (type, flags, stream, payload) => {
		if (type === SETTINGS && !(flags & ACK))
			socket.write(frame(SETTINGS, ACK, 0, Buffer.alloc(0)));
		if (type === DATA)
			bodies.set(stream, Buffer.concat([bodies.get(stream) ?? Buffer.alloc(0), payload]));
		if ((type === DATA || type === HEADERS) && flags & END_STREAM) {
			waiting.push([stream, bodies.get(stream)]);
			answer(socket, waiting);
		}
	};

	socket.write(frame(SETTINGS, 0, 0, Buffer.alloc(0)));
	socket.on('error', () => {}).on('data', (data) => {
		input = Buffer.concat([input, data]);
		if (input.length < skip)
			return;
		input = input.subarray(skip);
		skip = 0;
		while (input.length >= FRAME_HEADER_BYTES) {
			const end = FRAME_HEADER_BYTES + input.readUIntBE(0, 3);
			if (input.length < end)
				break;
			take(input[3], input[4], input.readUInt32BE(5), input.subarray(FRAME_HEADER_BYTES, end));
			input = input.subarray(end);
		}
	});
}

const server = tls.createServer({
	ALPNProtocols: ['h2'],
	key: fs.readFileSync(`${certificate}.key`),
	cert: fs.readFileSync(`${certificate}.crt`),
}, serve).on('tlsClientError', () => {});

server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit(0));
