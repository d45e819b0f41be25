// In a real browser (headless Chromium): from the link of a call, through the login, to an account.
// Usage: CHROMIUM=<program> node login.mjs <JSON: { link, user, key, pictures }>; `pictures` is a directory, or empty.
import assert from 'node:assert/strict';
import process from 'node:process';
import { chromium } from 'playwright-core';
import { tour } from './report.mjs';

const { link, user, key, pictures } = JSON.parse(process.argv[2]);
const LOOKS = { light: {}, dark: { colorScheme: 'dark' }, phone: { viewport: { width: 360, height: 640 } } };

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
// The authorization server of the tests logs in whom this header names.
const context = await browser.newContext({ extraHTTPHeaders: { 'x-user': user } });
const page = await context.newPage();
const refused = [];
page.on('console', (message) => message.type() === 'error' && refused.push(message.text()));

/** Keeps how the page looks. */
async function picture(name) {
  if (!pictures) return;
  for (const [look, { colorScheme = 'light', viewport = { width: 800, height: 600 } }] of Object.entries(LOOKS)) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    await page.screenshot({ path: `${pictures}/connect-${name}-${look}.png`, fullPage: true });
  }
}

await tour(
  {
    async the_link_shows_who_asks_and_goes_nowhere() {
      await page.goto(link);
      assert.equal(await page.textContent('h1'), 'Log in');
      assert.equal(page.url(), link);
      await picture('login');
    },
    async the_form_leads_through_the_login_and_back() {
      await page.click('button[value=login]');
      await page.waitForSelector('input[name=key]', { timeout: 30_000 });
      assert.match(await page.textContent('dl'), new RegExp(user));
      await picture('key');
    },
    async the_pasted_key_connects() {
      await page.fill('input[name=key]', key);
      await page.click('button[value=connect]');
      await page.waitForSelector('[role=status]');
      assert.equal(await page.textContent('h1'), 'Connected');
      // It goes on to all accounts by itself.
      await page.waitForSelector('button[value=logout]', { timeout: 20_000 });
      await picture('accounts');
    },
    async the_policy_of_the_pages_refused_nothing() {
      assert.deepEqual(refused, []);
    },
  },
  () => browser.close(),
);
