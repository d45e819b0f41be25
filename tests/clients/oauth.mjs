// From 401 to a tool call, and through a scope step-up, without anybody at the keyboard.
// Usage: node oauth.mjs <SDK generation> <JSON: { url, plainTool, scopedTool, scope, issuer? }>
// With atLogin the first challenge names the further scope too: one login is enough.
// With isRefused the user may not have the further scope. With refreshes the last token is replaced by junk, which
// its refresh mends; with logsOut the user's session ends there, and the gateway asks about every token.
// With an issuer, which then issues opaque tokens: also revokes the last token, and sees it refused.
import assert from 'node:assert/strict';
import * as one from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as TransportOne } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as two from '@modelcontextprotocol/client';
import { visit } from './browser.mjs';
import { tour } from './report.mjs';

const sdk = Number(process.argv[2]);
const { url, plainTool, scopedTool, scope, issuer, atLogin, ...more } = JSON.parse(process.argv[3]);
const REDIRECT = 'http://127.0.0.1:9/callback';

/** Keeps everything in memory and lets the "user" log in at once. */
class Provider {
  redirectUrl = REDIRECT;
  clientMetadata = {
    client_name: `tour-typescript-${sdk}`,
    redirect_uris: [REDIRECT],
    // 1.x cannot step up while it holds a refresh token.
    grant_types: sdk === 1 ? ['authorization_code'] : ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };
  visits = 0;
  requested = [];
  clientInformation() { return this.client; }
  saveClientInformation(client) { this.client = client; }
  tokens() { return this.kept; }
  saveTokens(tokens) { this.kept = tokens; }
  codeVerifier() { return this.verifier; }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  discoveryState() { return this.discovered; }
  saveDiscoveryState(state) { this.discovered = state; }
  async redirectToAuthorization(where) {
    this.visits += 1;
    this.requested.push(where.searchParams.get('scope'));
    this.landed = new URL(await visit(where, REDIRECT)).searchParams;
  }
}

const provider = new Provider();
const info = { name: `tour-typescript-${sdk}`, version: '1.0.0' };
const Client = sdk === 1 ? one.Client : two.Client;
const Transport = sdk === 1 ? TransportOne : two.StreamableHTTPClientTransport;
const options = sdk === 1 ? {} : { versionNegotiation: { mode: 'auto' } };
let client;
let transport;

async function connect() {
  client = new Client(info, options);
  transport = new Transport(new URL(url), { authProvider: provider });
  await client.connect(transport);
}

/** Runs `action`; when it ends at the login page, hands in the code and runs it again. */
async function authorized(action) {
  try {
    return await action();
  } catch (error) {
    if (!provider.landed) throw error;
    const landed = provider.landed;
    provider.landed = undefined;
    await transport.finishAuth(sdk === 1 ? landed.get('code') : landed);
    return action();
  }
}

const call = (name) => client.callTool({ name, arguments: {} });

/** `token` is good, and not any more after `action`: the gateway may believe its last answer for a while. */
async function ends(token, action) {
  const present = async () => {
    const headers = { authorization: `Bearer ${token}`, accept: 'text/event-stream' };
    return (await fetch(url, { headers })).status;
  };
  assert.notEqual(await present(), 401);
  const done = await action();
  assert.ok(done.ok, `${done.status}: ${await done.text()}`);
  const deadline = Date.now() + 20_000;
  while ((await present()) !== 401) {
    assert.ok(Date.now() < deadline, 'still accepted');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function a_revoked_token_ends() {
  const token = provider.kept.access_token;
  assert.ok(!token.includes('.'), 'the token is opaque');
  const body = new URLSearchParams({ token, client_id: provider.client.client_id });
  await ends(token, () => fetch(`${issuer}/token/revocation`, { method: 'POST', body }));
}

async function a_logout_ends_the_token() {
  const { access_token: token, refresh_token: refresh } = provider.kept;
  const body = new URLSearchParams({ client_id: provider.client.client_id, refresh_token: refresh });
  await ends(token, () => fetch(more.logsOut, { method: 'POST', body }));
}

async function a_refreshed_token_is_accepted() {
  const before = provider.kept;
  assert.ok(before.refresh_token, 'there is a refresh token');
  provider.kept = { ...before, access_token: `${before.access_token.slice(0, -8)}AAAAAAAA` };
  assert.ok(!(await call(plainTool)).isError);
  assert.equal(provider.visits, 1);
  assert.notEqual(provider.kept.access_token, before.access_token);
}

async function the_scoped_tool_is_refused() {
  await assert.rejects(() => authorized(() => call(scopedTool)));
  assert.ok(!(await call(plainTool)).isError);
}

async function through_a_step_up() {
  const result = await authorized(() => call(scopedTool));
  assert.ok(!result.isError, JSON.stringify(result));
  // With `auth.login_scopes` the first login brought the scope.
  assert.equal(provider.visits, atLogin ? 1 : 2);
  if (atLogin) return assert.ok(provider.requested[0].split(' ').includes(scope));
  assert.ok(provider.requested[1].split(' ').includes(scope), String(provider.requested));
}

await tour(
  {
    async from_401_to_a_tool_call() {
      await authorized(connect);
      assert.equal(provider.visits, 1);
      assert.ok((await client.listTools()).tools.length > 0);
      const result = await call(plainTool);
      assert.ok(!result.isError, JSON.stringify(result));
    },
    ...(more.isRefused ? { the_scoped_tool_is_refused } : { through_a_step_up }),
    async still_the_same_user_afterwards() {
      assert.ok(!(await call(plainTool)).isError);
    },
    ...(more.refreshes && { a_refreshed_token_is_accepted }),
    ...(more.logsOut && { a_logout_ends_the_token }),
    ...(issuer && { a_revoked_token_ends }),
  },
  async () => {
    if (!issuer && !more.logsOut) await transport.terminateSession();
    await client.close();
  },
);
