/*
 * bodies.js
 *		An endpoint of HTTP/2 over TLS that answers 200 with a body of so many
 *		bytes as the path says, on an ephemeral port of 127.0.0.1, which it
 *		prints.  Ends with its standard input.
 *
 * Argument: the certificate and the key, without .crt and .key.
 */
'use strict';

const fs = require('fs');
const http2 = require('http2');

const name = process.argv[2];
const server = http2.createSecureServer({ cert: fs.readFileSync(`${name}.crt`), key: fs.readFileSync(`${name}.key`) });

server.on('stream', (stream, headers) => {
	const bytes = Number(headers[':path'].slice(1));
	stream.on('error', () => {});
	stream.on('end', () => {
		stream.respond({ ':status': 200 });
		stream.end(Buffer.alloc(bytes, 'x'));
	});
	stream.resume();
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit());
