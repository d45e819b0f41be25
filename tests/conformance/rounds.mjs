// Fixtures of 2026-07-28: tools and a prompt that ask by `input_required` results, and the triggers
// and diagnostics that the official conformance suite calls by name.
import { randomUUID } from 'node:crypto';
import {
  acceptedContent,
  CLIENT_CAPABILITIES_META_KEY,
  createRequestStateCodec,
  inputRequired,
  ProtocolError,
  ProtocolErrorCode,
} from '@modelcontextprotocol/server';
import { noArguments, said, text, user } from './fixtures.mjs';

/** Signs and checks `requestState`; the key lives as long as the process. */
export const states = createRequestStateCodec({ key: crypto.getRandomValues(new Uint8Array(32)) });

const KINDS = { name: 'string', ok: 'boolean', color: 'string', context: 'string' };
const form = (message, field) =>
  inputRequired.elicit({
    message,
    requestedSchema: { type: 'object', properties: { [field]: { type: KINDS[field] } }, required: [field] },
  });
const completion = (prompt, maxTokens) =>
  inputRequired.createMessage({ messages: [{ role: 'user', content: text(prompt) }], maxTokens });
const stated = async (state) => states.mint({ ...state, nonce: randomUUID() });

/** name → [description, input schema, run(context)] */
export const ROUND_TOOLS = {
  test_missing_capability: [
    'Needs sampling',
    noArguments,
    ({ answers }) =>
      answers?.llm_answer === undefined
        ? inputRequired({ inputRequests: { llm_answer: completion('Say pong', 16) } })
        : said(text('sampled')),
  ],
  test_streaming_elicitation: ['Answers without asking', noArguments, () => said(text('nothing was asked'))],
  test_logging_tool: [
    'Logs once, if the request wants it',
    noArguments,
    async ({ log }) => {
      await log('info', 'logged by request');
      return said(text('logged'));
    },
  ],
  test_input_required_result_elicitation: [
    'Asks for a name',
    noArguments,
    ({ answers }) => {
      const name = acceptedContent(answers, 'user_name')?.name;
      return typeof name === 'string'
        ? said(text(`Hello, ${name}!`))
        : inputRequired({ inputRequests: { user_name: form('What is your name?', 'name') } });
    },
  ],
  test_input_required_result_sampling: [
    'Asks for a completion',
    noArguments,
    ({ answers }) =>
      answers?.capital_question === undefined
        ? inputRequired({ inputRequests: { capital_question: completion('What is the capital of France?', 100) } })
        : said(text(`Sampling response: ${answers.capital_question.content?.text}`)),
  ],
  test_input_required_result_list_roots: [
    'Asks for roots',
    noArguments,
    ({ answers }) => {
      const roots = answers?.client_roots?.roots;
      return Array.isArray(roots)
        ? said(text(`Roots: ${roots.map((root) => root.uri).join(', ')}`))
        : inputRequired({ inputRequests: { client_roots: inputRequired.listRoots() } });
    },
  ],
  test_input_required_result_request_state: [
    'Asks with signed state',
    noArguments,
    async ({ answers, state }) => {
      if (acceptedContent(answers, 'confirm') === undefined) {
        return inputRequired({
          inputRequests: { confirm: form('Please confirm', 'ok') },
          requestState: await stated({ tool: 'request_state' }),
        });
      }
      if (state === undefined) throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'requestState is missing');
      return said(text('state-ok'));
    },
  ],
  test_input_required_result_multiple_inputs: [
    'Asks three things at once',
    noArguments,
    async ({ answers }) => {
      const name = acceptedContent(answers, 'user_name')?.name;
      const greeting = answers?.greeting?.content?.text;
      const roots = answers?.client_roots?.roots;
      if (typeof name === 'string' && typeof greeting === 'string' && Array.isArray(roots)) {
        return said(text(`${greeting} ${name}, ${roots.length} root(s)`));
      }
      return inputRequired({
        inputRequests: {
          user_name: form('What is your name?', 'name'),
          greeting: completion('Generate a greeting', 50),
          client_roots: inputRequired.listRoots(),
        },
        requestState: await stated({ tool: 'multiple_inputs' }),
      });
    },
  ],
  test_input_required_result_multi_round: [
    'Asks twice, one after the other',
    noArguments,
    async ({ answers, state }) => {
      if (state?.round === undefined) {
        return inputRequired({
          inputRequests: { step1: form('Step 1: What is your name?', 'name') },
          requestState: await stated({ round: 1 }),
        });
      }
      if (state.round === 1) {
        const name = acceptedContent(answers, 'step1')?.name ?? 'unknown';
        return inputRequired({
          inputRequests: { step2: form('Step 2: What is your favorite color?', 'color') },
          requestState: await stated({ round: 2, name }),
        });
      }
      const color = acceptedContent(answers, 'step2')?.color ?? 'unknown';
      return said(text(`${state.name} likes ${color}`));
    },
  ],
  test_input_required_result_tampered_state: [
    'Refuses state that was changed',
    noArguments,
    async ({ answers, state }) =>
      state !== undefined && acceptedContent(answers, 'confirm') !== undefined
        ? said(text('integrity-ok'))
        : inputRequired({
            inputRequests: { confirm: form('Please confirm', 'ok') },
            requestState: await stated({ tool: 'tampered_state' }),
          }),
  ],
  test_input_required_result_capabilities: [
    'Asks only what the client declared',
    noArguments,
    ({ answers, capabilities }) => {
      if (answers !== undefined) return said(text('answered'));
      const inputRequests = {
        ...(capabilities?.elicitation && { user_name: form('What is your name?', 'name') }),
        ...(capabilities?.sampling && { greeting: completion('Generate a short greeting', 50) }),
        ...(capabilities?.roots && { client_roots: inputRequired.listRoots() }),
      };
      return Object.keys(inputRequests).length === 0
        ? said(text('nothing can be asked'))
        : inputRequired({ inputRequests });
    },
  ],
};

export const HEADER_TOOL = {
  test_x_mcp_header: [
    'Has an argument that is mirrored into a header',
    {
      type: 'object',
      properties: {
        region: { type: 'string', description: 'Mirrored', 'x-mcp-header': 'Region' },
        level: { type: 'integer', description: 'Not mirrored' },
      },
    },
    ({ args }) => said(text(`region=${args.region ?? '<none>'}`)),
  ],
};

/** Messages of the prompt that asks first. */
export function askingPrompt({ answers }) {
  const context = acceptedContent(answers, 'user_context')?.context;
  return typeof context === 'string'
    ? { messages: [user(text(`Use the following context: ${context}`))] }
    : inputRequired({ inputRequests: { user_context: form('What context should the prompt use?', 'context') } });
}

/** What a handler may use of its request. */
export const asked = (request, ctx) => ({
  args: request.params?.arguments ?? {},
  answers: ctx.mcpReq.inputResponses,
  state: ctx.mcpReq.requestState?.(),
  capabilities: ctx.mcpReq.envelope?.[CLIENT_CAPABILITIES_META_KEY],
  log: (level, data) => ctx.mcpReq.log(level, data),
});
