// rascal makes its virtual host by the management API, then declares, publishes with confirms, retries and redelivers.
const assert = require('node:assert');
const { test } = require('node:test');
const { BrokerAsPromised, withDefaultConfig } = require('rascal');

const management = process.env.COMPAT_HTTP;

function config(name) {
  return withDefaultConfig({
    vhosts: {
      [name]: {
        assert: true,
        check: true,
        connection: { url: `${process.env.URL}/${name}`, management: { url: management } },
        exchanges: ['work', 'retry'],
        queues: {
          jobs: { options: { arguments: { 'x-dead-letter-exchange': 'retry' } } },
          later: { options: { arguments: { 'x-message-ttl': 200, 'x-dead-letter-exchange': 'work' } } },
          quorum: { options: { arguments: { 'x-queue-type': 'quorum' } } },
        },
        bindings: ['work[jobs] -> jobs', 'retry[jobs] -> later', 'work[quorum] -> quorum'],
        publications: { jobs: { exchange: 'work', routingKey: 'jobs' }, quorum: { queue: 'quorum' } },
        subscriptions: { jobs: { queue: 'jobs' }, quorum: { queue: 'quorum' } },
      },
    },
  });
}

async function published(publication) {
  return new Promise((resolve, reject) => publication.once('success', resolve).once('error', reject).once('return', reject));
}

test('a virtual host that rascal makes is its own', { skip: !management }, async () => {
  const name = `rascal-${process.pid}`;
  const broker = await BrokerAsPromised.create(config(name));
  const seen = [];
  const subscription = await broker.subscribe('jobs');
  const done = new Promise((resolve, reject) => {
    subscription.on('error', reject).on('message', (message, content, ackOrNack) => {
      seen.push(message.properties.headers['x-death']?.length ?? 0);
      if (seen.length === 1) return ackOrNack(new Error('once more'), { strategy: 'nack' });
      ackOrNack();
      resolve(content);
    });
  });
  await published(await broker.publish('jobs', { text: 'hello' }));
  assert.deepStrictEqual(await done, { text: 'hello' });
  assert.deepStrictEqual(seen, [0, 2]);
  const second = await BrokerAsPromised.create(config(name));
  await published(await second.publish('quorum', 'x'.repeat(300000)));
  await second.shutdown();
  await broker.purge();
  await broker.nuke();
});
