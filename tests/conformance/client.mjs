// A conformance "client" that is the gateway with somebody calling through it: what the suite
// judges is how we treat upstreams. Started by `conformance client --command`, which appends the
// URL of its server. DRAWBRIDGE is the gateway's binary.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import readline from 'node:readline';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const upstream = process.argv.at(-1);
const directory = mkdtempSync(join(tmpdir(), 'conformance-'));
const file = join(directory, 'gateway.toml');
writeFileSync(
  file,
  `[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[auth]
mode = "none"
[upstreams.suite]
url = "${upstream}"
`,
);

const gateway = spawn(process.env.DRAWBRIDGE, ['serve', '--config', file], {
  stdio: ['ignore', 'pipe', 'inherit'],
});
const exited = new Promise((resolve) => gateway.on('exit', resolve));

async function listening() {
  for await (const line of readline.createInterface({ input: gateway.stdout })) {
    const url = /^listening on (\S+)$/.exec(line)?.[1];
    if (url) return new URL('/mcp/suite', url);
  }
  throw new Error('the gateway did not start');
}

/** What each scenario wants to see called; the others: the first tool, with two numbers. */
const CALLS = {
  'sse-retry': () => [{ name: 'test_reconnection', arguments: {} }],
  'elicitation-sep1034-client-defaults': () => [{ name: 'test_client_elicitation_defaults', arguments: {} }],
  'json-schema-2020-12-preservation': (tools) => {
    const schema = tools.find((tool) => tool.name === 'json_schema_2020_12_tool').inputSchema;
    return [{ name: 'json_schema_echo', arguments: { schema } }];
  },
};

try {
  const client = new Client(
    { name: 'conformance-through-gateway', version: '1.0.0' },
    { capabilities: { elicitation: { form: { applyDefaults: true } } } },
  );
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: {} }));
  await client.connect(new StreamableHTTPClientTransport(await listening()));
  const { tools } = await client.listTools();
  const calls = CALLS[scenario]?.(tools) ?? tools.slice(0, 1).map(({ name }) => ({ name, arguments: { a: 2, b: 3 } }));
  for (const call of calls) await client.callTool(call);
  await client.close();
} finally {
  gateway.kill('SIGTERM');
  await exited;
  rmSync(directory, { recursive: true, force: true });
}
