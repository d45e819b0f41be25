// A server that lists its tools slowly, written with the low-level server of the TypeScript SDK 1.x: each
// list takes five seconds, or as many milliseconds as the argument says. It declares `listChanged`.
//
//   node slow_lister.mjs [MS]

import { setTimeout as sleep } from 'node:timers/promises';

import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const takes = Number(process.argv[2] ?? 5000);
const capabilities = { tools: { listChanged: true } };
const server = new Server({ name: 'slow-lister', version: '1.0.0' }, { capabilities });

server.setRequestHandler(ListToolsRequestSchema, async () => {
  await sleep(takes);
  return { tools: [{ name: 'slow', inputSchema: { type: 'object' } }] };
});
server.setRequestHandler(CallToolRequestSchema, async () => ({
  content: [{ type: 'text', text: 'called' }],
}));
await server.connect(new StdioServerTransport());
