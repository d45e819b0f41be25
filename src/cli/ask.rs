//! Asks the admin port of a running gateway: one GET over plain HTTP, without a runtime.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use url::Url;

use crate::config::{self, ConfigErrors};
use crate::secret::Secret;

/// For connecting, and again for each part of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Default port of `admin.listen`.
const DEFAULT_PORT: u16 = 9090;

// Which gateway is asked: without either option, the one at http://127.0.0.1:9090. No doc comment: it would stand in
// for that of the command.
#[derive(Debug, Clone, Args)]
pub(super) struct AdminAddress {
    /// The configuration of the gateway: its `[admin]` has the address and the token. Nothing else of it is read.
    #[arg(long, env = "DRAWBRIDGE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The admin port instead, such as `http://127.0.0.1:9090`; the configuration is not read.
    #[arg(long, value_name = "URL", value_parser = admin_url)]
    admin: Option<Url>,
    /// A file with the token of `[admin] token`, instead of the configuration's.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

/// The admin port of a gateway.
#[derive(Debug)]
pub(super) struct AdminClient {
    host: String,
    port: u16,
    token: Option<Secret>,
}

/// What it answered.
#[derive(Debug)]
pub(super) struct AdminResponse {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Why it cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminRequestError {
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    #[error(
        "--config: `admin.listen` leaves the port to the system: give the address with --admin"
    )]
    NoPort,
    #[error("{}: {error}", .file.display())]
    TokenFile { file: PathBuf, error: io::Error },
    #[error(
        "no answer from {address}: {error}\n    look whether the gateway runs, or name its admin port: --admin URL, or \
         --config FILE with its [admin]"
    )]
    Unreachable { address: String, error: io::Error },
    #[error("{address} answers, but not as the admin port of a gateway does: {what}")]
    Strange { address: String, what: &'static str },
}

impl AdminAddress {
    /// The admin port that the options mean.
    pub(super) fn client(&self) -> Result<AdminClient, AdminRequestError> {
        let mut client = match (&self.admin, &self.config) {
            (Some(url), _) => AdminClient::at(url),
            (None, Some(file)) => AdminClient::of(&config::load_admin(file)?)?,
            (None, None) => AdminClient {
                host: Ipv4Addr::LOCALHOST.to_string(),
                port: DEFAULT_PORT,
                token: None,
            },
        };
        if let Some(file) = &self.admin_token_file {
            client.token = Some(read_token(file)?);
        }
        Ok(client)
    }
}

/// Reads `--admin`.
fn admin_url(text: &str) -> Result<Url, String> {
    let wrong = |_| "expected a URL such as http://127.0.0.1:9090".to_owned();
    let url = Url::parse(text).map_err(wrong)?;
    if url.scheme() != "http" {
        let what =
            "must begin with http://, which the admin port speaks, as in http://127.0.0.1:9090";
        return Err(what.to_owned());
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err("must be scheme, host and port alone".to_owned());
    }
    Ok(url)
}

impl AdminClient {
    fn at(url: &Url) -> Self {
        Self {
            // A URL that begins with http:// always has a host.
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
            token: None,
        }
    }

    /// The target for `[admin]`; an unspecified listen address is reached over loopback.
    fn of(admin: &config::AdminConfig) -> Result<Self, AdminRequestError> {
        let listen = admin.listen;
        if listen.port() == 0 {
            return Err(AdminRequestError::NoPort);
        }
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let host = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Ok(Self {
            host,
            port: listen.port(),
            token: admin.token.clone(),
        })
    }

    /// Host and port.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Asks for `path`.
    pub(super) fn get(&self, path: &str) -> Result<AdminResponse, AdminRequestError> {
        let answer = self.exchange(path);
        let answer = answer.map_err(|error| AdminRequestError::Unreachable {
            address: self.address(),
            error: as_timeout(error),
        })?;
        read_answer(&answer).map_err(|what| AdminRequestError::Strange {
            address: self.address(),
            what,
        })
    }

    fn exchange(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n",
            self.address()
        );
        if let Some(token) = &self.token {
            head.push_str("authorization: Bearer ");
            head.push_str(token.expose());
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(MAX_BYTES).read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// The first address of the name that takes a connection.
    fn connect(&self) -> io::Result<TcpStream> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> = (name, self.port).to_socket_addrs()?.collect();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A timeout by its name: of a read or write the system says "Resource temporarily unavailable" (socket(7)).
fn as_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn read_token(file: &Path) -> Result<Secret, AdminRequestError> {
    let text = std::fs::read_to_string(file).map_err(|error| AdminRequestError::TokenFile {
        file: file.to_owned(),
        error,
    })?;
    let token = text.trim();
    let what = if token.is_empty() {
        "the file is empty"
    } else if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Secret::new(token));
    } else {
        "the token has blanks or characters beyond ASCII"
    };
    Err(AdminRequestError::TokenFile {
        file: file.to_owned(),
        error: io::Error::new(io::ErrorKind::InvalidData, what),
    })
}

/// Status and body of a whole answer, whose end is that of the connection.
fn read_answer(answer: &[u8]) -> Result<AdminResponse, &'static str> {
    let text = std::str::from_utf8(answer).map_err(|_| "it is no text")?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("it is no HTTP/1.1")?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or("it is no HTTP/1.1")?;
    let is_chunked = |line: &str| line.to_ascii_lowercase().starts_with("transfer-encoding:");
    if lines.any(is_chunked) {
        return Err("its body has no length");
    }
    Ok(AdminResponse {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn of(listen: &str) -> Result<String, String> {
        let admin = config::AdminConfig {
            listen: listen.parse().unwrap(),
            allowed_hosts: Vec::new(),
            token: None,
        };
        let client = AdminClient::of(&admin);
        client
            .map(|client| client.address())
            .map_err(|error| error.to_string())
    }

    #[rstest]
    #[case("127.0.0.1:9090", "127.0.0.1:9090")]
    #[case("0.0.0.0:9091", "127.0.0.1:9091")]
    #[case("[::]:9090", "[::1]:9090")]
    #[case("[fd00::1]:9090", "[fd00::1]:9090")]
    fn a_gateway_on_every_address_is_asked_over_loopback(
        #[case] listen: &str,
        #[case] asked: &str,
    ) {
        assert_eq!(of(listen).unwrap(), asked);
    }

    #[test]
    fn a_port_that_the_system_chooses_has_to_be_named() {
        assert!(of("127.0.0.1:0").unwrap_err().contains("--admin"));
    }

    #[rstest]
    #[case("127.0.0.1:9090", "such as http://")]
    #[case("localhost:9090", "as in http://")]
    #[case("https://127.0.0.1:9090", "http://")]
    #[case("http://127.0.0.1:9090/status", "alone")]
    #[case("http://127.0.0.1:9090?format=text", "alone")]
    fn what_is_no_admin_port_is_refused(#[case] url: &str, #[case] why: &str) {
        let error = admin_url(url).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case("\n", "is empty")]
    #[case("two words\n", "has blanks")]
    fn a_file_without_a_token_is_named(#[case] text: &str, #[case] why: &str) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.token");
        std::fs::write(&file, text).unwrap();
        let error = read_token(&file).unwrap_err().to_string();
        assert!(
            error.contains("admin.token") && error.contains(why),
            "{error}"
        );
    }

    #[test]
    fn an_answer_is_status_and_body() {
        let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 3\r\n\r\nno\n";
        let answer = read_answer(answer).unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (401, "no\n"));
        assert!(read_answer(b"SSH-2.0-OpenSSH_9.2\r\n").is_err());
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert!(read_answer(chunked).is_err());
    }
}
