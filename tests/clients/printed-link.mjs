// A program that prints the link of the login page, which its user opens: MCP Inspector's command line.
// Usage: node printed-link.mjs <JSON: { url, plainTool, scopedTool }>
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import process from 'node:process';
import { eventually, tour } from './report.mjs';
import { visit } from './browser.mjs';

const { url, plainTool, scopedTool } = JSON.parse(process.argv[2]);
const INSPECTOR = '../node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js';
const program = new URL(INSPECTOR, import.meta.url).pathname;
let visits = 0;

/** One run of the program; visits what it prints. */
async function run(tool) {
  const args = [program, '--cli', '--server-url', url, '--transport', 'http', '--method', 'tools/call'];
  const env = { ...process.env, BROWSER: 'true', MCP_AUTO_OPEN_ENABLED: 'true', MCP_INSPECTOR_SECRET_STORE: 'file' };
  const child = spawn(process.execPath, [...args, '--tool-name', tool], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  let visited = false;
  const hear = (piece) => {
    said += piece;
    const link = /https?:\/\/\S+[?&]response_type=code\S*(?=\s)/.exec(said)?.[0];
    if (!link || visited) return;
    visited = true;
    visits += 1;
    visit(link, new URL(link).searchParams.get('redirect_uri'))
      .then((landed) => eventually('its callback', () => fetch(landed).catch(() => false)))
      .catch((error) => { said += `${error.stack}\n`; });
  };
  child.stdout.on('data', hear);
  child.stderr.on('data', hear);
  const code = await new Promise((resolve) => child.on('close', resolve));
  assert.equal(code, 0, said);
  return said;
}

await tour(
  {
    async from_401_to_a_tool_call() {
      await run(plainTool);
      assert.equal(visits, 1);
    },
    async through_a_step_up() {
      const said = await run(scopedTool);
      assert.ok(/process \d+/.test(said), said);
      assert.equal(visits, 1, said);
    },
  },
  async () => {},
);
