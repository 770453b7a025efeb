/*
 * killed_saga.js
 *		For node --require: kills saga.js once at each point between two of its
 *		steps, as kill -9 does.
 *
 * Points are before and after each call of a provider, before and after each
 * COMMIT of a transaction that has enqueued an event, and before the first
 * acknowledgement of an event.  The directory KILLS has a file for each point
 * at which a process was killed.
 */
'use strict';

const fs = require('fs');
const { dirname } = require('path');

const { Client } = require(require.resolve('pg', { paths: [dirname(process.argv[1])] }));
const { query } = Client.prototype;
const { fetch } = globalThis;

function point(name) {
	const file = `${process.env.KILLS}/${name}`;

	if (!fs.existsSync(file)) {
		fs.writeFileSync(file, '');
		process.kill(process.pid, 'SIGKILL');
	}
}

async function commit(client, parameters) {
	const topic = client.enqueued;

	client.enqueued = null;
	point(`before ${topic}`);
	const result = await query.apply(client, parameters);
	point(`after ${topic}`);
	return result;
}

Client.prototype.query = function queryOrDie(...parameters) {
	const [text, values] = parameters;

	if (typeof text === 'string' && text.includes('outbox_enqueue'))
		[this.enqueued] = values;
	if (typeof text === 'string' && text.includes('outbox_ack'))
		point('before ack');
	if (text === 'COMMIT' && this.enqueued)
		return commit(this, parameters);
	return query.apply(this, parameters);
};

globalThis.fetch = async (url, options) => {
	const step = url.split('/').at(-1);

	point(`before ${step}`);
	const response = await fetch(url, options);
	point(`after ${step}`);
	return response;
};
