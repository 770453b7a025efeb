/*
 * bodies.js
 *		An endpoint over TLS that answers 200 with a body of so many bytes as the
 *		path says, on an ephemeral port of 127.0.0.1, which it prints.  Ends with
 *		its standard input.
 *
 * Argument: the certificate and the key, without .crt and .key.
 */
'use strict';

const fs = require('fs');
const https = require('https');

const name = process.argv[2];
const certificate = { cert: fs.readFileSync(`${name}.crt`), key: fs.readFileSync(`${name}.key`) };

const server = https.createServer(certificate, (request, response) => {
	const bytes = Number(request.url.slice(1));
	request.on('end', () => response.end(Buffer.alloc(bytes, 'x')));
	request.resume();
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit());
