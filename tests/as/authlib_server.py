"""A second authorization server, on other code than `server.mjs`: Authlib and Flask. Its users say yes to everything:
`user-1`, or the one that the header `x-user` of an authorization request names.

Usage: authlib_server.py; prints its issuer as the first line. ACCESS_TTL: seconds that access tokens last.

Metadata by RFC 8414 alone (no OpenID), dynamic registration, PKCE (S256), `iss` in answers, access tokens as JWTs
(RFC 9068) for the one resource of the authorization request, refresh tokens that are good once, revocation.
"""

import logging
import os
import time

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, InvalidRequestError, OAuth2Error, TokenMixin, grants
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Flask, request
from joserfc.jwk import ECKey
from werkzeug.serving import make_server

SCOPES = ["mcp:tools", "mcp:admin"]
TTL = int(os.environ.get("ACCESS_TTL", "600"))
KEY = ECKey.generate_key("P-256", {"kid": "authlib-key", "use": "sig", "alg": "ES256"})

app = Flask("authlib-server")
logging.getLogger("werkzeug").setLevel(logging.ERROR)
http = make_server("127.0.0.1", 0, app, threaded=True)
ISSUER = f"http://127.0.0.1:{http.server_port}"

METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "jwks_uri": f"{ISSUER}/jwks",
    "scopes_supported": SCOPES,
    "response_types_supported": ["code"],
    "grant_types_supported": ["authorization_code", "refresh_token"],
    "token_endpoint_auth_methods_supported": ["client_secret_basic"],
    "code_challenge_methods_supported": ["S256"],
    "authorization_response_iss_parameter_supported": True,
}

clients, codes, tokens = {}, {}, {}


class User:
    def __init__(self, name):
        self.name = name

    def get_user_id(self):
        return self.name


class Client(ClientMixin):
    """A client that has registered itself."""

    def __init__(self, info, metadata):
        self.client_id, self.secret, self.metadata = info["client_id"], info["client_secret"], metadata

    def get_client_id(self):
        return self.client_id

    def get_default_redirect_uri(self):
        return None

    def get_allowed_scope(self, scope):
        return " ".join(one for one in (scope or "").split() if one in SCOPES)

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret):
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method, endpoint):
        return method == self.metadata["token_endpoint_auth_method"]

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in self.metadata["grant_types"]


class Granted(TokenMixin):
    """A code or a token, with what it was given for."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope

    def check_client(self, client):
        return self.client_id == client.client_id


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic"]

    def save_authorization_code(self, code, request):
        asked = request.payload.data
        codes[code] = Granted(
            code=code,
            client_id=request.client.client_id,
            redirect_uri=request.payload.redirect_uri,
            scope=request.payload.scope or "",
            user=request.user,
            resource=asked["resource"],
            code_challenge=asked["code_challenge"],
            code_challenge_method=asked["code_challenge_method"],
        )

    def query_authorization_code(self, code, client):
        found = codes.get(code)
        return found if found and found.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code):
        codes.pop(authorization_code.code, None)

    def authenticate_user(self, authorization_code):
        require_resource(authorization_code)
        return authorization_code.user


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic"]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token):
        return tokens.get(refresh_token)

    def authenticate_user(self, refresh_token):
        require_resource(refresh_token)
        return refresh_token.user

    def revoke_old_credential(self, refresh_token):
        tokens.pop(refresh_token.refresh_token, None)


def require_resource(granted):
    """The token request names the resource of the authorization. Spec: RFC 8707 §2.2"""
    if request.form.get("resource") != granted.resource:
        raise InvalidRequestError("resource is another one")


class Tokens(JWTBearerTokenGenerator):
    def get_jwks(self):
        return KEY.as_dict(private=True)

    def get_audiences(self, client, user, scope):
        return request.form["resource"]


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return "anyone"

    def get_server_metadata(self):
        return METADATA

    def save_client(self, client_info, client_metadata, request):
        clients[client_info["client_id"]] = Client(client_info, client_metadata)
        return clients[client_info["client_id"]]


class Revocation(RevocationEndpoint):
    def query_token(self, token_string, token_type_hint):
        return tokens.get(token_string)

    def revoke_token(self, token, request):
        tokens.pop(token.refresh_token, None)


class Issuer(IssuerParameter):
    def get_issuer(self):
        return ISSUER


def save_token(token, request):
    if refresh := token.get("refresh_token"):
        tokens[refresh] = Granted(
            refresh_token=refresh,
            client_id=request.client.client_id,
            scope=token["scope"],
            user=request.user,
            resource=request.form["resource"],
        )


def expires_in(client, grant_type):
    return TTL


def refresh_token(client, grant_type, user, scope):
    return f"refresh-{user.name}-{time.monotonic_ns()}"


app.config["OAUTH2_SCOPES_SUPPORTED"] = SCOPES
server = AuthorizationServer(app, query_client=clients.get, save_token=save_token)
server.register_grant(CodeGrant, [CodeChallenge(required=True)])
server.register_grant(RefreshGrant)
server.register_endpoint(Registration)
server.register_endpoint(Revocation)
server.register_extension(Issuer())
server.register_token_generator("default", Tokens(ISSUER, "ES256", refresh_token, expires_in))
AuthorizationServerMetadata(METADATA).validate()


@app.get("/.well-known/oauth-authorization-server")
def metadata():
    return METADATA


@app.get("/jwks")
def jwks():
    return {"keys": [KEY.as_dict(private=False)]}


@app.get("/authorize")
def authorize():
    user = User(request.headers.get("x-user", "user-1"))
    try:
        grant = server.get_consent_grant(end_user=user)
    except OAuth2Error as error:
        return dict(error.get_body()), 400
    return server.create_authorization_response(grant_user=user, grant=grant)


@app.post("/token")
def token():
    return server.create_token_response()


@app.post("/register")
def register():
    return server.create_endpoint_response("client_registration")


@app.post("/revoke")
def revoke():
    return server.create_endpoint_response("revocation")


print(ISSUER, flush=True)
http.serve_forever()
