// In a real browser (headless Chromium): from a page of the gateway through the login, and the consent where there is one, to a
// connected account.
// Usage: CHROMIUM=<program> TOUR_USER=<user> node account.mjs <JSON: { link, refusal }>. The password is the user's name. With
// `refusal` the first attempt is refused with this error, and the second one connects.
import assert from 'node:assert/strict';
import process from 'node:process';
import { chromium } from 'playwright-core';
import { tour } from './report.mjs';

const user = process.env.TOUR_USER;
const { link, refusal } = JSON.parse(process.argv[2]);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
// The other authorization server of the tests logs in whom this header names.
const context = await browser.newContext({ extraHTTPHeaders: { 'x-user': user } });
const page = await context.newPage();

const FORMS = {
  '#username': async () => {
    await page.fill('#username', user);
    await page.fill('#password', user);
    await page.click('#kc-login');
  },
  '[name=accept]': () => page.click('[name=accept]'),
};

const REFUSED = 'h1:has-text("Not connected")';

/** Fills in Keycloak's forms until the gateway shows `wanted`. */
async function until(wanted) {
  for (let form = 0; form < 6; form += 1) {
    const any = [wanted, REFUSED, ...Object.keys(FORMS)].join(', ');
    await page.waitForSelector(any, { timeout: 30_000 });
    if (await page.$(wanted)) return;
    if (await page.$(REFUSED)) break;
    for (const [selector, fill] of Object.entries(FORMS)) {
      if (await page.$(selector)) {
        await Promise.all([page.waitForNavigation(), fill()]);
        break;
      }
    }
  }
  assert.fail(`no ${wanted} at ${page.url()}: ${await page.textContent('body')}`);
}

await tour(
  {
    async the_login_leads_back() {
      await page.goto(link);
      assert.equal(await page.textContent('h1'), 'Log in');
      await page.click('button[value=login]');
      await until('button[value=connect]');
      assert.match(await page.textContent('body'), new RegExp(user));
    },
    ...(refusal && {
      async the_refusal_is_told() {
        await page.click('button[value=connect]');
        await until(REFUSED);
        assert.match(await page.textContent('[role=alert]'), new RegExp(refusal));
        await page.click('a:has-text("Open the page again")');
      },
    }),
    async the_consent_connects() {
      await page.click('button[value=connect]');
      await until('[role=status]:has-text("is connected")');
    },
  },
  () => browser.close(),
);
