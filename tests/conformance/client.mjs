// A conformance "client" that is the gateway with somebody calling through it: what the suite
// judges is how we treat upstreams. Started by `conformance client --command`, which appends the
// URL of its server. DRAWBRIDGE is the gateway's binary, DRAWBRIDGE_CALLER the era of whoever
// calls: `legacy` or `modern`, DRAWBRIDGE_ERA the `era` of the upstream.
import { connect } from '../clients/connect.mjs';
import { withGateway } from './gateway.mjs';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const era = process.env.DRAWBRIDGE_CALLER;

const tools = async ({ client }) => (await client.listTools()).tools;

/** The first tool, with two numbers. */
async function firstTool(peer) {
  const [tool] = await tools(peer);
  if (tool) await peer.call(tool.name, { a: 2, b: 3 });
}

/** What each scenario wants to be done. */
const TOURS = {
  initialize: tools,
  tools_call: firstTool,
  'json-schema-ref-no-deref': tools,
  'elicitation-sep1034-client-defaults': firstTool,
  async 'sse-retry'(peer) {
    await tools(peer);
    await peer.call('test_reconnection');
  },
  async 'json-schema-2020-12-preservation'(peer) {
    const focal = (await tools(peer)).find((tool) => tool.name === 'json_schema_2020_12_tool');
    await peer.call('json_schema_echo', { schema: focal.inputSchema });
  },
  async 'request-metadata'(peer) {
    await tools(peer);
    // It declares no tools, so that not every caller would send this; the scenario answers it.
    await peer.call('any').catch(() => {});
  },
  async 'http-standard-headers'(peer) {
    const { client } = peer;
    for (const { name } of await tools(peer)) await peer.call(name);
    for (const { uri } of (await client.listResources()).resources) await client.readResource({ uri });
    for (const { name } of (await client.listPrompts()).prompts) await client.getPrompt({ name });
  },
  async 'http-custom-headers'(peer) {
    await tools(peer);
    for (const call of context.toolCalls) await peer.call(call.name, call.arguments);
  },
  async 'http-invalid-tool-headers'(peer) {
    const listed = (await tools(peer)).map((tool) => tool.name);
    if (listed.join() !== 'valid_tool') throw new Error(`listed: ${listed}`);
    // A caller that knows the names from elsewhere gets no further.
    for (const name of INVALID) {
      const passed = await peer.call(name, { value: 'x' }).then(
        (result) => !result.isError,
        () => false,
      );
      if (passed) throw new Error(`${name} was called`);
    }
    await peer.call('valid_tool', { region: 'eu' });
  },
  async 'sep-2322-client-request-state'(peer) {
    await tools(peer);
    // Others are called while this one waits for its answer.
    whileAsked = () => peer.call('test_mrtr_unrelated');
    await peer.call('test_mrtr_echo_state');
    await peer.call('test_mrtr_no_state');
    await peer.call('test_mrtr_no_result_type');
  },
};

/** Tools whose annotations break a rule each. */
const INVALID = [
  'invalid_empty_header',
  'invalid_object_header',
  'invalid_array_header',
  'invalid_null_header',
  'invalid_duplicate_same_case',
  'invalid_duplicate_diff_case',
  'invalid_space_in_name',
  'invalid_colon_in_name',
  'invalid_non_ascii_name',
  'invalid_control_char_name',
];

let whileAsked = async () => {};
const answer = {
  async 'elicitation/create'({ requestedSchema }) {
    await whileAsked();
    // Whoever applies defaults sends them for fields that are left out.
    const isAsked = scenario === 'sep-2322-client-request-state';
    const fields = isAsked ? Object.keys(requestedSchema.properties) : [];
    return { action: 'accept', content: Object.fromEntries(fields.map((field) => [field, true])) };
  },
};

await withGateway(process.argv.at(-1), async (url) => {
  const tour = TOURS[scenario];
  if (!tour) throw new Error(`nobody knows what ${scenario} wants`);
  const peer = await connect(era === 'modern' ? 2 : 1, {
    url,
    era,
    answer,
    capabilities: { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: {} },
  });
  await tour(peer);
  await peer.close();
});
