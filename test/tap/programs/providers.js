/*
 * providers.js
 *		The payment provider and the carrier of a saga, on an ephemeral port of
 *		127.0.0.1, which it prints.
 *
 * POST /charge, /ship and /refund with {"order", "amount"} have one effect for
 * each Idempotency-Key, and give the same answer when they are repeated.
 * Charges of orders with "poor" in their name are refused, and shipments of
 * those with "far".  Of orders with "shaky" in their name, each key fails at the
 * first call, and at the second one after its effect.
 *
 * GET /effects answers the effects, as {"charge": {order: amount}, ...}, and
 * GET /calls the number of all calls.
 */
'use strict';

const http = require('http');

const answers = new Map();	// by key
const tries = new Map();
const effects = { charge: {}, ship: {}, refund: {} };
let calls = 0;

function perform(step, key, { order, amount }) {
	const number = (tries.get(key) ?? 0) + 1;

	calls += 1;
	tries.set(key, number);
	if (order.includes('shaky') && number === 1)
		return { status: 503, body: 'busy' };
	if (!answers.has(key)) {
		const refused = (step === 'charge' && order.includes('poor'))
			|| (step === 'ship' && order.includes('far'));

		answers.set(key, { status: refused ? 422 : 200, body: `${step} ${answers.size}` });
		if (!refused)
			effects[step][order] = (effects[step][order] ?? 0) + amount;
	}
	return order.includes('shaky') && number === 2
		? { status: 500, body: 'crashed' } : answers.get(key);
}

async function read(message) {
	const chunks = [];

	for await (const chunk of message)
		chunks.push(chunk);
	return JSON.parse(Buffer.concat(chunks));
}

async function answer(message) {
	if (message.url === '/effects')
		return { status: 200, body: JSON.stringify(effects) };
	if (message.url === '/calls')
		return { status: 200, body: JSON.stringify(calls) };
	return perform(message.url.slice(1), message.headers['idempotency-key'], await read(message));
}

const server = http.createServer(async (message, response) => {
	const { status, body } = await answer(message);

	response.writeHead(status);
	response.end(body);
});

server.listen(0, '127.0.0.1', () => console.log(`listening on port ${server.address().port}`));
