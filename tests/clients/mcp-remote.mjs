// mcp-remote as the bridge of a stdio client: from 401 to a tool call, and through a scope step-up.
// Usage: node mcp-remote.mjs <JSON: { url, plainTool, scopedTool, scope, directory }>
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import readline from 'node:readline';
import { eventually, tour, within } from './report.mjs';
import { visit } from './browser.mjs';

const { url, plainTool, scopedTool, directory, atLogin } = JSON.parse(process.argv[2]);
const program = new URL('../node_modules/mcp-remote/dist/proxy.js', import.meta.url).pathname;
const child = spawn(process.execPath, [program, url, '--allow-http', '--transport', 'http-only'], {
  // A directory of its own for its tokens, and no browser to open.
  env: { ...process.env, MCP_REMOTE_CONFIG_DIR: directory, BROWSER: 'true', PATH: directory },
  stdio: ['pipe', 'pipe', 'pipe'],
});

let visits = 0;
let said = '';
const visited = new Set();
/** Opens every authorization page that it prints, as its user would. */
readline.createInterface({ input: child.stderr }).on('line', (line) => {
  said += `${line}\n`;
  const link = /https?:\/\/\S+[?&]response_type=code\S*/.exec(line)?.[0];
  if (!link || visited.has(link)) return;
  visited.add(link);
  visits += 1;
  const redirect = new URL(link).searchParams.get('redirect_uri');
  // It listens there itself, though on a step-up only a moment after it has printed the link.
  visit(link, redirect)
    .then((landed) => eventually('its callback', () => fetch(landed).catch(() => false)))
    .catch((error) => { said += `${error.stack}\n`; });
});

const waiting = new Map();
readline.createInterface({ input: child.stdout }).on('line', (line) => {
  const message = JSON.parse(line);
  waiting.get(message.id)?.(message);
});
let next = 0;
const request = (method, params) => {
  next += 1;
  const id = next;
  const reply = new Promise((resolve) => waiting.set(id, resolve));
  child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', id, method, params })}\n`);
  return within(40_000, method, reply).catch((error) => { throw new Error(`${error.message}\n${said}`); });
};
const call = (name) => request('tools/call', { name, arguments: {} });

await tour(
  {
    async from_401_to_a_tool_call() {
      const hello = await request('initialize', {
        protocolVersion: '2025-11-25',
        capabilities: {},
        clientInfo: { name: 'tour-mcp-remote', version: '1.0.0' },
      });
      assert.ok(hello.result, `${JSON.stringify(hello)}\n${said}`);
      child.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n');
      const reply = await call(plainTool);
      assert.ok(reply.result && !reply.result.isError, `${JSON.stringify(reply)}\n${said}`);
      assert.equal(visits, 1);
    },
    async through_a_step_up() {
      let reply = await call(scopedTool);
      // It may hand the refusal on after it has stepped up: then the same call works.
      if (!reply.result) {
        await eventually('the step-up', () => visits >= 2);
        reply = await call(scopedTool);
      }
      assert.ok(reply.result && !reply.result.isError, `${JSON.stringify(reply)}\n${said}`);
      assert.ok(visits >= (atLogin ? 1 : 2), said);
    },
  },
  async () => {
    child.stdin.end();
    await new Promise((resolve) => {
      child.on('exit', resolve);
      setTimeout(() => child.kill('SIGKILL'), 3000).unref();
    });
  },
);
