/*
 * never_commit.js
 *		For node --require: makes a consumer of Kafka print a line instead of
 *		committing an offset.
 */
'use strict';

const { dirname } = require('path');

const { Kafka } = require(require.resolve('kafkajs', { paths: [dirname(process.argv[1])] }));
const { consumer: makeConsumer } = Kafka.prototype;

Kafka.prototype.consumer = function makeOneThatNeverCommits(options) {
  const consumer = makeConsumer.call(this, options);
  const { run } = consumer;

  consumer.run = ({ eachMessage, ...others }) => run({
    ...others,
    eachMessage: async (payload) => {
      await eachMessage(payload);
      console.log(`not committed: ${payload.topic}`);
      return new Promise(() => {});
    },
  });
  return consumer;
};
