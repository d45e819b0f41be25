// Notes as resources, written with the TypeScript SDK 1.x as people write it: a `ResourceTemplate` with a
// list callback. `McpServer` declares `listChanged` for it and never announces a change.
//
//   node notes.mjs stdio FILE
//   node notes.mjs http FILE     prints its URL as one JSON line
//
// Each line of FILE is the name of a note; the tool `add_note` appends one.

import { randomUUID } from 'node:crypto';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';

import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

const [mode, file] = process.argv.slice(2);

function notes() {
  if (!existsSync(file)) return [];
  return readFileSync(file, 'utf8').split('\n').filter((line) => line !== '');
}

function server() {
  const server = new McpServer({ name: 'notes', version: '1.0.0' });
  const list = () => ({ resources: notes().map((name) => ({ name, uri: `note://${name}` })) });
  const template = new ResourceTemplate('note://{name}', { list });
  server.registerResource('note', template, { title: 'A note' }, (uri, { name }) => ({
    contents: [{ uri: uri.href, text: `The note ${name}.` }],
  }));
  const add = { description: 'Adds a note.', inputSchema: { name: z.string() } };
  server.registerTool('add_note', add, ({ name }) => {
    appendFileSync(file, `${name}\n`);
    return { content: [{ type: 'text', text: 'added' }] };
  });
  return server;
}

async function body(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString('utf8'));
}

/** Sessions by their id. */
const transports = new Map();

async function answer(request, response) {
  const known = transports.get(request.headers['mcp-session-id']);
  if (request.method !== 'POST') {
    if (known === undefined) return response.writeHead(400).end();
    return known.handleRequest(request, response);
  }
  const message = await body(request);
  if (known !== undefined) return known.handleRequest(request, response, message);
  if (!isInitializeRequest(message)) {
    const error = { code: -32000, message: 'Bad Request: no valid session ID provided' };
    response.writeHead(400, { 'content-type': 'application/json' });
    return response.end(JSON.stringify({ jsonrpc: '2.0', error, id: null }));
  }
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  await server().connect(transport);
  return transport.handleRequest(request, response, message);
}

if (mode === 'stdio') {
  await server().connect(new StdioServerTransport());
} else {
  const http = createServer((request, response) => {
    answer(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  http.listen(0, '127.0.0.1', () => {
    console.log(JSON.stringify({ url: `http://127.0.0.1:${http.address().port}/mcp` }));
  });
}
