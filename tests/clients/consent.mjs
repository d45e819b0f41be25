// The first call of a user without an account: the program shows the link, the user agrees in a browser, and the call ends
// with its result. A `plain` program shows its user the text of the call's result, which has the link, and calls again.
// Usage: CHROMIUM=<program> node consent.mjs <SDK generation> <JSON: { url, era, plain? }>
import assert from 'node:assert/strict';
import process from 'node:process';
import { agree } from './agree.mjs';
import { connect } from './connect.mjs';
import { tour } from './report.mjs';

const { url, era, plain } = JSON.parse(process.argv[3]);
const visits = [];
const answer = {
  'elicitation/create': (params) => {
    assert.equal(params.mode, 'url');
    visits.push(agree(params.url));
    return { action: 'accept' };
  },
};
const settings = plain ? { capabilities: {} } : { answer };
const client = await connect(Number(process.argv[2]), { url, era, ...settings });

async function echo(text) {
  const result = await client.call('echo', { text });
  return result.content.map((block) => block.text).join('\n');
}

await tour(
  {
    async the_first_call_leads_to_a_result() {
      if (plain) {
        const [link] = /https?:\/\/\S+\/connect\/\S+/.exec(await echo('first'));
        visits.push(agree(link));
        await visits[0];
      }
      assert.equal(await echo('first'), 'first');
      assert.equal(visits.length, 1);
      await visits[0];
    },
    async the_next_call_asks_nobody() {
      assert.equal(await echo('next'), 'next');
      assert.equal(visits.length, 1);
    },
  },
  () => client.close(),
);
