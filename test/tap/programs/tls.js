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
const https = require('https');
const readline = require('readline');
const { Webhook } = require('standardwebhooks');
const { verify } = require('../../../docs/recipes/ed25519');

const LEAVES_AFTER = 20;

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
	leaving: certificate('server'),
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

/* Processes only the first requests of a connection, and ends it. */
function leaves(name, { socket }) {
	if (name !== 'leaving')
		return false;
	socket.requests = (socket.requests ?? 0) + 1;
	if (socket.requests > LEAVES_AFTER)
		socket.destroy();
	return socket.requests > LEAVES_AFTER;
}

function answer(name, request, response, body) {
	const { headers, socket } = request;
	requests.push({
		name,
		id: headers['webhook-id'],
		authorization: headers.authorization ?? null,
		client: socket.getPeerCertificate().subject?.CN ?? null,
		tls: socket.getProtocol(),
		port: socket.remotePort,
		signatures: headers['webhook-signature'].split(' ').map((s) => s.split(',')[0]).join(' '),
		v1: secret === null ? null : verifyV1(body, headers),
		v1a: verifyV1a(body, headers),
	});
	response.end();
}

function start(name) {
	const server = https.createServer(servers[name], (request, response) => {
		const body = [];
		if (leaves(name, request))
			return;
		request.on('data', (data) => body.push(data));
		request.on('end', () => answer(name, request, response, Buffer.concat(body)));
	});
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
