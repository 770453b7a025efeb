/*
 * never_ack.js
 *		For node --require: makes a consumer of docs/recipes print a line
 *		instead of sending its acknowledgement or rejection.
 */
'use strict';

const { dirname } = require('path');

const amqp = require(require.resolve('amqplib', { paths: [dirname(process.argv[1])] }));
const { connect } = amqp;

function neverAck(channel) {
  channel.ack = (message) => {
    console.log(`not acknowledged: ${message.properties.messageId}`);
  };
  channel.nack = (message) => {
    console.log(`not rejected: ${message.properties.messageId}`);
  };
  return channel;
}

amqp.connect = async (url) => {
  const connection = await connect(url);
  const createChannel = connection.createChannel.bind(connection);
  connection.createChannel = async () => neverAck(await createChannel());
  return connection;
};
