//! The configuration of a gateway under test, as little of it as the test is about.

use std::fmt::Write as _;
use std::sync::Arc;

use super::gateway::Gateway;
use super::issuer::Issuer;
use super::upstream::{HttpStub, stub_program};

/// A gateway to be: ports are chosen by the system, everything else has its default.
pub(crate) struct Setup {
    listen: String,
    server: String,
    admin: String,
    auth: String,
    issuer: Option<Arc<Issuer>>,
    rest: String,
    /// Soft and hard limit on file descriptors, where they are not those of the tests.
    descriptors: Option<(u64, u64)>,
}

impl Setup {
    /// Without authentication: everybody is `anonymous`.
    pub(crate) fn open() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            server: String::new(),
            admin: String::new(),
            auth: "mode = \"none\"\n".into(),
            issuer: None,
            rest: String::new(),
            descriptors: None,
        }
    }

    /// With tokens of a local issuer; see [`Gateway::principal`].
    pub(crate) fn secured() -> Self {
        let issuer = Arc::new(Issuer::new());
        let auth = "mode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]\n".into();
        Self {
            listen: "127.0.0.1:0".to_owned(),
            server: String::new(),
            admin: String::new(),
            auth,
            issuer: Some(issuer),
            rest: String::new(),
            descriptors: None,
        }
    }

    /// With the issuer of another gateway in place of its own.
    pub(crate) fn trusting(mut self, other: &Gateway) -> Self {
        self.issuer = Some(other.shared_issuer());
        self
    }

    /// With tokens of an authorization server at `issuer`, found by discovery.
    pub(crate) fn behind_issuer(issuer: &str) -> Self {
        let tables = format!("[[auth.issuers]]\nissuer = {issuer:?}\n");
        Self::open()
            .toml(&tables)
            .auth("mode = \"oauth\"\nrequired_scopes = [\"mcp:tools\"]")
    }

    /// At this address, where another gateway was before.
    pub(crate) fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// Lines for `[server]`.
    pub(crate) fn server(mut self, lines: &str) -> Self {
        writeln!(self.server, "{lines}").unwrap();
        self
    }

    /// The lines of `[auth]`.
    pub(crate) fn auth(mut self, lines: &str) -> Self {
        self.auth = format!("{lines}\n");
        self
    }

    /// How many file descriptors may be open at first, and at most.
    pub(crate) fn descriptors(mut self, soft: u64, hard: u64) -> Self {
        self.descriptors = Some((soft, hard));
        self
    }

    /// Lines for `[admin]`.
    pub(crate) fn admin(mut self, lines: &str) -> Self {
        writeln!(self.admin, "{lines}").unwrap();
        self
    }

    /// Whole tables.
    pub(crate) fn toml(mut self, tables: &str) -> Self {
        writeln!(self.rest, "{tables}").unwrap();
        self
    }

    /// The stub upstream as a stdio child.
    pub(crate) fn stub(self, name: &str, args: &[&str]) -> Self {
        self.stub_with(name, args, "")
    }

    /// The stub upstream as a stdio child, with further keys of its table.
    pub(crate) fn stub_with(self, name: &str, args: &[&str], keys: &str) -> Self {
        let args: Vec<&str> = std::iter::once("stdio")
            .chain(args.iter().copied())
            .collect();
        self.stdio(name, &stub_program(), &args, keys)
    }

    /// Any program as a stdio child.
    pub(crate) fn stdio(self, name: &str, command: &str, args: &[&str], keys: &str) -> Self {
        self.toml(&format!(
            "[upstreams.{name}]\ncommand = {command:?}\nargs = {args:?}\n{keys}"
        ))
    }

    /// A running HTTP stub.
    pub(crate) fn http(self, name: &str, stub: &HttpStub, keys: &str) -> Self {
        self.url(name, &stub.url, keys)
    }

    /// An HTTP upstream at `url`.
    pub(crate) fn url(self, name: &str, url: &str, keys: &str) -> Self {
        self.toml(&format!("[upstreams.{name}]\nurl = {url:?}\n{keys}"))
    }

    /// The configuration file.
    pub(crate) fn render(&self) -> String {
        // The default would be waited for by every test that stops its gateway.
        let linger = if self.server.contains("drain_linger") {
            ""
        } else {
            "drain_linger = \"20ms\"\n"
        };
        let mut text = format!(
            "[server]\nlisten = \"{}\"\n{linger}{}\n[admin]\nlisten = \"127.0.0.1:0\"\n{}\n[auth]\n{}\n",
            self.listen, self.server, self.admin, self.auth
        );
        if let Some(issuer) = &self.issuer {
            write!(
                text,
                "[[auth.issuers]]\nissuer = {:?}\njwks_file = \"{}\"\n\n",
                issuer.name,
                issuer.jwks_file().display()
            )
            .unwrap();
        }
        // Without health checks, the counters of upstreams hold only the test's own requests.
        let health = if self.rest.contains("[health]") {
            ""
        } else {
            "[health]\ninterval = \"0s\"\n"
        };
        text + &self.rest + health
    }

    /// Starts a gateway that kills itself at `point` (`runtime::fault_point`), and waits until ready.
    pub(crate) async fn start_doomed(self, point: &str) -> Gateway {
        Gateway::start_doomed(&self.render(), self.issuer, point).await
    }

    /// Starts the gateway and waits until ready.
    pub(crate) async fn start(self) -> Gateway {
        let config = self.render();
        match self.descriptors {
            Some(limits) => Gateway::start_with_descriptors(&config, self.issuer, limits).await,
            None => Gateway::start(&config, self.issuer).await,
        }
    }
}
