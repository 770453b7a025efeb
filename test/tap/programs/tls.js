/*
 * tls.js
 *		Endpoints of webhooks over TLS, each on a port of its own of 127.0.0.1,
 *		which are printed as one line: "ports " and a JSON object.  Ends with its
 *		standard input.
 *
 * Argument: a directory with the certificates that tls.pl has made.
 *
 * Lines of the standard input:
 *   secret SECRET		requests are verified with it
 *   key PUBLICKEY		likewise; all keys are tried
 *   report			prints "report " and a JSON array of all requests
 *
 * Signatures v1 are verified by the npm package standardwebhooks, v1a by a
 * recipe, with node's own Ed25519.
 */
'use strict';

const fs = require('fs');
const http2 = require('http2');
const readline = require('readline');
const { Webhook } = require('standardwebhooks');
const { verify } = require('../../../docs/recipes/ed25519');

const GOAWAY_STREAMS = 20;

const dir = process.argv[2];
const read = (name) => fs.readFileSync(`${dir}/${name}`);
const certificate = (name) => ({ key: read(`${name}.key`), cert: read(`${name}.crt`) });
const mutual = { requestCert: true, rejectUnauthorized: true, ca: read('ours/ca.crt') };
const servers = {
	good: certificate('server'),
	unknown: certificate('stranger'),
	other_name: certificate('other_name'),
	expired: certificate('expired'),
	tls13: { ...certificate('server'), minVersion: 'TLSv1.3' },
	mutual: { ...certificate('server'), ...mutual },
	mutual12: { ...certificate('server'), ...mutual, maxVersion: 'TLSv1.2' },
	revoking: { ...certificate('server'), ...mutual, crl: read('ours/crl') },
	goaway: certificate('server'),
};
const requests = [];
const publicKeys = [];
let secret = null;

function verifyV1(body, headers) {
	try {
		new Webhook(secret).verify(body, headers);
		return true;
	} catch (error) {
		return String(error.message);
	}
}

/* Which of the keys have signed, by their numbers. */
function verifyV1a(body, headers) {
	return publicKeys.flatMap((key, number) => verify(key, headers, body) ? [number] : []);
}

/* Processes only the first streams of a connection, and says so. */
function leaves(name, request) {
	const session = request.stream?.session;
	if (name !== 'goaway' || !session)
		return false;
	session.streams = (session.streams ?? 0) + 1;
	if (session.streams === GOAWAY_STREAMS)
		session.goaway(http2.constants.NGHTTP2_NO_ERROR, request.stream.id);
	return session.streams > GOAWAY_STREAMS;
}

function answer(name, request, response, body) {
	const { headers, socket } = request;
	const tls = request.stream?.session?.socket ?? socket;
	requests.push({
		name,
		id: headers['webhook-id'],
		authorization: headers.authorization ?? null,
		client: tls.getPeerCertificate?.().subject?.CN ?? null,
		tls: tls.getProtocol(),
		http: request.httpVersion,
		port: tls.remotePort,
		signatures: headers['webhook-signature'].split(' ').map((s) => s.split(',')[0]).join(' '),
		v1: secret === null ? null : verifyV1(body, headers),
		v1a: verifyV1a(body, headers),
	});
	response.end();
}

function start(name) {
	const server = http2.createSecureServer({ ...servers[name], allowHTTP1: true }, (request, response) => {
		const body = [];
		if (leaves(name, request))
			return;
		request.on('data', (data) => body.push(data));
		request.on('end', () => answer(name, request, response, Buffer.concat(body)));
	});
	server.on('session', (session) => session.on('error', () => {}));
	return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)));
}

async function main() {
	const ports = {};
	for (const name of Object.keys(servers))
		ports[name] = await start(name);
	console.log(`ports ${JSON.stringify(ports)}`);
	readline.createInterface({ input: process.stdin }).on('line', (line) => {
		const [command, value] = line.split(' ');
		if (command === 'secret')
			secret = value;
		else if (command === 'key')
			publicKeys.push(value);
		else
			console.log(`report ${JSON.stringify(requests)}`);
	}).on('close', () => process.exit(0));
}

main();
