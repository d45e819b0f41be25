// Servers on the official SDKs as people write them. Usage: node written.mjs <kind> [port]
//   prints      stdio, SDK 1.x: a banner, and a tool that prints without ending its line
//   late-log    stdio, SDK 1.x: a tool that logs after it has replied
//   sessions    HTTP, SDK 1.x: the example with sessions in memory
//   modern      HTTP, SDK 2.x, the modern era alone
//   template    HTTP, SDK 1.x: a server for each request; 500 with a JSON-RPC error for methods it does not know
//   reports     HTTP, SDK 1.x: the same, and the 500 has JSON that is no JSON-RPC
// HTTP servers print their URL as the first line; a port that is still taken is waited for.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as after } from 'node:timers/promises';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { createMcpHandler, Server } from '@modelcontextprotocol/server';

const [kind, port = '0'] = process.argv.slice(2);
const said = (text) => ({ content: [{ type: 'text', text }] });

function written() {
  const server = new McpServer({ name: 'written', version: '1.0.0' }, { capabilities: { logging: {} } });
  server.registerTool('hello', { description: 'Says hello' }, async () => {
    if (kind === 'prints') process.stdout.write('working on it... ');
    if (kind === 'late-log') {
      void after(50).then(() => server.server.sendLoggingMessage({ level: 'info', data: 'done after the reply' }));
    }
    return said(`hello of ${kind}`);
  });
  server.registerTool('confirm', { description: 'Asks first' }, async ({ sendRequest }) => {
    const requestedSchema = { type: 'object', properties: { name: { type: 'string' } } };
    const params = { message: 'Who are you?', requestedSchema };
    const { action, content } = await sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema);
    return said(`${action} ${content?.name}`);
  });
  return server;
}

const sessions = new Map();
async function keepingSessions(request, response) {
  const id = request.headers['mcp-session-id'];
  if (id !== undefined && !sessions.has(id)) {
    return response
      .writeHead(400, { 'content-type': 'application/json' })
      .end('{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}');
  }
  let transport = sessions.get(id);
  if (transport === undefined) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (made) => sessions.set(made, transport),
    });
    await written().connect(transport);
  }
  return transport.handleRequest(request, response);
}

async function ofTemplate(request, response) {
  if (request.method !== 'POST') return response.writeHead(405).end();
  let text = '';
  for await (const chunk of request) text += chunk;
  const message = JSON.parse(text);
  if (message.id !== undefined && !['initialize', 'ping', 'tools/list', 'tools/call'].includes(message.method)) {
    const error = { code: -32603, message: 'Internal server error' };
    const body =
      kind === 'template'
        ? { jsonrpc: '2.0', error, id: null }
        : { jsonRpcError: error, stackTrace: ['at Server.handle'] };
    return response.writeHead(500, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  }
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on('close', () => void transport.close());
  await written().connect(transport);
  return transport.handleRequest(request, response, message);
}

function modernServer() {
  const server = new Server({ name: 'written', version: '2.0.0' }, { capabilities: { tools: { listChanged: true } } });
  const inputSchema = { type: 'object', properties: {} };
  server.setRequestHandler('tools/list', () => ({ tools: [{ name: 'hello', inputSchema }] }));
  server.setRequestHandler('tools/call', () => said(`hello of ${kind}`));
  return server;
}

const modern = createMcpHandler(modernServer, { legacy: 'reject' });
async function modernAlone(incoming, outgoing) {
  const hasBody = incoming.method === 'POST';
  const request = new Request(`http://${incoming.headers.host}${incoming.url}`, {
    method: incoming.method,
    headers: incoming.headers,
    ...(hasBody && { body: Readable.toWeb(incoming), duplex: 'half' }),
  });
  const response = await modern.fetch(request);
  outgoing.writeHead(response.status, Object.fromEntries(response.headers));
  return response.body === null ? outgoing.end() : Readable.fromWeb(response.body).pipe(outgoing);
}

if (kind === 'prints' || kind === 'late-log') {
  if (kind === 'prints') console.log('Server listening on stdio');
  await written().connect(new StdioServerTransport());
} else {
  const handle = { sessions: keepingSessions, modern: modernAlone, template: ofTemplate, reports: ofTemplate }[kind];
  const listener = http.createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  const listen = () => listener.listen(Number(port), '127.0.0.1');
  listener.on('error', (error) => {
    if (error.code !== 'EADDRINUSE') throw error;
    setTimeout(listen, 50);
  });
  listener.on('listening', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
  listen();
}
