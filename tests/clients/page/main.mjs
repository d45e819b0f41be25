// The SDK as a page has it: registers itself, is sent to the login page and back, and calls two tools.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const here = `${location.origin}/`;
const query = new URLSearchParams(location.search);
if (query.has('url')) sessionStorage.options = location.search;
const given = new URLSearchParams(sessionStorage.options);

/** Keeps everything for as long as the tab is open. */
const stored = (name) => ({
  get: () => (sessionStorage[name] ? JSON.parse(sessionStorage[name]) : undefined),
  set: (value) => { sessionStorage[name] = JSON.stringify(value); },
});
const [client, tokens, verifier, discovery] = ['client', 'tokens', 'verifier', 'discovery'].map(stored);
const provider = {
  redirectUrl: here,
  clientMetadata: {
    client_name: 'tour-page',
    redirect_uris: [here],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: client.get,
  saveClientInformation: client.set,
  tokens: tokens.get,
  saveTokens: tokens.set,
  codeVerifier: verifier.get,
  saveCodeVerifier: verifier.set,
  discoveryState: discovery.get,
  saveDiscoveryState: discovery.set,
  redirectToAuthorization(where) { location.href = where; },
};

async function run() {
  const transport = new StreamableHTTPClientTransport(new URL(given.get('url')), { authProvider: provider });
  if (query.has('code')) await transport.finishAuth(query);
  const mcp = new Client({ name: 'tour-page', version: '1.0.0' }, { versionNegotiation: { mode: 'auto' } });
  const reconnected = new StreamableHTTPClientTransport(new URL(given.get('url')), { authProvider: provider });
  await mcp.connect(reconnected);
  const results = [];
  for (const name of given.getAll('tool')) results.push(await mcp.callTool({ name, arguments: {} }));
  return results;
}

run().then(
  (results) => {
    document.querySelector('#result').textContent = JSON.stringify(results);
    document.title = 'done';
  },
  (error) => {
    // Without a token it is on its way to the login page.
    if (!tokens.get()) return;
    document.querySelector('#result').textContent = String(error?.stack ?? error);
    document.title = 'failed';
  },
);
