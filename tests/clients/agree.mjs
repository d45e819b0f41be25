// A user at a browser (headless Chromium): opens the link of a call, which goes nowhere by itself, and agrees.
// As a program: CHROMIUM=<program> node agree.mjs <link>.
import assert from 'node:assert/strict';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

export async function agree(link) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
  try {
    const page = await browser.newPage();
    await page.goto(link);
    assert.equal(page.url(), link);
    await page.click('button[value=connect]');
    await page.waitForSelector('[role=status]:has-text("is connected")', { timeout: 30_000 });
  } finally {
    await browser.close();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await agree(process.argv[2]);
