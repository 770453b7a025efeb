/*
 * kafka_leader.js
 *		For node --require: makes a consumer of Kafka that leads its group wait
 *		before it assigns the partitions.
 *
 * As soon as the leader has done so, the broker of these tests refuses the
 * members that have not asked yet for their partitions, which ends them.  Kafka
 * lets them ask later.
 */
'use strict';

const { dirname } = require('path');

const kafkajs = require(require.resolve('kafkajs', { paths: [dirname(process.argv[1])] }));

const { Kafka, PartitionAssigners: { roundRobin } } = kafkajs;
const { consumer: makeConsumer } = Kafka.prototype;

const OTHERS_MS = 1000;

const patient = (context) => {
  const assigner = roundRobin(context);
  const wait = () => new Promise((resolve) => { setTimeout(resolve, OTHERS_MS); });
  return { ...assigner, assign: (group) => wait().then(() => assigner.assign(group)) };
};

Kafka.prototype.consumer = function makeOneThatWaits(options) {
  return makeConsumer.call(this, { ...options, partitionAssigners: [patient] });
};
