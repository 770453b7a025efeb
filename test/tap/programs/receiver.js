/*
 * receiver.js
 *		An endpoint of webhooks for the TAP tests, on an ephemeral port of
 *		127.0.0.1, which it prints.  Ends with its standard input.
 *
 * Argument: a file, or none.  With a file no request is kept in memory, and a
 * line is written to it when an event arrives, and when it is accepted later:
 * name, position, milliseconds since 1970, and "t" if it is accepted, all
 * separated by tabs.
 *
 * Webhooks are POSTed to /BEHAVIOUR/NAME; the name distinguishes
 * subscriptions.  Every request is logged with the verdicts of the npm packages
 * standardwebhooks and cloudevents, which are independent of this project.
 *
 * Behaviours:
 *   ok             200
 *   fail           500
 *   gone           410
 *   refuse         422
 *   drop           closes the connection without an answer
 *   redirect       302 to /ok/redirected
 *   hang           no answer, ever
 *   drip           500, with a body of a byte a second, without end
 *   flood          500, with a body of FLOOD.length bytes
 *   half           200, but the connection is closed in the middle of the body
 *   garbage        an answer that is not HTTP
 *   turns-N        hangs for N seconds, then 200 for N seconds, and so on
 *   lazy-N         200 after up to N ms
 *   hold           no answer until POST /release/NAME, then 200
 *   late-N         no answer until POST /release/NAME, then N, with Retry-After
 *                  if that is 503
 *   retry-after-N  503 with Retry-After: N at an event's first attempt, then 200
 *   retry-date-N   the same, with the date that is N seconds away
 *   busy-N         503 with Retry-After: N, always
 *   many-N         429 with Retry-After: N, always
 *   missing-N      404 with Retry-After: N, always
 *   some-N         200 to N % of the requests, at random, 500 to the others
 *   collapse       200 to CALM_REQUESTS requests after CALM_MS without one, 500
 *                  to all others: it works until it is used
 *   told           500 as often per event as "fail" in its data says, or the
 *                  "status" in its data, with Retry-After if it has "after";
 *                  then 200; no answer until the release if its data has "hold",
 *                  or to one attempt if that is a number
 *   each-N         for CloudEvents in batched mode.  413 to a request with more
 *                  than N events.  Until POST /release/NAME, if the data of an
 *                  event has "fail": its "status", or 422, as often as that
 *                  says; if one has "hold", no answer.  Else 200
 *   switch         the behaviour that PUT /switch/NAME has set last
 *
 * Control:
 *   PUT  /secret/NAME         the secret to verify that name's requests with
 *   PUT  /switch/NAME         see above; before it, ok
 *   POST /heal/all            from now on each request is answered 200; ends the
 *                             connections of endpoints that hang
 *   POST /release/NAME        answers held requests, and later ones at once
 *   GET  /log/NAME            all requests so far; with ?fields=id,data.n only
 *                             these fields, of which the last is called n
 *   GET  /count/NAME          their number
 *   GET  /wait/NAME?requests=N&events=N&ms=N
 *                             answers when there were that many requests, or
 *                             different events, or the time is over
 */
'use strict';

const fs = require('fs');
const http = require('http');
const { Webhook } = require('standardwebhooks');
const { HTTP } = require('cloudevents');

const CALM_MS = 500;
const CALM_REQUESTS = 3;
const LATE_RETRY_S = 200;
const DRIP_MS = 1000;
const FLOOD = Buffer.alloc(4 * 1024 * 1024, 'x');

const file = process.argv[2] === undefined ? null : fs.openSync(process.argv[2], 'w');
const hanging = new Set();	// sockets
let healed = false;

const log = [];			// all requests, in the order of their arrival
const channels = new Map();	// by name: the state of a subscription
const waiters = new Set();	// functions that answer a GET /wait when it is time

function channel(name) {
	if (!channels.has(name))
		channels.set(name, {
			secret: null, behaviour: 'ok', released: false, held: [],
			requests: 0, attempts: new Map(), random: 1, last: 0, calm: 0,
		});
	return channels.get(name);
}

/* The verdict of each package: true, the parsed event, or the error. */
function verify(secret, body, headers) {
	try {
		new Webhook(secret).verify(body, headers);
		return true;
	} catch (error) {
		return String(error.message);
	}
}

function parseCloudEvent(body, headers) {
	if (!headers['ce-id'])
		return null;
	try {
		const event = HTTP.toEvent({ headers, body });
		return { ...event.toJSON(), valid: event.validate() };
	} catch (error) {
		return { valid: String(error.message) };
	}
}

/* The events of a request in batched mode; null: it is none. */
function parseBatch(body, headers) {
	if (!headers['content-type']?.startsWith('application/cloudevents-batch+json'))
		return null;
	return HTTP.toEvent({ headers, body })
		.map((event) => ({ ...event.toJSON(), valid: event.validate() }));
}

function parseJson(body) {
	try {
		return JSON.parse(body);
	} catch (error) {
		return null;
	}
}

/* The next of pseudo-random numbers from 0 to 1, which are the same in each run. */
function random(to) {
	to.random = (Math.imul(to.random, 1664525) + 1013904223) >>> 0;
	return to.random / 2 ** 32;
}

/* Has there been a pause, with fewer than CALM_REQUESTS requests since? */
function isCalm(to) {
	const now = Date.now();

	to.calm = now - to.last > CALM_MS ? CALM_REQUESTS : to.calm - 1;
	to.last = now;
	return to.calm > 0;
}

function decideEach(to, limit, events) {
	const refused = events.find((event) => event.attempt <= (event.data?.fail ?? 0));

	if (events.length > limit)
		return { status: 413 };
	if (to.released)
		return { status: 200 };
	if (events.some((event) => event.data?.hold))
		return { hold: true };
	return { status: refused ? refused.data.status ?? 422 : 200 };
}

/* What to do with a request: [action, ...] */
function decide(behaviour, to, attempt, data, events) {
	const [, kind, number] = /^([a-z-]+?)(?:-(\d+))?$/.exec(behaviour);
	switch (kind) {
		case 'ok': return { status: 200 };
		case 'fail': return { status: 500 };
		case 'gone': return { status: 410 };
		case 'refuse': return { status: 422 };
		case 'drop': return { drop: true };
		case 'redirect': return { status: 302, headers: { Location: '/ok/redirected' } };
		case 'hang': return { hold: true, forever: true };
		case 'drip': case 'flood': case 'half': case 'garbage': return { break: kind };
		case 'turns': return Math.floor(Date.now() / 1000 / number) % 2 ? { status: 200 } : { hold: true, forever: true };
		case 'lazy': return { hold: true, ms: random(to) * number };
		case 'hold': return to.released ? { status: 200 } : { hold: true };
		case 'late': return {
			hold: true,
			status: Number(number),
			headers: number === '503' ? { 'Retry-After': LATE_RETRY_S } : {},
		};
		case 'busy': return { status: 503, headers: { 'Retry-After': number } };
		case 'many': return { status: 429, headers: { 'Retry-After': number } };
		case 'missing': return { status: 404, headers: { 'Retry-After': number } };
		case 'some': return { status: random(to) < number / 100 ? 200 : 500 };
		case 'collapse': return { status: isCalm(to) ? 200 : 500 };
		case 'told':
			if ((data?.hold === true || data?.hold === attempt) && !to.released)
				return { hold: true };
			if (attempt > (data?.fail ?? 0))
				return { status: 200 };
			return {
				status: data.status ?? 500,
				headers: data.after ? { 'Retry-After': data.after } : {},
			};
		case 'each': return decideEach(to, number, events);
		case 'switch': return decide(to.behaviour, to, attempt, data, events);
		case 'retry-after':
		case 'retry-date': {
			if (attempt > 1)
				return { status: 200 };
			const value = kind === 'retry-after' ? number :
				new Date(Date.now() + number * 1000).toUTCString();
			return { status: 503, headers: { 'Retry-After': value } };
		}
		default: return { status: 404 };
	}
}

function drip(response) {
	if (response.socket?.destroyed !== false)
		return;
	response.write('x');
	setTimeout(drip, DRIP_MS, response);
}

/* Answers that no receiver should give. */
const breaks = {
	drip: (response) => drip(response.writeHead(500)),
	flood: (response) => response.writeHead(500).end(FLOOD),
	half: (response) => response.writeHead(200, { 'Content-Length': 100 })
		.write('half of', () => response.socket?.destroy()),
	garbage: ({ socket }) => socket.end('garbage\r\n\r\n'),
};

function answer(response, what) {
	if (what.break)
		breaks[what.break](response);
	else if (what.drop)
		response.socket.destroy();
	else {
		response.writeHead(what.status, what.headers);
		response.end(`status ${what.status}`);
	}
}

function writeLines({ name, id, events, status }) {
	const more = `${Date.now()}\t${status === 200 ? 't' : 'f'}`;
	const position = (event) => /_(\d+)_\d+$/.exec(event.id)[1];

	fs.writeSync(file, (events ?? [{ id }]).map((event) => `${name}\t${position(event)}\t${more}\n`).join(''));
}

/* The client of a held request may have disconnected. */
function release({ entry, response, status = 200, headers = {} }) {
	if (response.socket?.destroyed)
		return;
	entry.status = status;
	if (file !== null)
		writeLines(entry);
	answer(response, { status, headers });
}

/* Counts an attempt at each event, and returns the number of that at the first. */
function count(to, events) {
	events.forEach((event) => {
		event.attempt = (to.attempts.get(event.id) ?? 0) + 1;
		to.attempts.set(event.id, event.attempt);
	});
	return events[0].attempt;
}

function receive(behaviour, name, request, response, bytes) {
	const to = channel(name);
	const { headers } = request;
	const body = bytes.toString('utf8');
	const id = headers['webhook-id'];
	const events = parseBatch(body, headers);
	const attempt = count(to, events ?? [{ id }]);
	const parsed = parseJson(body);
	const data = headers['ce-id'] ? parsed : parsed?.data;
	const what = healed ? { status: 200 } : decide(behaviour, to, attempt, data, events ?? []);

	const entry = {
		name, id, attempt, headers, body, data, events,
		type: headers['ce-type'] ?? parsed?.type ?? null,
		at: Date.now(),
		status: what.status ?? 0,
		utf8: bytes.equals(Buffer.from(body, 'utf8')),
		verified: to.secret === null ? null : verify(to.secret, body, headers),
		event: parseCloudEvent(body, headers),
	};

	to.requests++;
	if (file === null)
		log.push(entry);
	else
		writeLines(entry);
	if (what.forever || what.break)
		hanging.add(request.socket);
	if (!what.hold)
		answer(response, what);
	else if (what.ms !== undefined)
		setTimeout(release, what.ms, { entry, response });
	else if (!what.forever)
		to.held.push({ entry, response, status: what.status, headers: what.headers });
	waiters.forEach((waiter) => waiter());
}

function wait(name, query, response) {
	const to = channel(name);
	const requests = Number(query.get('requests') ?? 0);
	const events = Number(query.get('events') ?? 0);
	const reached = () => to.requests >= requests && to.attempts.size >= events;
	const finish = () => {
		waiters.delete(look);
		clearTimeout(timer);
		answerJson(response, reached());
	};
	const look = () => reached() && finish();
	const timer = setTimeout(finish, Number(query.get('ms')));

	waiters.add(look);
	look();
}

/* Some fields of an object. */
function pick(entry, fields) {
	return Object.fromEntries(fields.map((field) => {
		const names = field.split('.');

		return [names.at(-1), names.reduce((value, name) => value?.[name], entry) ?? null];
	}));
}

function answerJson(response, value) {
	response.writeHead(200, { 'Content-Type': 'application/json' });
	response.end(JSON.stringify(value));
}

function control(verb, name, request, response, bytes, query) {
	const to = channel(name);
	switch (`${request.method} ${verb}`) {
		case 'GET log': {
			const entries = log.filter((entry) => entry.name === name);
			const fields = query.get('fields')?.split(',');

			return answerJson(response, fields ? entries.map((entry) => pick(entry, fields)) : entries);
		}
		case 'GET count':
			return answerJson(response, to.requests);
		case 'GET wait':
			return wait(name, query, response);
		case 'PUT secret':
			to.secret = bytes.toString();
			break;
		case 'PUT switch':
			to.behaviour = bytes.toString();
			break;
		case 'POST heal':
			healed = true;
			hanging.forEach((socket) => socket.destroy());
			break;
		case 'POST release':
			to.released = true;
			to.held.splice(0).forEach(release);
			break;
		default:
			return false;
	}
	answerJson(response, true);
	return true;
}

const server = http.createServer((request, response) => {
	const url = new URL(request.url, 'http://receiver');
	const [, verb, name] = url.pathname.split('/');
	const chunks = [];

	request.on('data', (chunk) => chunks.push(chunk));
	request.on('end', () => {
		const bytes = Buffer.concat(chunks);

		if (control(verb, name, request, response, bytes, url.searchParams) === false)
			receive(verb, name, request, response, bytes);
	});
});

server.on('connection', (socket) => socket.on('error', () => {}).on('close', () => hanging.delete(socket)));
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.resume().on('end', () => process.exit(0));
