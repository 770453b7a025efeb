/*
 * any_controller.js
 *		For node --require: the mock broker of librdkafka names a controller
 *		that does not exist. Lets kafkajs take any broker in its place.
 */
'use strict';

const { dirname } = require('path');

const Cluster = require(require.resolve('kafkajs/src/cluster', { paths: [dirname(process.argv[1])] }));

Cluster.prototype.findControllerBroker = function findAnyBroker() {
  const [[nodeId]] = Object.entries(this.brokerPool.brokers);
  return this.findBroker({ nodeId });
};
