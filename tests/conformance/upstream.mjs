// The conformance fixture as an upstream: `node upstream.mjs stdio`, or `node upstream.mjs http`,
// which prints its URL as the first line and serves Streamable HTTP with sessions and resumption.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { Events } from './events.mjs';
import { fixtureServer } from './fixtures.mjs';

const sessions = new Map();
const LOOPBACK = /^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;
const isLoopback = ({ host, origin }) =>
  LOOPBACK.test(host ?? '') && (origin === undefined || LOOPBACK.test(origin.replace(/^https?:\/\//, '')));

async function open() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: 50,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await fixtureServer().connect(transport);
  return transport;
}

async function handle(request, response) {
  if (!isLoopback(request.headers)) return response.writeHead(403).end();
  const id = request.headers['mcp-session-id'];
  if (id !== undefined && !sessions.has(id)) return response.writeHead(404).end();
  const transport = id === undefined ? await open() : sessions.get(id);
  return transport.handleRequest(request, response);
}

if (process.argv[2] === 'stdio') {
  await fixtureServer().connect(new StdioServerTransport());
} else {
  const listener = http.createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  listener.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
}
