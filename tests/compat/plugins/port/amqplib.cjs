// Leads connections for port 5672 of this machine to the broker under test (COMPAT_HOST, COMPAT_PORT).
// amqplib's tests name amqp://localhost; only the address changes, what is on the wire does not.
'use strict';
const net = require('node:net');

const LOCAL = new Set(['localhost', '127.0.0.1', '::1', '[::1]', undefined]);
const original = net.Socket.prototype.connect;

net.Socket.prototype.connect = function connect(...args) {
  // net.connect() hands over its arguments already normalised, as one array: [options, callback].
  const options = Array.isArray(args[0]) ? args[0][0] : args[0];
  if (options && typeof options === 'object' && Number(options.port) === 5672 && LOCAL.has(options.host)) {
    options.host = process.env.COMPAT_HOST;
    options.port = Number(process.env.COMPAT_PORT);
  }
  return original.apply(this, args);
};
