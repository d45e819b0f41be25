//! Validates files named in the configuration (certificates, keys, key sets).
//!
//! The parts that use a file read it again later. Validation here finds errors that would prevent the start: `check`
//! reports them, and `serve` names the key.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::entry::BESIDE;
use super::reader::ConfigSection;
use super::report::join;
use crate::secret::Secret;

/// Reads the key `name`, the path of a PEM file. A missing path is reported, and the result is empty.
pub(super) fn required_pem(t: &mut ConfigSection<'_>, name: &'static str) -> PathBuf {
    let path = t.key(name, "PEM file.").path("");
    path.unwrap_or_else(|| {
        // An unreadable value was reported when the key was read.
        if !t.report.is_wrong(&join(&t.path, name)) {
            t.error(name, "is required: a PEM file", None);
        }
        PathBuf::new()
    })
}

/// Reports a file that `read` rejects; `None` then, and without a path.
pub(super) fn usable<T>(
    t: &ConfigSection<'_>,
    name: &str,
    path: &Path,
    read: impl FnOnce(&Path) -> Result<T, String>,
) -> Option<T> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let content = read(path);
    content
        .map_err(|what| t.error(name, format!("{}: {what}", path.display()), Some(BESIDE)))
        .ok()
}

/// Reports a certificate and a key that cannot be used, or do not belong together.
pub(super) fn check_pair(t: &ConfigSection<'_>, cert: &Path, key: &Path) {
    let chain = usable(t, "cert", cert, certificates);
    let secret = usable(t, "key", key, private_key);
    if let (Some(chain), Some(secret)) = (chain, secret)
        && let Err(what) = fit(chain, secret)
    {
        let hint = "the first certificate of `cert` has to be that of `key`; those of its authorities come behind it";
        t.error("", what, Some(hint));
    }
}

/// Reads the certificates of a PEM file; at least one.
///
/// # Errors
/// Why the file cannot be used.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
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
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| not_pem(error, "a private key"))
}

/// Whether a server can use this chain with this key.
///
/// # Errors
/// Why it cannot.
fn fit(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<(), String> {
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

/// Whether a file holds a JWK set with a key for signatures of tokens.
///
/// # Errors
/// Why it does not.
pub(super) fn key_set(path: &Path) -> Result<(), String> {
    #[derive(Deserialize)]
    struct KeySetDocument<'a> {
        #[serde(borrow)]
        keys: Vec<&'a RawValue>,
    }
    let text = std::fs::read(path).map_err(|error| unreadable(&error))?;
    match serde_json::from_slice::<KeySetDocument<'_>>(&text) {
        Ok(document) if document.keys.is_empty() => {
            Err("holds no key, so that every token would be refused".to_owned())
        }
        Ok(document) if !document.keys.iter().any(|key| may_verify(key.get())) => {
            let what = "holds no public key that verifies signatures (RSA, P-256, P-384 or Ed25519), so that every token \
                        would be refused";
            Err(what.to_owned())
        }
        Ok(_) => Ok(()),
        Err(_) => Err("is no JWK set, such as {\"keys\": […]}".to_owned()),
    }
}

/// Whether an element of a JWK set is a public key that may verify signatures. `auth` looks closer at the start.
fn may_verify(json: &str) -> bool {
    serde_json::from_str::<Jwk>(json).is_ok_and(|key| {
        let is_secret = matches!(key.algorithm, AlgorithmParameters::OctetKey(_));
        let usage = key.common.public_key_use.as_ref();
        let is_for_signatures = usage.is_none_or(|usage| *usage == PublicKeyUse::Signature);
        !is_secret && is_for_signatures && DecodingKey::from_jwk(&key).is_ok()
    })
}

/// Whether `pem` is a private key that signs assertions of a client.
pub(super) fn is_signing_key(pem: &Secret) -> bool {
    let pem = pem.expose().as_bytes();
    let signs = |key: &EncodingKey, algorithm| {
        jsonwebtoken::encode(&Header::new(algorithm), &BTreeMap::<&str, &str>::new(), key).is_ok()
    };
    if EncodingKey::from_rsa_pem(pem).is_ok() {
        return true;
    }
    if let Ok(key) = EncodingKey::from_ec_pem(pem) {
        return signs(&key, Algorithm::ES256) || signs(&key, Algorithm::ES384);
    }
    EncodingKey::from_ed_pem(pem).is_ok_and(|key| signs(&key, Algorithm::EdDSA))
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

    /// A public key of RFC 7515, A.3.
    const PUBLIC: &str = r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;

    /// Validates a file with these lines, in a folder with `cert.pem`, `key.pem`, `other.pem`, `sec1.pem`, `keys.json`,
    /// `no-keys.json`, `useless.json` (a part of a key, a symmetric one, one for encryption), `empty.json` and the folder
    /// `folder`; returns the errors.
    fn errors(lines: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let made = || generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        for (name, text) in [
            ("cert.pem", one.cert.pem()),
            ("key.pem", one.signing_key.serialize_pem()),
            ("other.pem", other.signing_key.serialize_pem()),
            // `openssl ecparam -genkey` writes keys with this first line.
            (
                "sec1.pem",
                one.signing_key
                    .serialize_pem()
                    .replace("PRIVATE KEY", "EC PRIVATE KEY"),
            ),
            (
                "keys.json",
                format!(r#"{{"keys":[{{"kty":"EC"}},{PUBLIC}]}}"#),
            ),
            (
                "useless.json",
                format!(
                    r#"{{"keys":[{{"kty":"EC"}},{{"kty":"oct","k":"c2VjcmV0"}},{}]}}"#,
                    PUBLIC.replacen('{', r#"{"use":"enc","#, 1)
                ),
            ),
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
    #[case("cert.pem", "other.pem", "the first certificate of `cert`")]
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
    #[case(
        "useless.json",
        "jwks_file: holds no public key that verifies signatures"
    )]
    #[case("empty.json", "jwks_file: is no JWK set")]
    #[case("cert.pem", "jwks_file: is no JWK set")]
    #[case("folder", "jwks_file: cannot be read: Is a directory")]
    fn a_key_file_that_verifies_no_token_is_refused(#[case] file: &str, #[case] said: &str) {
        let errors = errors(&format!(
            "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://i.test\"\n\
             jwks_file = \"{file}\"\n[upstreams.a]\ncommand = \"x\"\n"
        ));
        assert!(errors.contains(said), "{errors}");
        assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
    }

    #[rstest]
    #[case("key.pem", "")]
    #[case("cert.pem", "auth.private_key: is no private key in PKCS #8")]
    #[case("sec1.pem", "auth.private_key: is no private key in PKCS #8")]
    fn key_that_signs_no_assertion_is_refused(#[case] file: &str, #[case] said: &str) {
        let errors = errors(&format!(
            "[auth]\nmode = \"none\"\n[upstreams.a]\nurl = \"https://a.test/mcp\"\n[upstreams.a.auth]\n\
             kind = \"client_credentials\"\nclient_id = \"gw\"\nprivate_key = {{ file = \"{file}\" }}\n"
        ));
        assert!(errors.contains(said), "{errors}");
        assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
    }
}
