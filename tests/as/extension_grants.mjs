// Extension grants for the real server (oidc-provider has none): token exchange (RFC 8693), and both halves of
// identity assertions (enterprise-managed authorization): the exchange of an ID token for an ID-JAG, and the grant
// that takes one (RFC 7523). Tokens are checked by the server's own keys.
import { createPublicKey, randomUUID, sign, verify } from 'node:crypto';
import { errors } from 'oidc-provider';

export const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
export const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const TYPE = 'urn:ietf:params:oauth:token-type:';
const JAG_HEADER = 'oauth-id-jag+jwt';

const decode = (part) => JSON.parse(Buffer.from(part, 'base64url'));
const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
const now = () => Math.floor(Date.now() / 1000);

/** The claims of a JWT of `issuer`, signed with `key` and not over; what is wrong is `invalid_grant`. */
function verified(token, key, issuer, type) {
  try {
    const [header, payload, signature] = token.split('.');
    const options = { key, dsaEncoding: 'ieee-p1363' };
    const signed = verify('sha256', Buffer.from(`${header}.${payload}`), options, Buffer.from(signature, 'base64url'));
    const claims = decode(payload);
    const isOfType = !type || decode(header).typ === type;
    if (signed && isOfType && claims.iss === issuer && claims.exp > now()) return claims;
  } catch {
    // Below.
  }
  throw new errors.InvalidGrant('the token is none of ours, or over');
}

/** The public key of another server. */
async function publicKeyOf(issuer) {
  const metadata = await (await fetch(`${issuer}/.well-known/openid-configuration`)).json();
  const { keys } = await (await fetch(metadata.jwks_uri)).json();
  return createPublicKey({ key: keys[0], format: 'jwk' });
}

export function registerExtensionGrants(provider, { issuer, key, resourceServer, trustedIssuer }) {
  const publicKey = createPublicKey(key);

  function signed(claims, typ) {
    const text = `${encode({ alg: 'ES256', kid: 'as-key', typ })}.${encode(claims)}`;
    return `${text}.${sign('sha256', Buffer.from(text), { key, dsaEncoding: 'ieee-p1363' }).toString('base64url')}`;
  }

  /** An access token of `accountId` for `resource`. */
  async function accessToken(client, accountId, resource, scope) {
    if (!resource) throw new errors.InvalidTarget('resource is required');
    const server = new provider.ResourceServer(resource, resourceServer(resource));
    const known = new Set(server.scope.split(' '));
    const wanted = (scope ?? '').split(' ').filter(Boolean);
    if (!wanted.every((one) => known.has(one))) throw new errors.InvalidScope('unknown scope', scope);
    const token = new provider.AccessToken({ accountId, client, gty: 'extension', grantId: randomUUID() });
    token.resourceServer = server;
    token.scope = wanted.join(' ') || undefined;
    return { value: await token.save(), expires: token.expiration, scope: token.scope };
  }

  function answer(ctx, token, type) {
    ctx.body = {
      access_token: token.value,
      token_type: 'Bearer',
      expires_in: token.expires,
      scope: token.scope,
      ...(type && { issued_token_type: type }),
    };
  }

  /** Spec: identity assertion authorization grant, §4.3. */
  function identityAssertion(ctx) {
    const { params, client } = ctx.oidc;
    if (params.subject_token_type !== `${TYPE}id_token`) throw new errors.InvalidRequest('an ID token is wanted');
    const claims = verified(params.subject_token, publicKey, issuer);
    if (claims.aud !== client.clientId) throw new errors.InvalidGrant('the ID token is of another client');
    if (!params.audience) throw new errors.InvalidRequest('audience is required');
    const assertion = {
      iss: issuer,
      sub: claims.sub,
      aud: params.audience,
      client_id: process.env.JAG_CLIENT ?? client.clientId,
      jti: randomUUID(),
      iat: now(),
      exp: now() + 300,
      resource: params.resource,
      scope: params.scope,
    };
    ctx.body = {
      access_token: signed(assertion, JAG_HEADER),
      issued_token_type: `${TYPE}id-jag`,
      token_type: 'N_A',
      expires_in: 300,
    };
  }

  const parameters = [
    'subject_token', 'subject_token_type', 'requested_token_type', 'resource', 'scope', 'audience',
  ];
  provider.registerGrantType(
    EXCHANGE,
    async (ctx) => {
      const { params, client } = ctx.oidc;
      if (params.requested_token_type === `${TYPE}id-jag`) return identityAssertion(ctx);
      if (params.subject_token_type !== `${TYPE}access_token`) throw new errors.InvalidRequest('an access token is wanted');
      if (params.audience !== undefined) throw new errors.InvalidTarget('no audience is known here');
      const claims = verified(params.subject_token, publicKey, issuer);
      const token = await accessToken(client, claims.sub, params.resource, params.scope);
      return answer(ctx, token, `${TYPE}access_token`);
    },
    parameters,
  );

  provider.registerGrantType(
    JWT_BEARER,
    async (ctx) => {
      const { params, client } = ctx.oidc;
      const claims = verified(params.assertion, await publicKeyOf(trustedIssuer), trustedIssuer, JAG_HEADER);
      if (claims.aud !== issuer) throw new errors.InvalidGrant('the assertion is for another server');
      if (claims.client_id !== client.clientId) throw new errors.InvalidGrant('the assertion is for another client');
      return answer(ctx, await accessToken(client, claims.sub, claims.resource, params.scope ?? claims.scope));
    },
    ['assertion', 'scope', 'resource'],
  );

  /** Tokens of any user, for tests: `/test/access_token?sub=…&resource=…&scope=…`, `/test/id_token?sub=…&client_id=…`. */
  return async function testToken(request, response) {
    const { pathname, searchParams } = new URL(request.url, issuer);
    const sub = searchParams.get('sub');
    if (pathname === '/test/id_token') {
      const claims = { iss: issuer, sub, aud: searchParams.get('client_id'), iat: now(), exp: now() + 600 };
      return response.end(signed(claims, 'JWT'));
    }
    const client = await provider.Client.find('gateway');
    const token = await accessToken(client, sub, searchParams.get('resource'), searchParams.get('scope'));
    return response.end(token.value);
  };
}
