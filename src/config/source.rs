//! The text of a configuration file: line positions, values of `${NAME}`, and named files.
//!
//! The only reader of the environment.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::secret::Secret;

/// Looks up an environment variable.
pub type VariableSource<'e> = &'e dyn Fn(&str) -> Option<String>;

/// The largest secret file, in bytes.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// The variable that stands for the gateway's own program, unless the environment sets it.
pub const OWN_PROGRAM: &str = "DRAWBRIDGE_EXE";

/// The variables of this process, and [`OWN_PROGRAM`].
#[must_use]
pub fn process_environment(name: &str) -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the environment"
    )]
    let value = std::env::var(name).ok();
    if value.is_none() && name == OWN_PROGRAM {
        return Some(std::env::current_exe().ok()?.to_str()?.to_owned());
    }
    value
}

/// Why a variable has no text, by its value in the environment.
fn absence(value: Option<&OsStr>) -> &'static str {
    match value.map(OsStr::to_str) {
        Some(None) => "is not UTF-8 text",
        Some(Some(_)) | None => "is not set",
    }
}

/// Whether `text` has a variable; `$$` is no beginning of one.
pub(super) fn has_variable(text: &str) -> bool {
    text.replace("$$", "").contains("${")
}

/// How the placeholder of a secret begins.
const PLACEHOLDER: &str = "placeholder-for-the-variable-";

/// Ends of names of variables that hold a part of a URL, and no URL.
const PARTS: [&str; 8] = [
    "PASSWORD", "PASS", "SECRET", "KEY", "USER", "NAME", "HOST", "PORT",
];

/// Placeholder for an unset variable: long enough for a key, and a URL if the name ends in `URL` or `ENDPOINT`, that of
/// Redis if the name says so; that of a database if the name says so and names no part of a URL. A name that ends in `_PORT`
/// has a port of its own, most likely, and one that ends in `_IP` an address.
#[must_use]
pub fn placeholder(name: &str) -> String {
    if name == "PORT" || name.ends_with("_PORT") {
        let digest = name.bytes().fold(0_u16, |digest, byte| {
            digest.wrapping_mul(31).wrapping_add(u16::from(byte))
        });
        return (10_000 + digest % 50_000).to_string();
    }
    if name.ends_with("_IP") {
        // Spec: RFC 5737 §3
        return "192.0.2.1".to_owned();
    }
    let is_database = name.contains("DATABASE") || name.contains("POSTGRES");
    if is_database && !PARTS.iter().any(|part| name.ends_with(part)) {
        return "postgres://placeholder.example.com/placeholder".to_owned();
    }
    if name.ends_with("URL") || name.ends_with("ENDPOINT") {
        let is_redis = name.contains("REDIS");
        let scheme = if is_redis { "redis" } else { "https" };
        return format!("{scheme}://placeholder.example.com");
    }
    format!("{PLACEHOLDER}{name}")
}

/// Whether `secret` is the [`placeholder`] of a variable: its form says nothing.
pub(super) fn is_placeholder(secret: &Secret) -> bool {
    secret.expose().starts_with(PLACEHOLDER)
}

/// A file being read.
pub(super) struct ConfigSource<'s> {
    /// Path of the file, as the operator named it.
    pub(super) file: &'s str,
    text: &'s str,
    env: VariableSource<'s>,
}

impl<'s> ConfigSource<'s> {
    pub(super) fn new(file: &'s str, text: &'s str, env: VariableSource<'s>) -> Self {
        Self { file, text, env }
    }

    /// Line and column of a byte offset, both counted from 1.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count()
            + 1;
        (line, column)
    }

    /// Replaces `${NAME}` by the variable's value and `$$` by `$`.
    ///
    /// # Errors
    ///
    /// The name of the variable that is missing or not UTF-8, never the value of one.
    pub(super) fn expand<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, String> {
        let Some((start, mut rest)) = text.split_once('$') else {
            return Ok(Cow::Borrowed(text));
        };
        let mut out = start.to_owned();
        loop {
            if let Some(after) = rest.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let (name, after) = after.split_once('}').ok_or("`${` without a closing `}`")?;
                let value = (self.env)(name).ok_or_else(|| {
                    let why = absence(std::env::var_os(name).as_deref());
                    format!("environment variable {name} {why}")
                })?;
                out.push_str(&value);
                rest = after;
            } else {
                out.push('$');
            }
            let Some((plain, after)) = rest.split_once('$') else {
                break;
            };
            out.push_str(plain);
            rest = after;
        }
        out.push_str(rest);
        Ok(Cow::Owned(out))
    }

    /// Whether `text` has `$NAME` without braces, which is no variable here, and the environment has one of that name.
    /// A [`placeholder`] does not count: each name has one. Nor does `_`, which shells set for each program.
    pub(super) fn lacks_braces(&self, text: &str) -> bool {
        let without_escapes = text.replace("$$", "");
        without_escapes.split('$').skip(1).any(|after| {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = after.find(|c: char| !is_name(c)).unwrap_or(after.len());
            let name = after.get(..end).filter(|name| !matches!(*name, "" | "_"));
            name.is_some_and(|name| {
                (self.env)(name).is_some_and(|value| value != placeholder(name))
            })
        })
    }

    /// Resolves a path: relative ones start at the directory of the configuration file.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        Path::new(self.file)
            .parent()
            .unwrap_or(Path::new(""))
            .join(path)
    }

    /// The content of a secret's file, without surrounding white space; `text` as written in the configuration.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used. Shows neither the file's content nor the values of variables: an operator who
    /// writes the secret in place of the file name must not find it in a log.
    pub(super) fn secret_file(&self, text: &str) -> Result<Secret, String> {
        let name = self.expand(text)?;
        let path = self.path(&name);
        let shown = match name {
            Cow::Borrowed(_) => path.display().to_string(),
            Cow::Owned(_) => text.to_owned(),
        };
        let wrong = |what: &dyn std::fmt::Display| format!("{shown}: {what}");
        let length = std::fs::metadata(&path)
            .map_err(|error| wrong(&error))?
            .len();
        if length > MAX_SECRET_BYTES {
            return Err(wrong(&"too large for a secret (over 64 KiB)"));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
        match text.trim() {
            "" => Err(wrong(&"is empty")),
            text => Ok(Secret::new(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn env(name: &str) -> Option<String> {
        matches!(name, "WHO" | "_").then(|| "world".to_owned())
    }

    #[rstest]
    #[case("plain", "plain")]
    #[case("hello ${WHO}!", "hello world!")]
    #[case("${WHO}${WHO}", "worldworld")]
    #[case("$${WHO}", "${WHO}")]
    #[case("5$ or $HOME", "5$ or $HOME")]
    #[case("$$", "$")]
    #[case("ends with $", "ends with $")]
    fn variables_are_put_in_and_dollars_escaped(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(
            ConfigSource::new("a", "", &env).expand(text).unwrap(),
            wanted
        );
    }

    #[rstest]
    #[case("Bearer $WHO", true)]
    #[case("$$$WHO/x", true)]
    #[case("${WHO}", false)]
    #[case("$$WHO", false)]
    #[case("$WHOM", false)]
    #[case("5$ or $", false)]
    #[case("pa$_!", false)]
    fn variable_without_braces_is_found(#[case] text: &str, #[case] found: bool) {
        assert_eq!(ConfigSource::new("a", "", &env).lacks_braces(text), found);
        let assumed = |name: &str| Some(placeholder(name));
        assert!(!ConfigSource::new("a", "", &assumed).lacks_braces(text));
    }

    #[rstest]
    #[case("${NOBODY}", "NOBODY")]
    #[case("${WHO", "closing")]
    fn what_cannot_be_expanded_is_named(#[case] text: &str, #[case] said: &str) {
        assert!(
            ConfigSource::new("a", "", &env)
                .expand(text)
                .unwrap_err()
                .contains(said)
        );
    }

    #[test]
    fn variable_that_is_not_utf8_is_not_called_unset() {
        use std::os::unix::ffi::OsStrExt as _;
        assert_eq!(absence(None), "is not set");
        let latin_1 = OsStr::from_bytes(b"caf\xe9");
        assert_eq!(absence(Some(latin_1)), "is not UTF-8 text");
    }

    #[rstest]
    #[case("POD_IP", "192.0.2.1")]
    #[case("TRACKER_URL", "https://placeholder.example.com")]
    #[case("REDIS_URL", "redis://placeholder.example.com")]
    #[case("DATABASE_URL", "postgres://placeholder.example.com/placeholder")]
    #[case("DATABASE_PASSWORD", "placeholder-for-the-variable-DATABASE_PASSWORD")]
    fn placeholder_is_what_the_name_says(#[case] name: &str, #[case] wanted: &str) {
        assert_eq!(placeholder(name), wanted);
    }

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let source = ConfigSource::new("a", "ab\ncé = 1\n", &env);
        assert_eq!(source.place(0), (1, 1));
        assert_eq!(source.place("ab\ncé".len()), (2, 3));
        assert_eq!(source.place(1000), (3, 1));
    }

    #[test]
    fn relative_paths_start_at_the_file() {
        assert_eq!(
            ConfigSource::new("etc/g.toml", "", &env).path("k"),
            Path::new("etc/k")
        );
        assert_eq!(
            ConfigSource::new("g.toml", "", &env).path("/k"),
            Path::new("/k")
        );
    }
}
