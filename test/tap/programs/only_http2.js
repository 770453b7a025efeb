/*
 * only_http2.js
 *		An endpoint over TLS that only has HTTP/2, on a port of 127.0.0.1 that it
 *		prints.  Ends with its standard input.
 *
 * Argument: a file name without its .key and .crt.
 */
'use strict';

const fs = require('fs');
const http2 = require('http2');

const [, , path] = process.argv;
const server = http2.createSecureServer({ cert: fs.readFileSync(`${path}.crt`), key: fs.readFileSync(`${path}.key`) });

server.on('sessionError', () => {});
server.on('tlsClientError', () => {});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.resume().on('end', () => process.exit(0));
