// A tour of server-everything through an endpoint: every feature of one era, once.
// Usage: node everything.mjs <SDK generation> <JSON: { url, token?, upstream?, era? }>
// `upstream` is the name it has on a merged endpoint; absent on a pure one. `era` is legacy (the
// default) or modern.
import assert from 'node:assert/strict';
import { connect } from './connect.mjs';
import { eventually, tour } from './report.mjs';

const sdk = Number(process.argv[2]);
const { url, token, upstream, era = 'legacy' } = JSON.parse(process.argv[3]);
const name = (bare) => (upstream ? `${upstream}__${bare}` : bare);
const uri = (bare) => (upstream ? `${upstream}+${bare}` : bare);
const DOCUMENT = uri('demo://resource/static/document/features.md');
const TEMPLATE = uri('demo://resource/dynamic/text/{resourceId}');
const text = (result) => result.content.map((block) => block.text ?? '').join('\n');

const asked = [];
let roots = [{ uri: 'file:///first', name: 'first' }];
const answer = {
  'sampling/createMessage': (params) => {
    asked.push(params);
    return { role: 'assistant', model: 'tour-model', content: { type: 'text', text: 'sampled answer' } };
  },
  'elicitation/create': (params) => {
    asked.push(params);
    return params.mode === 'url'
      ? { action: 'accept' }
      : { action: 'accept', content: { name: 'Ada Lovelace', check: true, interpretation: 'snake' } };
  },
  'roots/list': () => ({ roots }),
};

const { client, seen, call, close } = await connect(sdk, { url, token, answer, era });
const isModern = era === 'modern';
const saw = (method, matches = () => true) => seen.some((notice) => notice.method === method && matches(notice.params));

async function makeResource() {
  const data = `data:text/plain;base64,${Buffer.from('hello '.repeat(50)).toString('base64')}`;
  const made = await call(name('gzip-file-as-resource'), { name: 'tour.gz', data });
  return made.content.find((block) => block.type === 'resource_link').uri;
}

const steps = {
  async listed() {
    // On a merged endpoint a slow starter is announced and shows up in a later list.
    await eventually(
      'the server in the list',
      async () => (await client.listTools()).tools.some((tool) => tool.name === name('echo')),
      45_000,
    );
  },
  async handshake() {
    const capabilities = client.getServerCapabilities();
    assert.ok(capabilities.tools?.listChanged && capabilities.resources?.subscribe && capabilities.prompts);
    assert.ok(capabilities.logging && capabilities.completions);
    if (!isModern) await client.ping();
  },
  async tools() {
    // The server shows some tools only to clients that can be asked.
    const names = (await client.listTools()).tools.map((tool) => tool.name);
    for (const bare of ['echo', 'get-sum', 'trigger-sampling-request', 'trigger-url-elicitation', 'get-roots-list']) {
      assert.ok(names.includes(name(bare)), `${name(bare)} in ${names}`);
    }
    assert.match(text(await call(name('get-sum'), { a: 2, b: 3 })), /\b5\b/);
    assert.match(text(await call(name('echo'), { message: 'καλημέρα ☀' })), /καλημέρα ☀/);
    const image = await call(name('get-tiny-image'));
    assert.ok(image.content.some((block) => block.type === 'image' && block.data.length > 100));
    const structured = await call(name('get-structured-content'), { location: 'Chicago' });
    assert.equal(typeof structured.structuredContent.temperature, 'number');
  },
  async tool_errors() {
    const wrong = await call(name('get-sum'), { a: 'x' }).catch((error) => error);
    assert.ok(wrong.isError || wrong.code === -32602, JSON.stringify(wrong));
    const unknown = await call(name('no-such-tool')).catch((error) => error);
    assert.ok(unknown.isError || unknown.code === -32602, JSON.stringify(unknown));
  },
  async resources() {
    const uris = (await client.listResources()).resources.map((resource) => resource.uri);
    assert.ok(uris.includes(DOCUMENT), `${DOCUMENT} in ${uris}`);
    const { contents } = await client.readResource({ uri: DOCUMENT });
    assert.equal(contents[0].uri, DOCUMENT);
    assert.match(contents[0].text, /Everything Server/);
    const links = (await call(name('get-resource-links'), { count: 2 })).content.filter(
      (block) => block.type === 'resource_link',
    );
    assert.equal(links.length, 2);
    for (const link of links) assert.ok((await client.readResource({ uri: link.uri })).contents.length > 0);
    const missing = await client.readResource({ uri: uri('demo://nowhere') }).catch((error) => error);
    assert.ok(missing.code < 0, String(missing));
  },
  async templates() {
    const { resourceTemplates } = await client.listResourceTemplates();
    assert.ok(resourceTemplates.some((template) => template.uriTemplate === TEMPLATE));
    const wanted = TEMPLATE.replace('{resourceId}', '7');
    const { contents } = await client.readResource({ uri: wanted });
    assert.equal(contents[0].uri, wanted);
    assert.match(contents[0].text, /Resource 7/);
  },
  async prompts() {
    const names = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
    assert.ok(names.includes(name('args-prompt')), String(names));
    const { messages } = await client.getPrompt({ name: name('args-prompt'), arguments: { city: 'Oslo' } });
    assert.match(messages[0].content.text, /Oslo/);
    const embedded = await client.getPrompt({
      name: name('resource-prompt'),
      arguments: { resourceType: 'Text', resourceId: '3' },
    });
    const resource = embedded.messages.find((message) => message.content.type === 'resource').content.resource;
    assert.equal(resource.uri, TEMPLATE.replace('{resourceId}', '3'));
  },
  async completion() {
    const ref = { type: 'ref/prompt', name: name('completable-prompt') };
    const first = await client.complete({ ref, argument: { name: 'department', value: 'Eng' } });
    assert.deepEqual(first.completion.values, ['Engineering']);
    const second = await client.complete({
      ref,
      argument: { name: 'name', value: '' },
      context: { arguments: { department: 'Engineering' } },
    });
    assert.ok(second.completion.values.length > 1);
    const template = await client.complete({
      ref: { type: 'ref/resource', uri: TEMPLATE },
      argument: { name: 'resourceId', value: '4' },
    });
    assert.deepEqual(template.completion.values, ['4']);
  },
  async logging() {
    await client.setLoggingLevel('debug');
    await call(name('toggle-simulated-logging'));
    await eventually('a log message', () => saw('notifications/message', ({ data }) => /message/i.test(data)));
    await call(name('toggle-simulated-logging'));
  },
  async progress() {
    const steps = [];
    // SDK 2.x reports the rounds of a call as progress too, without a total.
    const onprogress = ({ progress, total }) => total && steps.push([progress, total]);
    await call(name('trigger-long-running-operation'), { duration: 0.6, steps: 3 }, { onprogress });
    // SDK 1.x forgets who wants progress as it reads the reply, and a WebSocket or an event source hands
    // over both at once.
    const isOneStream = url.startsWith('ws:') || new URL(url).pathname.startsWith('/sse');
    const sure = isOneStream ? 2 : 3;
    assert.deepEqual(steps.slice(0, sure), [[1, 3], [2, 3], [3, 3]].slice(0, sure));
  },
  async cancellation() {
    const controller = new AbortController();
    const started = Date.now();
    const running = call(
      name('trigger-long-running-operation'),
      { duration: 30, steps: 150 },
      { signal: controller.signal, onprogress: () => controller.abort('enough') },
    );
    await assert.rejects(running);
    assert.match(text(await call(name('echo'), { message: 'after' })), /after/);
    assert.ok(Date.now() - started < 10_000);
  },
  async sampling() {
    const result = await call(name('trigger-sampling-request'), { prompt: 'Say something', maxTokens: 7 });
    assert.match(text(result), /sampled answer/);
    assert.match(JSON.stringify(asked.at(-1)), /Say something/);
  },
  async elicitation_form() {
    const result = await call(name('trigger-elicitation-request'));
    assert.match(text(result), /Ada Lovelace/);
    assert.equal(asked.at(-1).requestedSchema.properties.integer.maximum, 100);
  },
  async elicitation_url() {
    const wanted = 'https://example.com/consent';
    await call(name('trigger-url-elicitation'), { url: wanted });
    const question = asked.at(-1);
    assert.equal(question.mode, 'url');
    assert.equal(question.url, wanted);
    if (isModern) return;
    assert.ok(question.elicitationId);
    const refused = await call(name('trigger-url-elicitation'), { url: wanted, errorPath: true }).catch(
      (error) => error,
    );
    assert.equal(refused.code, -32042, String(refused));
    assert.ok(refused.data.elicitations[0].url.startsWith('https://'));
  },
  // A tool that its server runs only as a task, for a client that asks for none.
  async task() {
    const result = await call(name('simulate-research-query'), { topic: 'python', ambiguous: true });
    assert.match(text(result), /Research Report: python \(snake\)/);
    assert.match(asked.at(-1).message, /multiple interpretations/);
  },
  async roots() {
    assert.match(text(await call(name('get-roots-list'))), /file:\/\/\/first/);
    if (isModern) return;
    roots = [{ uri: 'file:///second', name: 'second' }];
    await client.sendRootsListChanged();
    await eventually('the new roots', async () =>
      /file:\/\/\/second/.test(text(await call(name('get-roots-list')))),
    );
  },
  async subscriptions() {
    await client.subscribeResource({ uri: DOCUMENT });
    await call(name('toggle-subscriber-updates'));
    await eventually('an update', () => saw('notifications/resources/updated', (params) => params.uri === DOCUMENT));
    await call(name('toggle-subscriber-updates'));
    await client.unsubscribeResource({ uri: DOCUMENT });
  },
  async listening() {
    seen.length = 0;
    const changes = await client.listen({ resourcesListChanged: true, resourceSubscriptions: [DOCUMENT] });
    await call(name('toggle-subscriber-updates'));
    await makeResource();
    await eventually('an update', () => saw('notifications/resources/updated', (params) => params.uri === DOCUMENT));
    await eventually('a change notice', () => saw('notifications/resources/list_changed'));
    await call(name('toggle-subscriber-updates'));
    await changes.close();
  },
  async list_changed() {
    seen.length = 0;
    const link = await makeResource();
    await eventually('a change notice', () => saw('notifications/resources/list_changed'));
    const uris = (await client.listResources()).resources.map((resource) => resource.uri);
    assert.ok(uris.includes(link), `${link} in ${uris}`);
    assert.ok((await client.readResource({ uri: link })).contents[0].blob.length > 10);
  },
};
const OF_LEGACY = ['logging', 'subscriptions', 'list_changed'];
const isTaken = (step) => (isModern ? !OF_LEGACY.includes(step) : step !== 'listening');
await tour(Object.fromEntries(Object.entries(steps).filter(([step]) => isTaken(step))), close);
