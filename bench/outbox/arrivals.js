// arrivals.js: an endpoint that answers after a delay, and prints for each
// event how many ms have gone by between the time in it, data.at, and its
// arrival, and when it arrived, in seconds of the clock of this machine.
//
// Arguments: the delay in ms; a file for the process id, which is written when
// the port is open. The first line that is printed is the port.
//
// GET /become/MODE changes what it does with the next events:
//   answer         it answers 204: so it begins
//   fail           it answers 503
//   hang           it never answers
//   drip           it sends a byte of an answer that never ends every second
// GET /become/MODE/MS does so for MS ms. The answer is the time at which that
// ends, in seconds.
// Only those that it answers by 204 are printed. GET /held is answered by the
// number of those that are not answered to the end.
'use strict';

const fs = require('fs');
const http = require('http');

const [delayMs, pidFile] = process.argv.slice(2);
const DRIP_MS = 1000;
const CLOCK_MS = 50;

// Date.now() counts whole milliseconds, and this process may lose the CPU
// between two readings of clocks: both make the offset of the finer clock from
// the time of day smaller, never larger.
function largestClockOffsetMs() {
	const until = performance.now() + CLOCK_MS;
	let offset = -Infinity;
	while (performance.now() < until) {
		offset = Math.max(offset, Date.now() - performance.now());
	}
	return offset;
}
const clockOffsetMs = largestClockOffsetMs();
const nowMs = () => clockOffsetMs + performance.now();

function accept(arrivedAtMs, body, response) {
	const { data } = JSON.parse(body);
	console.log((arrivedAtMs - data.at * 1000).toFixed(3), (arrivedAtMs / 1000).toFixed(6));
	const answer = () => response.writeHead(204).end();
	if (Number(delayMs) > 0) {
		setTimeout(answer, Number(delayMs));	// 1 ms at least
	} else {
		answer();
	}
}

const modes = {
	answer: (request, response) => {
		const arrivedAtMs = nowMs();
		const chunks = [];
		request.on('data', (chunk) => chunks.push(chunk));
		request.on('end', () => accept(arrivedAtMs, Buffer.concat(chunks), response));
	},
	fail: (request, response) => {
		request.resume();
		response.writeHead(503).end();
	},
	hang: (request) => request.resume(),
	drip: (request, response) => {
		request.resume();
		response.writeHead(200);
		const timer = setInterval(() => response.write('.'), DRIP_MS);
		response.on('close', () => clearInterval(timer));
	},
};
let mode = modes.answer;
let held = 0;

function receive(request, response) {
	held++;
	response.on('close', () => held--);
	mode(request, response);
}

function become(name, forMs, response) {
	mode = modes[name];
	if (forMs) {
		setTimeout(() => { mode = modes.answer; }, Number(forMs));
	}
	response.end(`${((nowMs() + Number(forMs ?? 0)) / 1000).toFixed(6)}\n`);
}

const server = http.createServer((request, response) => {
	const [, command, name, forMs] = request.url.split('/');
	if (command === 'become') {
		become(name, forMs, response);
	} else if (command === 'held') {
		response.end(`${held}\n`);
	} else {
		receive(request, response);
	}
});

server.keepAliveTimeout = 0;
server.listen({ port: 0, host: '127.0.0.1', backlog: 1024 }, () => {
	console.log(server.address().port);
	fs.writeFileSync(pidFile, String(process.pid));
});
