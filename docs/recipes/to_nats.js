// to_nats.js
//
// Publishes the events of a subscription to NATS JetStream. The subject is a
// prefix and the topic; a stream that has this subject must exist. JetStream
// drops copies of a message by its id, within the duplicate window of the
// stream (2 min, unless it was set).
//
// Environment: NATS_URL, SUBJECT_PREFIX, STREAM (if set, only this stream may
// take the messages), and that of pull.js.

'use strict';

const { connect, headers: makeHeaders, errors } = require('@nats-io/transport-node');
const { JetStreamApiError, jetstream, jetstreamManager } = require('@nats-io/jetstream');
const { Refused, run } = require('./pull');

const URL = process.env.NATS_URL ?? 'nats://127.0.0.1:4222';
const PREFIX = process.env.SUBJECT_PREFIX ?? 'events.';
const { STREAM } = process.env;
const TIMEOUT_MS = 5 * 1000;
const UNAVAILABLE = 503; // the status of errors that pass

// A token of a subject is not empty, and has no space and no wildcard.
const SUBJECT = /^[^\s.*>]+(\.[^\s.*>]+)*$/;

// Headers of the event must not be instructions for the server.
function headersOf(event) {
  const headers = makeHeaders();
  for (const [name, value] of Object.entries(event.headers ?? {})) {
    if (!/^nats-/i.test(name)) {
      headers.set(name, value);
    }
  }
  headers.set('type', event.type);
  if (event.key !== null) {
    headers.set('key', event.key);
  }
  return headers;
}

function isRefusal(error) {
  return error instanceof errors.InvalidArgumentError // larger than max_payload
    || (error instanceof JetStreamApiError && error.status !== UNAVAILABLE);
}

// A server that has just started answers only after JetStream has.
async function open() {
  const connection = await connect({ servers: URL, reconnect: false, timeout: TIMEOUT_MS });
  try {
    await jetstreamManager(connection, { timeout: TIMEOUT_MS });
  } catch (error) {
    await connection.close();
    throw error;
  }
  const stream = jetstream(connection, { timeout: TIMEOUT_MS });

  const publish = async (event) => {
    const subject = PREFIX + event.topic;
    if (!SUBJECT.test(subject)) {
      throw new Refused('the topic cannot be a subject');
    }
    try {
      await stream.publish(subject, event.body, {
        msgID: event.id,
        headers: headersOf(event),
        expect: STREAM ? { streamName: STREAM } : {},
      });
    } catch (error) {
      throw isRefusal(error) ? new Refused(error.message) : error;
    }
  };
  return { publish, close: () => connection.close() };
}

run(open);
