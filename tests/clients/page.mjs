// In a real browser (headless Chromium): the SDK in a page, and MCP Inspector's web page.
// Usage: CHROMIUM=<program> node page.mjs <JSON: { url, plainTool, scopedTool, page: "sdk" | "inspector" }>
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import process from 'node:process';
import readline from 'node:readline';
import { chromium } from 'playwright-core';
import { tour, within } from './report.mjs';

const { url, plainTool, scopedTool, page: which } = JSON.parse(process.argv[2]);
const USER = process.env.TOUR_USER;
// The port of Inspector's page, which the realm trusts.
const PORT = 6274;

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const page = await (await browser.newContext()).newPage();
const told = [];
page.on('console', (message) => told.push(message.text()));
page.on('requestfailed', (request) => told.push(`${request.url()}: ${request.failure()?.errorText}`));

/** Logs in and agrees, on the pages of Keycloak. */
async function logIn(on = page) {
  await on.fill('#username', USER);
  await on.fill('#password', USER);
  await on.click('#kc-login');
  await on.click('[name=accept]');
}

async function sdk() {
  const { createServer } = await import('vite');
  const root = new URL('./page', import.meta.url).pathname;
  const cacheDir = `${process.env.HOME}/vite`;
  const config = { root, cacheDir, logLevel: 'error', server: { port: PORT, host: 'localhost', strictPort: true } };
  const server = await createServer({ ...config, configFile: false, server: { ...config.server, fs: { strict: false } } });
  await server.listen();
  const query = new URLSearchParams({ url });
  for (const tool of [plainTool, scopedTool]) query.append('tool', tool);
  return {
    async from_401_to_a_tool_call() {
      await page.goto(`http://localhost:${PORT}/?${query}`);
      await logIn();
      await page.waitForFunction(() => document.title !== 'running', undefined, { timeout: 30_000 });
      const result = await page.textContent('#result');
      assert.equal(await page.title(), 'done', `${result}\n${told.join('\n')}`);
      assert.ok(JSON.parse(result).every((one) => !one.isError), result);
    },
    finish: () => server.close(),
  };
}

async function inspector() {
  const program = new URL('../node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url);
  const args = [program.pathname, '--web', '--server-url', url, '--transport', 'http'];
  const env = { ...process.env, MCP_AUTO_OPEN_ENABLED: 'false', BROWSER: 'none' };
  const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'inherit'], detached: true });
  const lines = readline.createInterface({ input: child.stdout });
  const link = within(60_000, 'its address', new Promise((resolve) => {
    lines.on('line', (line) => {
      told.push(line);
      const found = /https?:\/\/\S+/.exec(line)?.[0];
      if (found) resolve(found);
    });
  }));
  return {
    async from_401_to_a_tool_call() {
      await page.goto(await link);
      await page.getByLabel(/^Connect or disconnect/).click({ force: true });
      await logIn();
      await page.waitForSelector('[data-status=connected]', { timeout: 30_000 });
      await page.getByText('Tools', { exact: true }).click();
      await page.getByText(scopedTool, { exact: true }).first().click();
      await page.getByRole('button', { name: /^(Run|Execute|Call)/ }).click();
      await page.getByText(/process \d+/).waitFor({ timeout: 30_000 });
    },
    async finish() {
      process.kill(-child.pid, 'SIGTERM');
      await once(child, 'exit');
    },
  };
}

const { finish, ...steps } = await { sdk, inspector }[which]();
await tour(steps, async () => {
  await browser.close();
  await finish();
});
