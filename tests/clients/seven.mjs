// One call to each of the seven reference servers behind one merged endpoint.
// Usage: node seven.mjs <SDK generation> <JSON: { url, token?, directory, repository }>
import assert from 'node:assert/strict';
import http from 'node:http';
import { connect } from './connect.mjs';
import { eventually, tour } from './report.mjs';

const sdk = Number(process.argv[2]);
const { url, token, directory, repository } = JSON.parse(process.argv[3]);
const answer = { 'roots/list': () => ({ roots: [{ uri: `file://${directory}`, name: 'work' }] }) };
const { client, call, close } = await connect(sdk, { url, token, answer });
const text = async (name, args) => {
  const result = await call(name, args);
  const all = result.content.map((block) => block.text ?? '').join('\n');
  assert.ok(!result.isError, all);
  return all;
};

await tour(
  {
    async all_listed() {
      const wanted = [
        'everything__get-sum',
        'files__read_text_file',
        'memory__read_graph',
        'thinking__sequentialthinking',
        'fetch__fetch',
        'git__git_status',
        'time__get_current_time',
      ];
      let names = [];
      // A list carries what is up; slow starters are announced and show up in a later one.
      await eventually('all seven in one list', async () => {
        names = (await client.listTools()).tools.map((tool) => tool.name);
        return wanted.every((name) => names.includes(name));
      }, 45_000);
      assert.equal(new Set(names).size, names.length);
    },
    async everything() {
      assert.match(await text('everything__get-sum', { a: 20, b: 22 }), /42/);
    },
    async files() {
      const path = `${directory}/note.txt`;
      await text('files__write_file', { path, content: 'written through the gateway' });
      assert.match(await text('files__read_text_file', { path }), /written through the gateway/);
    },
    async memory() {
      const entities = [{ name: 'Drawbridge', entityType: 'gateway', observations: ['opens'] }];
      await text('memory__create_entities', { entities });
      assert.match(await text('memory__read_graph', {}), /Drawbridge/);
    },
    async thinking() {
      const thought = { thought: 'one', nextThoughtNeeded: false, thoughtNumber: 1, totalThoughts: 1 };
      assert.match(await text('thinking__sequentialthinking', thought), /thoughtNumber/);
    },
    async fetch() {
      const page = http.createServer((request, response) => {
        response.writeHead(request.url === '/page' ? 200 : 404, { 'Content-Type': 'text/plain' });
        response.end('fetched through the gateway');
      });
      await new Promise((resolve) => page.listen(0, '127.0.0.1', resolve));
      try {
        const address = `http://127.0.0.1:${page.address().port}/page`;
        assert.match(await text('fetch__fetch', { url: address }), /fetched through the gateway/);
      } finally {
        page.close();
        page.closeAllConnections();
      }
    },
    async git() {
      assert.match(await text('git__git_status', { repo_path: repository }), /branch/i);
    },
    async time() {
      assert.match(await text('time__get_current_time', { timezone: 'Europe/Athens' }), /Athens/);
    },
    async bare_name_resolves_where_it_is_unique() {
      assert.match(await text('get_current_time', { timezone: 'UTC' }), /UTC/);
    },
    async prompts_and_resources() {
      const prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
      assert.ok(prompts.includes('everything__simple-prompt') && prompts.includes('fetch__fetch'), String(prompts));
      const { messages } = await client.getPrompt({ name: 'everything__simple-prompt' });
      assert.ok(messages.length > 0);
      const [first] = (await client.listResources()).resources;
      assert.ok((await client.readResource({ uri: first.uri })).contents.length > 0);
    },
  },
  close,
);
