// Thirty calls at once, in each of which the server asks: every question is answered.
// Usage: node parallel.mjs <SDK generation> <JSON: { url, token?, era? }>
import assert from 'node:assert/strict';
import { connect } from './connect.mjs';
import { tour } from './report.mjs';

const { url, token, era } = JSON.parse(process.argv[3]);
const COUNT = 30;
let asked = 0;
const answer = {
  'elicitation/create': () => ({ action: 'accept', content: { name: `guest ${(asked += 1)}` } }),
};
const { call, close } = await connect(Number(process.argv[2]), { url, token, answer, era });

await tour(
  {
    async every_question_is_answered() {
      const calls = await Promise.all(Array.from({ length: COUNT }, () => call('confirm')));
      const said = calls.map((result) => result.content[0].text);
      assert.deepEqual(said.filter((text) => !text.startsWith('accept guest ')), []);
      assert.equal(new Set(said).size, COUNT);
    },
  },
  close,
);
