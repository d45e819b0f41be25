// The conformance fixture on the TypeScript SDK 2.x, in both eras:
// `node dual.mjs http|stdio [dual|legacy|modern]`. Over HTTP the first line is its URL.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { Readable } from 'node:stream';
import {
  createMcpHandler,
  inputRequired,
  isLegacyRequest,
  ProtocolError,
  ProtocolErrorCode,
  Server,
  WebStandardStreamableHTTPServerTransport,
} from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { Events } from './events.mjs';
import { CAPABILITIES, PROMPTS, RESOURCES, said, TEMPLATE, text, TOOLS } from './fixtures.mjs';
import { asked, askingPrompt, HEADER_TOOL, ROUND_TOOLS, states } from './rounds.mjs';

const [carrier, era = 'dual'] = process.argv.slice(2);
/** Tells subscribers over modern HTTP. */
let notify;

const known = (table, key, what) => {
  if (!Object.hasOwn(table, key)) throw new ProtocolError(ProtocolErrorCode.InvalidParams, `Unknown ${what}: ${key}`);
  return table[key];
};

/** A tool that asks: its question, which becomes the result of this round. */
class Asking {
  constructor(inputRequest) {
    this.result = inputRequired({ inputRequests: { answer: inputRequest } });
  }
}
/** The answer of an earlier round. */
function answered(ctx, inputRequest) {
  const answer = ctx.mcpReq.inputResponses?.answer;
  if (answer === undefined) throw new Asking(inputRequest);
  return answer;
}
/** Whom the shared fixtures ask: in a legacy session the server sends its requests itself, as old tools do. */
const asker = (server, ctx) =>
  ctx.mcpReq.envelope === undefined
    ? server
    : {
        elicitInput: async (params) => answered(ctx, inputRequired.elicit(params)),
        createMessage: async (params) => answered(ctx, inputRequired.createMessage(params)),
      };
const extra = (ctx) => ({
  requestId: ctx.mcpReq.id,
  _meta: ctx.mcpReq._meta,
  sendNotification: (notification) => ctx.mcpReq.notify(notification),
  closeSSEStream: () => ctx.http?.closeSSE?.(),
});

// Modern HTTP has a server for each request, and one bus for all of them.
const TRIGGERS = {
  test_trigger_tool_change: (server, isRequest) => (isRequest ? notify.toolsChanged() : server.sendToolListChanged()),
  test_trigger_prompt_change: (server, isRequest) =>
    isRequest ? notify.promptsChanged() : server.sendPromptListChanged(),
};
const ALL_TOOLS = {
  ...TOOLS,
  ...ROUND_TOOLS,
  ...HEADER_TOOL,
  ...Object.fromEntries(Object.keys(TRIGGERS).map((name) => [name, ['Announces a change', { type: 'object', properties: {} }]])),
};

function fixtureServer() {
  const server = new Server(
    { name: 'conformance-fixture', version: '2.0.0' },
    {
      capabilities: CAPABILITIES,
      requestState: { verify: states.verify },
    },
  );
  const on = (method, handler) => server.setRequestHandler(method, handler);

  on('tools/list', () => ({
    tools: Object.entries(ALL_TOOLS).map(([name, [description, inputSchema]]) => ({ name, description, inputSchema })),
  }));
  on('tools/call', async (request, ctx) => {
    const { name, arguments: args = {} } = request.params;
    const [, , run] = known(ALL_TOOLS, name, 'tool');
    if (Object.hasOwn(TRIGGERS, name)) {
      await TRIGGERS[name](server, carrier === 'http' && ctx.mcpReq.envelope !== undefined);
      return said(text('announced'));
    }
    if (!Object.hasOwn(TOOLS, name)) return run(asked(request, ctx));
    try {
      return await run(asker(server, ctx), args, extra(ctx));
    } catch (error) {
      if (error instanceof Asking) return error.result;
      throw error;
    }
  });
  on('resources/list', () => ({
    resources: Object.entries(RESOURCES).map(([uri, { mimeType }]) => ({
      uri,
      name: uri.slice('test://'.length),
      description: `Fixture ${uri}`,
      mimeType,
    })),
  }));
  on('resources/templates/list', () => ({
    resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', mimeType: 'application/json' }],
  }));
  on('resources/read', ({ params: { uri } }) => {
    const id = TEMPLATE.exec(uri)?.[1];
    if (id !== undefined) {
      const data = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
      return { contents: [{ uri, mimeType: 'application/json', text: data }] };
    }
    if (!Object.hasOwn(RESOURCES, uri)) {
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, `Unknown resource: ${uri}`, { uri });
    }
    return { contents: [{ uri, ...RESOURCES[uri] }] };
  });
  on('resources/subscribe', () => ({}));
  on('resources/unsubscribe', () => ({}));
  on('prompts/list', () => ({
    prompts: [
      ...Object.entries(PROMPTS).map(([name, [description, names]]) => ({
        name,
        description,
        arguments: names.map((argument) => ({ name: argument, description: argument, required: true })),
      })),
      { name: 'test_input_required_result_prompt', description: 'Asks before it is rendered' },
    ],
  }));
  on('prompts/get', (request, ctx) => {
    const { name, arguments: args = {} } = request.params;
    if (name === 'test_input_required_result_prompt') return askingPrompt(asked(request, ctx));
    return { messages: known(PROMPTS, name, 'prompt')[2](args) };
  });
  on('completion/complete', ({ params: { argument } }) => {
    const values = ['paris', 'park', 'party'].filter((word) => word.startsWith(argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  on('logging/setLevel', () => ({}));
  return server;
}

const sessions = new Map();
async function legacy(request) {
  const id = request.headers.get('mcp-session-id');
  if (id !== null && !sessions.has(id)) return new Response(null, { status: 404 });
  let transport = sessions.get(id);
  if (transport === undefined) {
    transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: new Events(),
      retryInterval: 50,
      onsessioninitialized: (made) => sessions.set(made, transport),
      onsessionclosed: (closed) => sessions.delete(closed),
    });
    await fixtureServer().connect(transport);
  }
  return transport.handleRequest(request);
}

const modern = createMcpHandler(fixtureServer, { legacy: 'reject', onerror: (error) => console.error(error) });
notify = modern.notify;

const LOOPBACK = /^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;
const isLoopback = ({ host, origin }) =>
  LOOPBACK.test(host ?? '') && (origin === undefined || LOOPBACK.test(origin.replace(/^https?:\/\//, '')));

async function handle(incoming, outgoing) {
  if (!isLoopback(incoming.headers)) return outgoing.writeHead(403).end();
  const gone = new AbortController();
  outgoing.on('close', () => gone.abort());
  const hasBody = incoming.method === 'POST';
  const request = new Request(`http://${incoming.headers.host}${incoming.url}`, {
    method: incoming.method,
    headers: new Headers(Object.entries(incoming.headersDistinct).flatMap(([name, all]) => all.map((one) => [name, one]))),
    signal: gone.signal,
    ...(hasBody && { body: Readable.toWeb(incoming), duplex: 'half' }),
  });
  const isLegacy = era === 'legacy' || (era === 'dual' && (await isLegacyRequest(request.clone())));
  const response = isLegacy ? await legacy(request) : await modern.fetch(request);
  outgoing.writeHead(response.status, Object.fromEntries(response.headers));
  outgoing.flushHeaders();
  if (response.body === null) return outgoing.end();
  Readable.fromWeb(response.body).on('error', () => outgoing.destroy()).pipe(outgoing);
}

if (carrier === 'stdio') {
  serveStdio(fixtureServer, { legacy: era === 'modern' ? 'reject' : 'serve' });
} else {
  const listener = http.createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  listener.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
}
