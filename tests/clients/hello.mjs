// A client that connects directly and calls `hello`. Usage: node hello.mjs <URL> <text that is expected>
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { tour } from './report.mjs';

const [url, expected] = process.argv.slice(2);
const client = new Client({ name: 'hello', version: '1.0.0' });
const steps = {
  async hello() {
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    const { content } = await client.callTool({ name: 'hello' });
    assert.equal(content[0].text, expected);
  },
};
await tour(steps, () => client.close());
