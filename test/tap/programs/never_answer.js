/*
 * never_answer.js
 *		For node --require: a receiver of docs/recipes that gets as far as its
 *		answer, says so, and never sends it.
 */
'use strict';

const { ServerResponse } = require('http');

ServerResponse.prototype.end = function neverEnd() {
  console.log(`not answered: ${this.statusCode}`);
  return this;
};
