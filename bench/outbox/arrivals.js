// arrivals.js: an endpoint that answers after a delay, and prints how many ms
// have gone by between the time in an event, data.at, and its arrival.
//
// Arguments: the delay in ms; a file for the process id, which is written when
// the port is open. The first line that is printed is the port.
'use strict';

const fs = require('fs');
const http = require('http');

const [delayMs, pidFile] = process.argv.slice(2);

// Date.now() counts whole milliseconds. What it says when it changes makes the
// finer clock one of the time of day.
const before = Date.now();
while (Date.now() === before);
const clockOffsetMs = Date.now() - performance.now();

const server = http.createServer((request, response) => {
	const arrivedAtMs = clockOffsetMs + performance.now();
	const chunks = [];
	request.on('data', (chunk) => chunks.push(chunk));
	request.on('end', () => {
		const { data } = JSON.parse(Buffer.concat(chunks));
		console.log((arrivedAtMs - data.at * 1000).toFixed(3));
		setTimeout(() => response.writeHead(204).end(), Number(delayMs));
	});
});

server.keepAliveTimeout = 0;
server.listen(0, '127.0.0.1', () => {
	console.log(server.address().port);
	fs.writeFileSync(pidFile, String(process.pid));
});
