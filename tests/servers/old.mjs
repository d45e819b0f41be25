// A small server on an older release of the TypeScript SDK, written as its examples were.
// Usage: node old.mjs <package> stateless-json|sessions: prints its URL as the first line.
import { randomUUID } from 'node:crypto';
import http from 'node:http';

const [sdk, mode] = process.argv.slice(2);
const { McpServer } = await import(`${sdk}/server/mcp.js`);
const { StreamableHTTPServerTransport } = await import(`${sdk}/server/streamableHttp.js`);

function serverOf() {
  const server = new McpServer({ name: `old-${sdk}`, version: '1.0.0' });
  server.tool('hello', async () => ({ content: [{ type: 'text', text: `hello of ${sdk}` }] }));
  return server;
}

const sessions = new Map();
async function open() {
  const isStateless = mode === 'stateless-json';
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: isStateless ? undefined : randomUUID,
    enableJsonResponse: isStateless,
    onsessioninitialized: (id) => sessions.set(id, transport),
  });
  await serverOf().connect(transport);
  return transport;
}
// As in the examples: one transport for all where there are no sessions.
const single = mode === 'stateless-json' ? await open() : undefined;

async function handle(request, response) {
  if (new URL(request.url, 'http://localhost').pathname !== '/mcp') return response.writeHead(404).end();
  const id = request.headers['mcp-session-id'];
  const transport = single ?? (id === undefined ? await open() : sessions.get(id));
  if (!transport) return response.writeHead(404).end();
  return transport.handleRequest(request, response);
}

const listener = http.createServer((request, response) => {
  handle(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
listener.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
