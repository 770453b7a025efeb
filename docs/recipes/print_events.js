// print_events.js
//
// A webhook receiver for a first try: it prints each event and accepts it. It
// does not verify signatures, and does not notice duplicates; webhooks.js does.
//
// Environment: that of endpoint.js.

'use strict';

const { listen } = require('./endpoint');

listen((headers, body) => {
  console.log('received', body);
  return 204;
});
