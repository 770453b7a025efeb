/*
 * http2_frames.js
 *		The frames of HTTP/2, for endpoints that send what no library sends.
 */
'use strict';

const fs = require('fs');
const tls = require('tls');

const PREFACE_BYTES = 24;
const FRAME_HEADER_BYTES = 9;
const WINDOW_BYTES = 1 << 30;
const DATA = 0, HEADERS = 1, SETTINGS = 4, WINDOW_UPDATE = 8, CONTINUATION = 9;
const END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8;

function frame(type, flags, stream, payload) {
	const header = Buffer.alloc(FRAME_HEADER_BYTES);
	header.writeUIntBE(payload.length, 0, 3);
	header.writeUInt8(type, 3);
	header.writeUInt8(flags, 4);
	header.writeUInt32BE(stream, 5);
	return Buffer.concat([header, payload]);
}

/* Headers in HPACK, without compression. */
const literal = (name, value) =>
	Buffer.concat([Buffer.from([0, name.length]), Buffer.from(name), Buffer.from([value.length]), Buffer.from(value)]);
const status = (code) => literal(':status', String(code));

/* Calls receive(stream, body) for each request that is complete. */
function readRequests(socket, receive) {
	const bodies = new Map();
	let input = Buffer.alloc(0);
	let skip = PREFACE_BYTES;

	const take = (type, flags, stream, payload) => {
		if (type === SETTINGS && !(flags & ACK))
			socket.write(frame(SETTINGS, ACK, 0, Buffer.alloc(0)));
		if (type === DATA)
			bodies.set(stream, Buffer.concat([bodies.get(stream) ?? Buffer.alloc(0), payload]));
		if ((type === DATA || type === HEADERS) && flags & END_STREAM)
			receive(stream, bodies.get(stream));
	};

	const room = Buffer.alloc(4);
	room.writeUInt32BE(WINDOW_BYTES);
	socket.write(frame(SETTINGS, 0, 0, Buffer.alloc(0)));
	socket.write(frame(WINDOW_UPDATE, 0, 0, room));
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

/* A server of only HTTP/2, with PATH.key and PATH.crt. */
function createServer(path, accept) {
	return tls.createServer({
		ALPNProtocols: ['h2'],
		key: fs.readFileSync(`${path}.key`),
		cert: fs.readFileSync(`${path}.crt`),
	}, accept).on('tlsClientError', () => {});
}

module.exports = {
	createServer, frame, literal, readRequests, status,
	CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED,
};
