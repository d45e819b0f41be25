//! Fetches of issuers' documents and questions about tokens: the only HTTP requests of the resource
//! server.
//!
//! A URL on the issuer's own origin is as trusted as the operator who wrote it down; any other is
//! learned from a document and goes through the egress rules with what `egress.allow` opens, names being
//! judged by the addresses they resolve to at connect (SPEC X-01). No redirects, no proxies of the
//! environment, 1 MiB, 5 s.

use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use reqwest::{Client, ClientBuilder};
use url::Url;

use crate::cause::{ConnectionFault, DESCRIPTORS_WANTED};
use crate::config::is_loopback;
use crate::egress::{self, DocumentError, EgressRefusal, EgressRules, read_body};

/// The largest document that is read, in bytes.
pub(super) const MAX_BYTES: usize = 1024 * 1024;
/// The largest answer about one token, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// For one document, connecting included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// For the connection alone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

impl DocumentError {
    /// What an operator can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Refused(_) => {
                "correct the issuer's metadata: what it names on another origin has to be https and public; or add that \
                 host or address to `egress.allow`; or set `jwks_file` (keys) or `introspection.endpoint`"
            }
            Self::Transport(error) => of_transport(error),
            Self::Status(300..=399) => {
                "write the address that it leads to: redirections are not followed"
            }
            Self::Status(404 | 410) => {
                "correct the path of `issuer` (the realm or tenant): it is the `issuer` that the issuer's own \
                 metadata shows"
            }
            Self::Status(401 | 403) => "let the issuer show this document without a login",
            Self::Status(500..) => "look into the issuer's own log",
            Self::Status(_) => "ask for this address from this machine, for instance with curl",
            Self::TooLarge(_) => {
                "look what answers at this address: no such document is that large"
            }
        }
    }
}

fn of_transport(error: &reqwest::Error) -> &'static str {
    match ConnectionFault::of(error) {
        Some(ConnectionFault::Refused) => {
            "start the issuer, or correct host and port of `issuer`: no program listens there"
        }
        Some(ConnectionFault::UnknownHost) => {
            "correct the host of `issuer`, or the DNS of this machine: the name has no address here"
        }
        Some(ConnectionFault::NoRoute) => "give this machine a route to the issuer",
        Some(ConnectionFault::NotTls) => {
            "correct scheme or port of `issuer`: the port speaks no TLS (http:// is for loopback hosts alone)"
        }
        Some(ConnectionFault::UnknownIssuer | ConnectionFault::Authority) => {
            "add the authority of the issuer's certificate to the trust store of this machine \
             (`SSL_CERT_FILE` names another one)"
        }
        Some(ConnectionFault::OtherName) => {
            "write the host name that the issuer's certificate is for, or give the issuer one for this name"
        }
        Some(ConnectionFault::Expired) => {
            "renew the issuer's certificate, or correct the clock of this machine"
        }
        Some(ConnectionFault::Handshake | ConnectionFault::Untrusted) => {
            "look at the issuer's TLS settings: the gateway speaks TLS 1.2 and 1.3"
        }
        Some(ConnectionFault::NoDescriptor) => DESCRIPTORS_WANTED,
        Some(ConnectionFault::TimedOut) => NO_ANSWER,
        None if error.is_timeout() => NO_ANSWER,
        // Documents are fetched without a proxy.
        Some(ConnectionFault::Proxy | ConnectionFault::ProxyRefused) | None => {
            "ask for this address from this machine, for instance with curl"
        }
    }
}

/// What to do about an issuer that takes too long.
pub(super) const NO_ANSWER: &str = "look whether a firewall is between this machine and the issuer, and whether the issuer is overloaded";

/// What was answered to a form.
#[derive(Debug)]
pub(super) struct FormResponse {
    pub(super) status: u16,
    /// Empty where the status is not 200 and the body cannot be read to its end.
    pub(super) body: Vec<u8>,
}

/// The clients: one for each kind of trust.
#[derive(Debug, Clone)]
pub(super) struct IssuerClients {
    rules: EgressRules,
    configured: Client,
    learned: Client,
    plain: Client,
}

impl IssuerClients {
    /// Sets up the clients, trust anchors of the system included. Learned URLs are held to `rules`.
    ///
    /// # Errors
    /// There are no trust anchors.
    pub(super) fn new(rules: EgressRules) -> Result<Self, reqwest::Error> {
        Ok(Self {
            configured: limited(egress::documents()).build()?,
            learned: limited(rules.documents()).build()?,
            plain: limited(rules.plain_documents()).build()?,
            rules,
        })
    }

    /// Fetches `url` for an issuer that the operator configured as `issuer`.
    ///
    /// # Errors
    /// There is no document, or it must not be fetched.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn get(&self, url: &Url, issuer: &Url) -> Result<Vec<u8>, DocumentError> {
        let client = self.client(url, issuer)?;
        let request = client.get(url.clone()).header(ACCEPT, "application/json");
        let answer = request.send().await?;
        if answer.status() != StatusCode::OK {
            return Err(DocumentError::Status(answer.status().as_u16()));
        }
        read_body(answer, MAX_BYTES).await
    }

    /// Posts a form to `url` for an issuer that the operator configured as `issuer`; the answer may
    /// have 64 KiB, whatever its status. No error holds anything of the form or of `authorization`.
    ///
    /// # Errors
    /// There is no answer, a 200 cannot be read, or the URL must not be contacted.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub(super) async fn post(
        &self,
        url: &Url,
        issuer: &Url,
        authorization: Option<HeaderValue>,
        form: String,
    ) -> Result<FormResponse, DocumentError> {
        let client = self.client(url, issuer)?;
        let mut request = client
            .post(url.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let body = match read_body(answer, MAX_ANSWER_BYTES).await {
            Err(error) if status == 200 => return Err(error),
            body => body.unwrap_or_default(),
        };
        Ok(FormResponse { status, body })
    }

    /// The client for `url`, which stands there by the operator's word or by a document's.
    fn client(&self, url: &Url, issuer: &Url) -> Result<&Client, EgressRefusal> {
        if url.origin() == issuer.origin() {
            check_configured(url)?;
            Ok(&self.configured)
        } else {
            self.rules.check_url(url)?;
            Ok(match url.scheme() {
                "https" => &self.learned,
                _ => &self.plain,
            })
        }
    }
}

fn limited(builder: ClientBuilder) -> ClientBuilder {
    builder
        .timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(4)
}

/// Plain HTTP is for hosts of this machine. SPEC A-24
fn check_configured(url: &Url) -> Result<(), EgressRefusal> {
    if url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url)) {
        Ok(())
    } else {
        Err(EgressRefusal::Scheme)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rstest::rstest;

    use super::*;
    use crate::config::{EgressAllow, EgressConfig};

    // SPEC X-01
    #[tokio::test]
    async fn learned_name_of_a_private_address_is_not_called_unknown() {
        let clients = IssuerClients::new(EgressRules::default()).expect("trust anchors");
        let sent = clients.learned.get("https://localhost:9/").send().await;
        let error = DocumentError::from(sent.expect_err("a private address"));
        assert!(matches!(error, DocumentError::Refused(_)), "{error:?}");
        assert!(error.remedy().contains("https and public"), "{error:?}");
    }

    // SPEC X-01
    #[rstest]
    #[case::public(Vec::new(), "https://keys.example.com/jwks", true)]
    #[case::inside(Vec::new(), "https://10.1.2.3:6443/openid/v1/jwks", false)]
    #[case::allowed(vec![block(10)], "https://10.1.2.3:6443/openid/v1/jwks", true)]
    #[case::plain(vec![block(10)], "http://10.1.2.3/jwks", false)]
    #[case::plain_here(vec![block(127)], "http://127.0.0.1:3000/jwks", true)]
    fn metadata_lead_inside_where_that_is_allowed(
        #[case] allow: Vec<EgressAllow>,
        #[case] url: &str,
        #[case] is_asked: bool,
    ) {
        let rules = EgressRules::new(&EgressConfig { allow });
        let clients = IssuerClients::new(rules).expect("trust anchors");
        let [url, issuer] = [url, "https://as.internal"].map(|url| Url::parse(url).expect("a URL"));
        assert_eq!(clients.client(&url, &issuer).is_ok(), is_asked);
    }

    /// The block of all addresses that begin with this byte.
    fn block(first: u8) -> EgressAllow {
        EgressAllow::Block(Ipv4Addr::new(first, 0, 0, 0).into(), 8)
    }

    // SPEC A-24
    #[rstest]
    #[case("https://as.internal/keys", true)]
    #[case("http://127.0.0.1:3000/keys", true)]
    #[case("http://[::1]:3000/keys", true)]
    #[case("http://localhost:3000/keys", true)]
    #[case("http://as.internal/keys", false)]
    #[case("http://127.0.0.1.nip.test/keys", false)]
    #[case("ftp://127.0.0.1/keys", false)]
    fn plain_http_is_for_this_machine(#[case] url: &str, #[case] allowed: bool) {
        let url = Url::parse(url).expect("a URL");
        assert_eq!(check_configured(&url).is_ok(), allowed);
    }
}
