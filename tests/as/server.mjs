// A real authorization server (oidc-provider) whose users say yes to everything: `user-1`, or the one that the header
// `x-user` of an interaction names.
// Usage: node server.mjs [port] [jwt | opaque]; prints its issuer as the first line.
//
// PKCE, client credentials, dynamic registration, resource indicators, access tokens as JWTs (RFC 9068) or opaque ones,
// introspection (the gateway is the client `gateway` with the secret `a gateway's secret`), revocation.
// ACCESS_TTL: seconds that access tokens last.
// Any resource is known; each token carries the resource it was asked for as its only audience.
// The client `with-secret` may exchange tokens too, and bring identity assertions of TRUSTED_ISSUER; `login` may have its ID
// tokens asserted, to servers that know the gateway as JAG_CLIENT (extension_grants.mjs). LOGIN_REDIRECT: its redirect URI.
import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import http from 'node:http';
import Provider from 'oidc-provider';
import { EXCHANGE, JWT_BEARER, registerExtensionGrants } from './extension_grants.mjs';

const SCOPES = ['mcp:tools', 'mcp:admin'];
const USER = 'user-1';
const FORMAT = process.argv[3] ?? 'jwt';

/** One signing key per process. */
function signingKey() {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return { ...privateKey.export({ format: 'jwk' }), kid: 'as-key', alg: 'ES256', use: 'sig' };
}

/** Clients with an account of their own: one with a secret, and one with a key, where CLIENT_KEY is the public one. */
function services() {
  const service = { redirect_uris: [], grant_types: ['client_credentials'], response_types: [], scope: SCOPES.join(' ') };
  const withSecret = {
    ...service,
    client_id: 'with-secret',
    client_secret: "a service's secret: %&+",
    grant_types: [...service.grant_types, EXCHANGE, JWT_BEARER],
  };
  if (!process.env.CLIENT_KEY) return [withSecret];
  const withKey = {
    ...service,
    client_id: 'with-key',
    token_endpoint_auth_method: 'private_key_jwt',
    token_endpoint_auth_signing_alg: 'ES256',
    jwks: { keys: [JSON.parse(process.env.CLIENT_KEY)] },
  };
  return [withSecret, withKey];
}

/** The gateway where people log in (its port is not known before), and a program of theirs. */
function people() {
  const code = { grant_types: ['authorization_code'], response_types: ['code'] };
  const login = {
    ...code,
    grant_types: [...code.grant_types, 'refresh_token', EXCHANGE],
    client_id: 'login',
    client_secret: "a login's secret: %&+",
    redirect_uris: [process.env.LOGIN_REDIRECT ?? 'http://127.0.0.1/connect/callback/login'],
    subject_type: process.env.SUBJECTS ?? 'public',
  };
  const program = {
    ...code,
    client_id: 'program',
    token_endpoint_auth_method: 'none',
    redirect_uris: ['http://127.0.0.1/end'],
  };
  return [login, program];
}

const server = http.createServer();
await new Promise((resolve) => server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const jwk = signingKey();

const resourceServer = (resource) => ({
  audience: resource,
  scope: SCOPES.join(' '),
  accessTokenFormat: FORMAT,
  accessTokenTTL: Number(process.env.ACCESS_TTL ?? 600),
  ...(FORMAT === 'jwt' && { jwt: { sign: { alg: 'ES256' } } }),
});

const provider = new Provider(issuer, {
  jwks: { keys: [jwk] },
  clients: [
    {
      client_id: 'gateway',
      client_secret: "a gateway's secret",
      redirect_uris: [],
      grant_types: [],
      response_types: [],
    },
    ...services(),
    ...people(),
  ],
  clientDefaults: { application_type: 'native', id_token_signed_response_alg: 'ES256' },
  // Which of the two a client is does not matter on loopback.
  clientBasedCORS: () => true,
  pkce: { required: () => true },
  subjectTypes: ['public', 'pairwise'],
  pairwiseIdentifier: (_, id, client) => `${id} as ${client.clientId} knows them`,
  scopes: ['openid', 'offline_access', ...SCOPES],
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  cookies: { keys: ['only a test'] },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    revocation: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      defaultResource: () => undefined,
      getResourceServerInfo: (_, resource) => resourceServer(resource),
    },
  },
  ttl: { Session: 3600, Grant: 3600, Interaction: 600, IdToken: 600, RefreshToken: 3600 },
});

const testToken = registerExtensionGrants(provider, {
  issuer,
  key: createPrivateKey({ key: jwk, format: 'jwk' }),
  resourceServer,
  trustedIssuer: process.env.TRUSTED_ISSUER ?? issuer,
});

/** Logs the user in, and grants whatever was asked for. */
async function interact(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    const result = { login: { accountId: request.headers['x-user'] ?? USER } };
    return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  }
  const grant =
    (grantId && (await provider.Grant.find(grantId))) ||
    new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  const result = { consent: { grantId: await grant.save() } };
  return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

/** Clients register with the scopes of their first 401, which must not become their ceiling. */
async function withoutScope(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const { scope: _, ...metadata } = JSON.parse(Buffer.concat(chunks));
  request.body = { ...metadata, application_type: 'native' };
}

const oidc = provider.callback();
server.on('request', async (request, response) => {
  try {
    if (request.url.startsWith('/test/')) return await testToken(request, response);
    if (request.url.startsWith('/interaction/')) return await interact(request, response);
    if (request.method === 'POST' && request.url === '/reg') await withoutScope(request);
    return oidc(request, response);
  } catch (error) {
    console.error(error);
    return response.writeHead(500).end(String(error));
  }
});
console.log(issuer);
