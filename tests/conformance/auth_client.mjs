// A conformance "client" for the scenarios of authorization: the gateway is the OAuth client of the suite's servers, a program
// calls through it, and a browser connects the account where the gateway asks for one. Environment as for `client.mjs`.
// Prints the calls' outcomes and the headings of the last pages, one a line.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from '../clients/connect.mjs';
import { Browser, heading } from './browser.mjs';
import { withGateway } from './gateway.mjs';

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const era = process.env.DRAWBRIDGE_CALLER;
const upstream = process.argv.at(-1);

/** The document that the suite knows: the gateway's own needs a public https address. */
const CLIENT_DOCUMENT = 'https://conformance-test.local/client-metadata.json';
/** Consents before the program gives up: more than the suite allows. */
const MOST_CONSENTS = 6;

/** Keys of `[upstreams.suite.auth]` for the scenario. */
function account(directory) {
  if (scenario === 'auth/basic-cimd') return { kind: 'user', client_id: CLIENT_DOCUMENT };
  if (scenario === 'auth/2025-03-26-oauth-metadata-backcompat') {
    return { kind: 'user', issuer: new URL(upstream).origin, resource: upstream };
  }
  const client = context.client_id ? { client_id: context.client_id } : {};
  if (context.client_secret) client.client_secret = context.client_secret;
  if (context.private_key_pem) {
    writeFileSync(join(directory, 'client.pem'), context.private_key_pem, { mode: 0o600 });
    client.private_key = { file: join(directory, 'client.pem') };
  }
  const isService = scenario.startsWith('auth/client-credentials');
  return { kind: isService ? 'client_credentials' : 'user', ...client };
}

const inline = (value) => (typeof value === 'string' ? JSON.stringify(value) : `{ file = ${JSON.stringify(value.file)} }`);

function tables(directory) {
  const keys = Object.entries(account(directory)).map(([name, value]) => `${name} = ${inline(value)}\n`);
  writeFileSync(join(directory, 'vault.key'), 'k'.repeat(32), { mode: 0o600 });
  return `[upstreams.suite.auth]
${keys.join('')}[egress]
allow = ["localhost"]
[database]
url = "sqlite:${join(directory, 'accounts.db')}"
[keys]
vault = [{ id = "k1", file = "${join(directory, 'vault.key')}" }]
`;
}

/** The link to the connect page in the answer to a call. */
const link = (text) => text.match(/https?:\/\/\S*\/connect\/\S+/)?.[0];

/** Calls until the answer is no link, connecting the account wherever it is one. Returns the last answer's text. */
async function call(peer, name) {
  const browser = new Browser();
  for (let consents = 0; ; consents += 1) {
    const result = await peer.call(name).catch((error) => ({ content: [{ text: String(error) }], isError: true }));
    const [{ text }] = result.content;
    const page = link(text);
    if (!page) return result.isError ? 'refused' : text;
    if (consents === MOST_CONSENTS) return 'asked again and again';
    const last = heading(await browser.connect(page));
    console.log(`page: ${last}`);
    if (last !== 'Connected') return 'not connected';
  }
}

await withGateway(
  upstream,
  async (url) => {
    const peer = await connect(era === 'modern' ? 2 : 1, { url, era, capabilities: {} });
    // The second call finds what the first one left: a token, or a server that has moved.
    for (const number of [1, 2]) console.log(`call ${number}: ${await call(peer, 'test-tool')}`);
    const listed = (await peer.client.listTools()).tools.map((tool) => tool.name);
    console.log(`tools: ${listed}`);
    await peer.close();
  },
  tables,
);
