//! `[database]` and `[connect]`.

use std::time::Duration;

use url::Url;

use super::database_types::{ConnectConfig, DatabaseConfig, DatabaseUrl};
use super::logins;
use super::reader::{ConfigSection, read_keys};
use super::report::ReadReport;
use super::types::Config;
use crate::secret::Secret;

/// The shortest `connect.forget`.
const SHORTEST_FORGET: Duration = Duration::from_hours(1);

/// Reads `[database]`.
pub(super) fn read(s: &mut ConfigSection<'_>) -> DatabaseConfig {
    read_keys!(s => let {
        /// "sqlite:<path>", a file that is made and migrated where needed, or "postgres://user:password@host/name",
        /// which `drawbridge migrate` prepares; also { file = "…" } with that text. Default: drawbridge.db in the state
        /// directory. A relative path begins at the directory of this file.
        url: optional_secret("\"sqlite:drawbridge.db\""),
    });
    let url = match url {
        Some(url) => parse(s, &url),
        None => DatabaseUrl::Default,
    };
    DatabaseConfig { url }
}

/// Messages must not quote the URL, which may hold a password.
fn parse(s: &ConfigSection<'_>, url: &Secret) -> DatabaseUrl {
    let text = url.expose();
    if let Some(path) = text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains(['?', '#']) || path.contains(":memory:") {
            let hint = Some("for example \"sqlite:/var/lib/drawbridge/drawbridge.db\"");
            s.error("url", "names no file", hint);
        }
        return DatabaseUrl::Sqlite(s.report.source.path(path));
    }
    let is_postgres = text.starts_with("postgres://") || text.starts_with("postgresql://");
    // `user:12/34@host` reads as the host `user` and its port 12.
    let is_misread = |url: Url| url[url::Position::BeforePath..].contains('@');
    if !is_postgres || Url::parse(text).map_or(true, is_misread) {
        let hint = Some(if is_postgres {
            "\"postgres://user:password@host/name\"; in a password `/`, `?` and `#` are written %2F, %3F and %23"
        } else {
            "\"sqlite:<path>\" or \"postgres://user:password@host/name\""
        });
        s.error("url", "is no URL of a database", hint);
    }
    DatabaseUrl::Postgres(url.clone())
}

/// Reads `[connect]`.
pub(super) fn connect(s: &mut ConfigSection<'_>) -> ConnectConfig {
    let config = read_keys!(s => ConnectConfig {
        logins: logins::read(s),
        /// How long a call waits for its user to connect an account, before it ends with the link.
        wait: duration("45s"),
        /// Accounts unused for this long are revoked and removed: 1h or more.
        forget: duration("180d"),
    });
    // Shorter times make no sense: last-used stamps are written with a delay.
    if config.forget < SHORTEST_FORGET && !s.report.is_wrong("connect.forget") {
        let hint = Some("for example \"180d\"");
        s.error("forget", "must be 1h or more", hint);
    }
    config
}

/// Reports a shared database whose vault key would be in one gateway's state directory.
pub(super) fn check(config: &Config, report: &ReadReport<'_>) {
    let is_shared = matches!(config.database.url, DatabaseUrl::Postgres(_));
    let is_said = !report.is_wrong("database.url") && !report.has("keys.vault[0]");
    if is_shared && is_said && config.keys.vault.is_empty() {
        let hint = "for example vault = [{ id = \"k1\", file = \"vault.key\" }], the same for every gateway";
        report.error("keys.vault", "is required with PostgreSQL", Some(hint));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use std::path::PathBuf;

    use super::*;
    use crate::config::{ConfigErrors, parse as parse_config};

    const REST: &str = "[auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"x\"\n";

    fn parsed(lines: &str) -> Result<Config, ConfigErrors> {
        let text = format!("{REST}{lines}");
        let env = |name: &str| (name == "KEY").then(|| "k".repeat(32));
        parse_config(&text, "/etc/drawbridge/gateway.toml", &env)
    }

    #[test]
    fn database_is_in_the_state_directory_by_default() {
        let config = parsed("").unwrap();
        assert!(matches!(config.database.url, DatabaseUrl::Default));
        assert_eq!(config.connect.forget, Duration::from_hours(180 * 24));
    }

    #[rstest]
    #[case("sqlite:a.db", "/etc/drawbridge/a.db")]
    #[case("sqlite:/var/lib/a.db", "/var/lib/a.db")]
    #[case("sqlite:///var/lib/a.db", "/var/lib/a.db")]
    fn sqlite_url_names_a_file(#[case] url: &str, #[case] file: &str) {
        let config = parsed(&format!("[database]\nurl = \"{url}\"\n")).unwrap();
        let DatabaseUrl::Sqlite(path) = config.database.url else {
            panic!("a file");
        };
        assert_eq!(path, PathBuf::from(file));
    }

    #[rstest]
    #[case("mysql://user:hunter2@host/a")]
    #[case("postgres//user:hunter2@host/a")]
    #[case("sqlite:")]
    #[case("sqlite::memory:")]
    fn other_urls_are_refused_unquoted(#[case] url: &str) {
        let refused = parsed(&format!("[database]\nurl = \"{url}\"\n")).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("database.url"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn password_that_is_not_escaped_is_explained() {
        for password in ["hunter2/b", "2/hunter2", "2?hunter2", "2#hunter2"] {
            let server = format!("[database]\nurl = \"postgres://user:{password}@host/a\"\n");
            let text = parsed(&server).unwrap_err().to_string();
            assert!(text.contains("%2F") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn accounts_in_use_are_not_forgotten() {
        let text = parsed("[connect]\nforget = \"59m\"\n")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("connect.forget: must be 1h or more"),
            "{text}"
        );
        assert!(parsed("[connect]\nforget = \"1h\"\n").is_ok());
    }

    #[test]
    fn postgres_needs_a_vault_key() {
        let server = "[database]\nurl = \"postgres://user:hunter2@host/a\"\n";
        let text = parsed(server).unwrap_err().to_string();
        assert!(
            text.contains("keys.vault: is required with PostgreSQL"),
            "{text}"
        );
        let keys = "[keys]\nvault = [{ id = \"k1\", key = \"${KEY}\" }]\n";
        let config = parsed(&format!("{server}{keys}")).unwrap();
        assert_eq!(config.keys.vault.len(), 1);
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    // As `check --assume-env` reads the example of docs/operations/backups.md.
    #[test]
    fn password_in_the_url_of_a_database_may_be_an_assumed_variable() {
        let text = format!(
            "{REST}[database]\nurl = \"postgres://gate:${{DATABASE_PASSWORD}}@host/a\"\n\
             [keys]\nvault = [{{ id = \"k1\", key = \"${{VAULT_KEY}}\" }}]\n"
        );
        let assumed = |name: &str| Some(crate::config::placeholder(name));
        let parsed = parse_config(&text, "gateway.toml", &assumed);
        assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
    }
}
