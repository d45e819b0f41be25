//! Validates files named in the configuration (certificates, keys, key sets).
//!
//! The parts that use a file read it again later. Validation here finds errors that would prevent the start: `check`
//! reports them, and `serve` names the key.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Reads the certificates of a PEM file; at least one.
///
/// # Errors
/// Why the file cannot be used.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error| not_pem(error, "a certificate");
    let all = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(wrong)?;
    if all.is_empty() {
        return Err(wrong(Error::NoItemsFound));
    }
    Ok(all)
}

/// Reads the private key of a PEM file.
///
/// # Errors
/// Why the file cannot be used.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| not_pem(error, "a private key"))
}

/// Whether a server can use this chain with this key.
///
/// # Errors
/// Why it cannot.
pub(super) fn fit(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
        .map(drop)
        .map_err(|error| format!("certificate and key cannot be used: {error}"))
}

/// Whether all certificates of a PEM file can be trusted.
///
/// # Errors
/// Why they cannot.
pub(super) fn anchors(path: &Path) -> Result<(), String> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("a certificate cannot be used: {error}"))?;
    }
    Ok(())
}

/// Whether a file holds a JWK set with at least one key. The use of its keys is checked later.
///
/// # Errors
/// Why it does not.
pub(super) fn key_set(path: &Path) -> Result<(), String> {
    #[derive(Deserialize)]
    struct ConfigDocument {
        keys: Vec<IgnoredAny>,
    }
    let text = std::fs::read(path).map_err(|error| unreadable(&error))?;
    match serde_json::from_slice::<ConfigDocument>(&text) {
        Ok(document) if document.keys.is_empty() => {
            Err("holds no key, so that every token would be refused".to_owned())
        }
        Ok(_) => Ok(()),
        Err(_) => Err("is no JWK set, such as {\"keys\": […]}".to_owned()),
    }
}

fn not_pem(error: Error, what: &str) -> String {
    match error {
        Error::Io(error) => unreadable(&error),
        _ => format!("is no PEM file with {what}"),
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;
    use rstest::rstest;

    use crate::config::load;

    /// Validates a file with these lines, in a folder with `cert.pem`, `key.pem`, `other.pem`, `keys.json`,
    /// `no-keys.json`, `empty.json` and the folder `folder`; returns the errors.
    fn errors(lines: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let made = || generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        for (name, text) in [
            ("cert.pem", one.cert.pem()),
            ("key.pem", one.signing_key.serialize_pem()),
            ("other.pem", other.signing_key.serialize_pem()),
            ("keys.json", r#"{"keys":[{"kty":"EC"}]}"#.to_owned()),
            ("no-keys.json", r#"{"keys":[]}"#.to_owned()),
            ("empty.json", String::new()),
            ("gateway.toml", lines.to_owned()),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        match load(&dir.path().join("gateway.toml")) {
            Ok(_) => String::new(),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[rstest]
    #[case("cert.pem", "key.pem", "")]
    #[case("key.pem", "key.pem", "key.pem: is no PEM file with a certificate")]
    #[case("cert.pem", "cert.pem", "cert.pem: is no PEM file with a private key")]
    #[case("folder", "key.pem", "folder: cannot be read: Is a directory")]
    #[case("cert.pem", "gone.pem", "gone.pem: cannot be read: No such file")]
    #[case(
        "cert.pem",
        "other.pem",
        "server.tls: certificate and key cannot be used"
    )]
    fn tls_files_that_cannot_be_served_are_refused(
        #[case] cert: &str,
        #[case] key: &str,
        #[case] said: &str,
    ) {
        let errors = errors(&format!(
            "[server]\ntls = {{ cert = \"{cert}\", key = \"{key}\" }}\n\
             [auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"x\"\n"
        ));
        assert!(errors.contains(said), "{errors}");
        assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
    }

    #[rstest]
    #[case("cert.pem", "")]
    #[case("keys.json", "ca_file: is no PEM file with a certificate")]
    #[case("folder", "ca_file: cannot be read: Is a directory")]
    fn trust_anchors_that_are_none_are_refused(#[case] file: &str, #[case] said: &str) {
        let errors = errors(&format!(
            "[auth]\nmode = \"none\"\n\
             [upstreams.a]\nurl = \"https://a.test/mcp\"\nca_file = \"{file}\"\n"
        ));
        assert!(errors.contains(said), "{errors}");
        assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
    }

    #[rstest]
    #[case("keys.json", "")]
    #[case("no-keys.json", "jwks_file: holds no key")]
    #[case("empty.json", "jwks_file: is no JWK set")]
    #[case("cert.pem", "jwks_file: is no JWK set")]
    #[case("folder", "jwks_file: cannot be read: Is a directory")]
    fn a_key_file_that_holds_no_key_set_is_refused(#[case] file: &str, #[case] said: &str) {
        let errors = errors(&format!(
            "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://i.test\"\n\
             jwks_file = \"{file}\"\n[upstreams.a]\ncommand = \"x\"\n"
        ));
        assert!(errors.contains(said), "{errors}");
        assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
    }
}
