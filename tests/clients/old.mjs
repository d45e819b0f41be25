// A tour of server-everything by an older release of the TypeScript SDK, as programs that were deployed
// with it have it. Usage: node old.mjs <package> <JSON: { url, token?, elicits? }>
// `package` is the folder in node_modules (sdk-1.10, sdk-1.22); `elicits` says that the release knows elicitation.
import assert from 'node:assert/strict';
import { eventually, tour, within } from './report.mjs';

const sdk = process.argv[2];
const { url, token, elicits = false } = JSON.parse(process.argv[3]);
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
const schemas = await import(`${sdk}/types.js`);

const capabilities = { sampling: {}, roots: { listChanged: true }, ...(elicits && { elicitation: {} }) };
const client = new Client({ name: `tour-${sdk}`, version: '1.0.0' }, { capabilities });
const seen = [];
let broken;
client.onerror = (error) => void (broken ??= error);
client.setRequestHandler(schemas.CreateMessageRequestSchema, () => ({
  role: 'assistant',
  model: 'tour-model',
  content: { type: 'text', text: 'sampled answer' },
}));
client.setRequestHandler(schemas.ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///first', name: 'first' }] }));
if (elicits) {
  client.setRequestHandler(schemas.ElicitRequestSchema, () => ({
    action: 'accept',
    content: { name: 'Ada Lovelace', check: true },
  }));
}
for (const schema of [schemas.LoggingMessageNotificationSchema, schemas.ResourceUpdatedNotificationSchema]) {
  client.setNotificationHandler(schema, ({ method, params }) => void seen.push({ method, params }));
}
const requestInit = token ? { headers: { Authorization: `Bearer ${token}` } } : undefined;
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
await within(60_000, 'connecting', client.connect(transport));

const DOCUMENT = 'demo://resource/static/document/features.md';
const text = (result) => result.content.map((block) => block.text ?? '').join('\n');
const call = (name, args = {}, options = {}) => client.callTool({ name, arguments: args }, undefined, options);
const saw = (method) => seen.some((notice) => notice.method === method);
const together = (count, start) => Promise.all(Array.from({ length: count }, (_, at) => start(at)));

const steps = {
  async tools() {
    const names = (await client.listTools()).tools.map((tool) => tool.name);
    assert.ok(names.includes('echo') && names.includes('trigger-sampling-request'), String(names));
    assert.match(text(await call('echo', { message: 'καλημέρα ☀' })), /καλημέρα ☀/);
  },
  async resources_and_prompts() {
    assert.match((await client.readResource({ uri: DOCUMENT })).contents[0].text, /Everything Server/);
    const prompt = await client.getPrompt({ name: 'args-prompt', arguments: { city: 'Oslo' } });
    assert.match(prompt.messages[0].content.text, /Oslo/);
    const ref = { type: 'ref/prompt', name: 'completable-prompt' };
    const { completion } = await client.complete({ ref, argument: { name: 'department', value: 'Eng' } });
    assert.deepEqual(completion.values, ['Engineering']);
  },
  async slow_call() {
    assert.match(text(await call('trigger-long-running-operation', { duration: 1.2, steps: 1 })), /completed/);
  },
  async progress() {
    const seen = [];
    const onprogress = ({ progress, total }) => void seen.push([progress, total]);
    await call('trigger-long-running-operation', { duration: 0.9, steps: 3 }, { onprogress });
    assert.deepEqual(seen.slice(0, 2), [[1, 3], [2, 3]]);
  },
  async logging() {
    await client.setLoggingLevel('debug');
    await call('toggle-simulated-logging');
    await eventually('a log message', () => saw('notifications/message'));
    await call('toggle-simulated-logging');
  },
  async sampling() {
    assert.match(text(await call('trigger-sampling-request', { prompt: 'Say something' })), /sampled answer/);
  },
  async roots() {
    assert.match(text(await call('get-roots-list')), /file:\/\/\/first/);
  },
  ...(elicits && {
    async elicitation() {
      assert.match(text(await call('trigger-elicitation-request')), /Ada Lovelace/);
    },
  }),
  async subscriptions() {
    await client.subscribeResource({ uri: DOCUMENT });
    await call('toggle-subscriber-updates');
    await eventually('an update', () => saw('notifications/resources/updated'));
    await call('toggle-subscriber-updates');
    await client.unsubscribeResource({ uri: DOCUMENT });
  },
  async hundred_parallel_calls() {
    const slow = await together(100, () => call('trigger-long-running-operation', { duration: 1, steps: 1 }));
    assert.equal(slow.filter((result) => /completed/.test(text(result))).length, 100);
    const quick = await together(256, (at) => call('echo', { message: `call ${at}` }));
    quick.forEach((result, at) => assert.match(text(result), new RegExp(`call ${at}\\b`)));
  },
  async session_is_still_good() {
    assert.match(text(await call('echo', { message: 'after' })), /after/);
    assert.equal(broken, undefined, String(broken));
  },
};
await tour(steps, async () => {
  await transport.terminateSession?.();
  await client.close();
});
