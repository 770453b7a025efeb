/*
 * faults.js
 *		Endpoints that misbehave, each on a port of its own of 127.0.0.1, until
 *		they are told to work.  Ends with its standard input.
 *
 * Arguments: a file name without its .key and .crt that the relay trusts; one
 * that it does not trust; a port on which nothing listens.  At first it prints
 * "ports" and the URL of each fault, as JSON.  A line of the input is one of
 *   heal     ends all connections; from now on every request is answered 200
 *   break    ends all connections; from now on every endpoint misbehaves again
 *   report   prints "report" and, for each fault, how many connections there
 *            were since then, how many events were accepted, and the most bytes
 *            that were sent over one connection, as JSON
 */
'use strict';

const fs = require('fs');
const http = require('http');
const net = require('net');
const readline = require('readline');
const tls = require('tls');

const { pour } = require('./pour');

const FLOOD_BYTES = 100 * 1024 * 1024;
const POUR_BYTES = 64 * 1024;
const METADATA = 'http://169.254.169.254/latest/meta-data/';

const [, , trusted, untrusted, absentPort] = process.argv;

const certificate = (path) => ({
	key: fs.readFileSync(`${path}.key`),
	cert: fs.readFileSync(`${path}.crt`),
});

/* Sends a chunk again and again. */
function flood(socket, report, chunk) {
	pour(socket, chunk, FLOOD_BYTES, () => { report.bytes = Math.max(report.bytes, socket.bytesWritten); });
}

/* What each endpoint does when the first bytes of a request have come. */
const faults = {
	hang() {},
	drip(socket) {
		const rest = [...'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'];
		const timer = setInterval(() => socket.write(rest.shift()), 1000);
		socket.on('close', () => clearInterval(timer));
	},
	flood(socket, report) {
		socket.write(`HTTP/1.1 500 No\r\nContent-Length: ${FLOOD_BYTES}\r\n\r\n`);
		flood(socket, report, 'x'.repeat(POUR_BYTES));
	},
	interim(socket, report) {
		flood(socket, report, 'HTTP/1.1 102 Processing\r\n\r\n'.repeat(POUR_BYTES / 64));
	},
	headers(socket, report) {
		socket.write('HTTP/1.1 200 OK\r\n');
		flood(socket, report, 'X-Header: value\r\n'.repeat(POUR_BYTES / 64));
	},
	header(socket, report) {
		socket.write('HTTP/1.1 200 OK\r\nX-Header: ');
		flood(socket, report, 'x'.repeat(POUR_BYTES));
	},
	reset(socket) {
		socket.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of', () => socket.resetAndDestroy());
	},
	close(socket) {
		socket.destroy();
	},
	garbage(socket) {
		socket.end('\0\x01\x02 this is not HTTP\r\n\r\n');
	},
	redirect(socket) {
		socket.end(`HTTP/1.1 302 Found\r\nLocation: ${METADATA}\r\nContent-Length: 0\r\n\r\n`);
	},
	tls_hang() {},
	tls_garbage(socket) {
		socket.end('this is not TLS\r\n');
	},
	tls_untrusted: null,	// the certificate is the fault
	absent: null,			// it does not listen
};

const reports = {};
const urls = {};
const sockets = new Set();
let healed = false;

/* Answers 200, and records which events were accepted. */
function makeHealthy(report) {
	return http.createServer({ keepAlive: false }, (request, response) => {
		request.resume().on('end', () => {
			report.events.add(request.headers['webhook-id']);
			response.writeHead(200, { Connection: 'close' }).end();
		});
	});
}

function makeEndpoint(name) {
	const report = { connections: 0, bytes: 0, events: new Set() };
	const healthy = makeHealthy(report);
	const isTls = name.startsWith('tls');
	const secure = isTls && tls.createServer(certificate(trusted), (socket) => healthy.emit('connection', socket));

	const accept = (socket) => {
		report.connections++;
		sockets.add(socket.on('error', () => {}));
		socket.on('close', () => sockets.delete(socket));
		if (healed || faults[name] === null)
			(secure || healthy).emit('connection', socket);
		else
			socket.once('data', () => faults[name](socket, report));
	};

	const server = net.createServer({ noDelay: true }, accept);
	secure && secure.on('tlsClientError', () => {});
	reports[name] = report;

	return {
		listen: () => new Promise((resolve) => server.listen(name === 'absent' ? absentPort : 0, '127.0.0.1', () => {
			urls[name] = `http${isTls ? 's' : ''}://127.0.0.1:${server.address().port}/`;
			resolve();
		})),
		close: () => server.close(),
		setCertificate: (path) => secure.setSecureContext(certificate(path)),
	};
}

const endpoints = {};
for (const name of Object.keys(faults))
	endpoints[name] = makeEndpoint(name);

async function set(isHealed) {
	healed = isHealed;
	Object.values(reports).forEach((report) => { report.connections = 0; });
	sockets.forEach((socket) => socket.destroy());
	endpoints.tls_untrusted.setCertificate(healed ? trusted : untrusted);
	if (healed)
		await endpoints.absent.listen();
	else
		endpoints.absent.close();
}

function say(word, value) {
	console.log(`${word} ${JSON.stringify(value)}`);
}

async function obey(line) {
	if (line === 'report')
		say('report', Object.fromEntries(Object.entries(reports).map(([name, { events, ...rest }]) =>
			[name, { ...rest, events: events.size }])));
	else {
		await set(line === 'heal');
		say(line, true);
	}
}

(async () => {
	for (const name of Object.keys(faults))
		await endpoints[name].listen();
	await set(false);
	say('ports', urls);
	readline.createInterface({ input: process.stdin }).on('line', obey).on('close', () => process.exit(0));
})();
