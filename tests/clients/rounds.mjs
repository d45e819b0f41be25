// A client of the older era in front of servers that only know 2026-07-28: what they ask in rounds
// of `input_required` comes as requests on the call's own stream.
// Usage: node rounds.mjs <SDK generation> <JSON: { url, token?, tasks? }>; `tasks` is the URL of a
// server whose jobs need the extension for tasks.
import assert from 'node:assert/strict';
import { connect } from './connect.mjs';
import { tour } from './report.mjs';

const sdk = Number(process.argv[2]);
const { url, token, tasks } = JSON.parse(process.argv[3]);
const text = (result) => result.content.map((block) => block.text ?? '').join('\n');

let asked = [];
let willing = true;
const VALUES = { name: 'Ada', ok: true, color: 'green', context: 'the sea', confirm: true, value: 'one' };
const answer = {
  'elicitation/create': ({ requestedSchema }) => {
    asked.push('form');
    const fields = Object.keys(requestedSchema.properties);
    const content = Object.fromEntries(fields.map((field) => [field, VALUES[field]]));
    return willing ? { action: 'accept', content } : { action: 'decline' };
  },
  'sampling/createMessage': () => {
    asked.push('sampling');
    return { role: 'assistant', model: 'tour-model', content: { type: 'text', text: 'Paris' } };
  },
  'roots/list': () => {
    asked.push('roots');
    return { roots: [{ uri: 'file:///home/ada', name: 'home' }] };
  },
};

/** Calls a tool as a task, the way of 2025-11-25; the statuses that it had, and what came of it. */
async function asTask(name, args = {}) {
  asked = [];
  const params = { name, arguments: args };
  const statuses = [];
  for await (const message of other.client.experimental.tasks.callToolStream(params, undefined, { task: {} })) {
    if (message.type === 'taskStatus') statuses.push(message.task.status);
    if (message.type === 'result') return [statuses, text(message.result)];
  }
  return [statuses];
}

/** Only SDK 1.x has tasks of 2025-11-25. */
const tasksOfTheClient = {
  async task_that_asks() {
    const [statuses, said] = await asTask('confirm_delete', { filename: 'x' });
    assert.match(said, /confirmed = true/);
    assert.ok(statuses.includes('input_required'), statuses.join());
    assert.deepEqual(asked, ['form']);
  },
  async task_that_is_answered_at_once() {
    const [statuses, said] = await asTask('greet', { name: 'Ada' });
    assert.match(said, /Ada/);
    assert.equal(statuses.at(-1), 'completed');
  },
  async task_that_fails() {
    const [statuses] = await asTask('failing_job');
    assert.equal(statuses.at(-1), 'failed');
  },
  async task_that_is_called_off() {
    const own = other.client.experimental.tasks;
    const params = { name: 'slow_compute', arguments: { seconds: 600 } };
    const first = await own.callToolStream(params, undefined, { task: {} }).next();
    const { taskId } = first.value.task;
    assert.equal((await own.cancelTask(taskId)).status, 'cancelled');
    const all = await own.listTasks();
    assert.equal(all.tasks.find((task) => task.taskId === taskId).status, 'cancelled');
  },
};

const peer = await connect(sdk, { url, token, answer, era: 'legacy' });
const other = await connect(sdk, { url: tasks, token, answer, era: 'legacy' });

/** Calls a tool; its text and what it asked. */
async function rounds(tool) {
  asked = [];
  const result = await peer.call(`test_input_required_result_${tool}`);
  assert.notEqual(result.isError, true, text(result));
  assert.equal(result.resultType, undefined);
  return [text(result), asked.toSorted()];
}

await tour(
  {
    async form() {
      assert.deepEqual(await rounds('elicitation'), ['Hello, Ada!', ['form']]);
    },
    async sampling() {
      assert.deepEqual(await rounds('sampling'), ['Sampling response: Paris', ['sampling']]);
    },
    async roots() {
      assert.deepEqual(await rounds('list_roots'), ['Roots: file:///home/ada', ['roots']]);
    },
    async three_at_once() {
      assert.deepEqual(await rounds('multiple_inputs'), ['Paris Ada, 1 root(s)', ['form', 'roots', 'sampling']]);
    },
    async one_after_the_other() {
      assert.deepEqual(await rounds('multi_round'), ['Ada likes green', ['form', 'form']]);
    },
    async state() {
      assert.deepEqual(await rounds('request_state'), ['state-ok', ['form']]);
      assert.deepEqual(await rounds('tampered_state'), ['integrity-ok', ['form']]);
    },
    async prompt() {
      const { messages } = await peer.client.getPrompt({ name: 'test_input_required_result_prompt' });
      assert.match(messages[0].content.text, /the sea/);
    },
    async refusal() {
      willing = false;
      asked = [];
      // It asks until it is answered; the rounds have an end.
      const result = await peer.call('test_input_required_result_elicitation');
      willing = true;
      assert.equal(result.isError, true, text(result));
      assert.ok(asked.length > 0 && asked.length <= 20, `${asked.length} rounds`);
    },
    async plain_job() {
      assert.match(text(await other.call('greet', { name: 'Ada' })), /Ada/);
    },
    async job_that_needs_tasks() {
      asked = [];
      const result = await other.call('confirm_delete', { filename: 'x' });
      assert.match(text(result), /confirmed = true/);
      assert.deepEqual(asked, ['form']);
    },
    async job_that_asks_twice_at_once() {
      asked = [];
      assert.match(text(await other.call('multi_input')), /a = "one", b = "one"/);
      assert.deepEqual(asked, ['form', 'form']);
    },
    async job_that_asks_before_it_is_a_task() {
      assert.match(text(await other.call('test_tool_with_task')), /Hello, Ada! \(async\)/);
    },
    async job_that_fails() {
      const result = await other.call('failing_job');
      assert.equal(result.isError, true, text(result));
      assert.match(text(result), /as it should/);
    },
    ...(sdk === 1 ? tasksOfTheClient : {}),
  },
  async () => {
    await peer.close();
    await other.close();
  },
);
