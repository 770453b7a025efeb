/*
 * never_answer.js
 *		For node --require: makes a receiver of docs/recipes print a line
 *		instead of sending its answer.
 */
'use strict';

const { ServerResponse } = require('http');

ServerResponse.prototype.end = function neverEnd() {
  console.log(`not answered: ${this.statusCode}`);
  return this;
};
