//! One key while it is read: one call gives its type and its default.
//!
//! A wrong value is reported and replaced by the default, so that reading continues and finds all errors.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeInteger, DeValue};
use url::Url;

use super::declarations::ShownKey;
use super::log_levels::LogLevels;
use super::nearest::unknown_word;
use super::report::ReadReport;
use super::report::found;
use super::source::has_variable;
use super::types::RateConfig;
use super::units;
use super::words::ConfigWord;
use crate::secret::Secret;

/// The largest number accepted in the file; larger ones are typing errors, and exceed some counters.
const MOST: usize = 100_000_000;

/// A declared key and its value in the file.
pub(super) struct DeclaredKey<'r> {
    pub(super) report: &'r ReadReport<'r>,
    pub(super) path: String,
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
    pub(super) value: Option<&'r Spanned<DeValue<'r>>>,
    pub(super) chapter: usize,
    pub(super) chosen: bool,
}

impl DeclaredKey<'_> {
    /// Shows the example in the reference uncommented, as if it were set.
    pub(super) fn chosen(mut self) -> Self {
        self.chosen = true;
        self
    }

    /// A duration above zero.
    pub(super) fn duration(self, default: &str) -> Duration {
        self.coded(default, "duration", units::duration)
            .unwrap_or_default()
    }

    /// A duration; zero means at once.
    pub(super) fn duration_or_zero(self, default: &str) -> Duration {
        self.coded(default, "duration, may be zero", units::duration_or_zero)
            .unwrap_or_default()
    }

    /// A size in bytes.
    pub(super) fn size(self, default: &str) -> usize {
        self.coded(default, "size", units::size).unwrap_or_default()
    }

    /// A rate.
    pub(super) fn rate(self, default: &str) -> RateConfig {
        let none = RateConfig {
            count: 1,
            per: Duration::from_secs(1),
        };
        self.coded(default, "rate", units::rate).unwrap_or(none)
    }

    /// An address to listen on.
    pub(super) fn address(self, default: &str) -> SocketAddr {
        let none = SocketAddr::from(([127, 0, 0, 1], 0));
        self.coded(default, "address and port", units::address)
            .unwrap_or(none)
    }

    /// Levels of log lines.
    pub(super) fn log_levels(self, default: &str) -> LogLevels {
        self.coded(default, "levels", str::parse)
            .unwrap_or_default()
    }

    /// Plain text.
    pub(super) fn text(self, default: &str) -> String {
        self.coded(default, "text", |text| Ok(text.to_owned()))
            .unwrap_or_default()
    }

    /// Required text, not empty.
    pub(super) fn required(self, example: &str) -> String {
        self.document("text, required", ShownKey::Example(quote(example)));
        if self.value.is_none() {
            self.error(
                "is required",
                Some(&format!("for example {} = {}", self.name, quote(example))),
            );
        }
        let present = |text: &str| match text {
            "" => Err("is empty".to_owned()),
            text => Ok(text.to_owned()),
        };
        self.parsed("text", present).unwrap_or_default()
    }

    /// Optional text; empty text counts as missing.
    pub(super) fn optional(self, example: &str) -> Option<String> {
        self.document("text, no default", self.example(example));
        self.parsed("text", |text| Ok(text.to_owned()))
            .filter(|text| !text.is_empty())
    }

    /// An optional URL; empty text counts as missing.
    pub(super) fn url(self, example: &str) -> Option<Url> {
        self.url_of(example, units::web_url)
    }

    /// An optional URL of an upstream, http or WebSocket; empty text counts as missing.
    pub(super) fn endpoint_url(self, example: &str) -> Option<Url> {
        self.url_of(example, units::endpoint_url)
    }

    fn url_of(self, example: &str, parse: fn(&str) -> Result<Url, String>) -> Option<Url> {
        self.document("URL, no default", self.example(example));
        let present = |text: &str| match text {
            "" => Ok(None),
            text => parse(text).map(Some),
        };
        self.parsed("a URL", present).flatten()
    }

    /// An optional file or directory; empty text counts as missing.
    pub(super) fn path(self, example: &str) -> Option<PathBuf> {
        self.document("path, no default", self.example(example));
        let report = self.report;
        self.parsed("a path", |text| Ok(text.to_owned()))
            .filter(|text| !text.is_empty())
            .map(|text| report.source.path(&text))
    }

    /// One of the words of `T`.
    pub(super) fn choice<T: ConfigWord>(self, default: T) -> T {
        self.coded(default.word(), &known::<T>().join(" | "), pick)
            .unwrap_or(default)
    }

    /// One of the words of `T`, without a default: the caller reports a missing value.
    pub(super) fn required_choice<T: ConfigWord>(self, example: T) -> Option<T> {
        let kind = known::<T>().join(" | ");
        let shown = ShownKey::Example(quote(example.word()));
        self.document(&format!("{kind}, required"), shown);
        self.parsed(&kind, pick)
    }

    /// A whole number from 1 to [`MOST`].
    pub(super) fn count(self, default: usize) -> usize {
        self.count_to(default, MOST)
    }

    /// A whole number from 1 to `most`.
    pub(super) fn count_to(self, default: usize, most: usize) -> usize {
        self.document("count", ShownKey::Default(default.to_string()));
        self.counted(most).unwrap_or(default)
    }

    /// An optional whole number from 1 to `most`.
    pub(super) fn optional_count_to(self, example: usize, most: usize) -> Option<usize> {
        self.document("count, no default", ShownKey::Unset(example.to_string()));
        self.counted(most)
    }

    fn counted(&self, most: usize) -> Option<usize> {
        let value = self.value?;
        match value.get_ref().as_integer().map(number) {
            Some(Some(number)) if (1..=most).contains(&number) => return Some(number),
            Some(_) => self.error(format!("must be a whole number from 1 to {most}"), None),
            None => self.error(
                format!("expected a whole number, found {}", found(value)),
                Some("written without quotes, dots and units"),
            ),
        }
        None
    }

    /// `true` or `false`.
    pub(super) fn flag(self, default: bool) -> bool {
        self.document("true | false", ShownKey::Default(default.to_string()));
        let Some(value) = self.value else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.error(
                format!("expected true or false, found {}", found(value)),
                Some("written without quotes"),
            );
            default
        })
    }

    /// A number from 0 to 1.
    pub(super) fn share(self, default: f64) -> f64 {
        self.document("share from 0 to 1", ShownKey::Default(default.to_string()));
        let Some(value) = self.value else {
            return default;
        };
        let number: Option<f64> = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => None,
        };
        number
            .filter(|number| (0.0..=1.0).contains(number))
            .unwrap_or_else(|| {
                let hint = Some("0.01 is one of a hundred");
                self.error("expected a number from 0 to 1", hint);
                default
            })
    }

    /// Whether the value is a text with a variable.
    pub(super) fn has_variable(&self) -> bool {
        let text = self.value.and_then(|value| value.get_ref().as_str());
        text.is_some_and(has_variable)
    }

    /// An optional secret, as text or as `{ file = "…" }`.
    pub(super) fn optional_secret(self, example: &str) -> Option<Secret> {
        self.document("secret", ShownKey::Unset(example.to_owned()));
        self.secret()
    }

    /// A secret, as text or as `{ file = "…" }`, without line breaks at its end: variables that were made with `echo`, or
    /// from a file, have one.
    pub(super) fn secret(self) -> Option<Secret> {
        let secret = self.key_material()?;
        Some(Secret::new(secret.expose().trim_end_matches(['\r', '\n'])))
    }

    /// As [`secret`](Self::secret), but with a line break at the end: without it the key would be another one, and what was
    /// sealed before could not be opened.
    pub(super) fn key_material(self) -> Option<Secret> {
        read_secret(self.report, &self.path, self.value?)
    }

    /// The content of the file that the value names.
    pub(super) fn secret_file(self) -> Option<Secret> {
        let value = self.value?;
        let read = match value.get_ref().as_str() {
            Some(file) => self.report.source.secret_file(file),
            None => Err(format!("expected text in quotes, found {}", found(value))),
        };
        read.map_err(|what| self.error(what, Some(BESIDE))).ok()
    }

    fn coded<T>(
        self,
        default: &str,
        kind: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.document(kind, ShownKey::Default(quote(default)));
        self.parsed(kind, &parse).or_else(|| parse(default).ok())
    }

    /// The parsed value, if it is present and valid.
    fn parsed<T>(self, kind: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        read_text(self.report, &self.path, self.value?, kind, parse)
    }

    fn example(&self, example: &str) -> ShownKey {
        let literal = quote(example);
        if self.chosen {
            ShownKey::Example(literal)
        } else {
            ShownKey::Unset(literal)
        }
    }

    pub(super) fn document(&self, kind: &str, shown: ShownKey) {
        if let Some(reference) = &self.report.reference {
            reference
                .borrow_mut()
                .add(self.chapter, self.name, self.doc, kind, shown);
        }
    }

    pub(super) fn error(&self, what: impl Into<String>, hint: Option<&str>) {
        self.report.error(&self.path, what, hint);
    }
}

fn known<T: ConfigWord>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

/// What the word `text` stands for.
fn pick<T: ConfigWord>(text: &str) -> Result<T, String> {
    let fit = T::WORDS.iter().find(|(word, _)| *word == text);
    fit.map(|(_, value)| *value)
        .ok_or_else(|| unknown_word(&known::<T>(), text))
}

/// Hint for an undefined variable, or for a literal `$`.
const VARIABLES: &str = "`${NAME}` is a variable of the environment that drawbridge is started with; \
    `$$` stands for a plain `$`";

/// The text with its variables expanded, parsed by `parse`.
pub(super) fn read_text<T>(
    report: &ReadReport<'_>,
    path: &str,
    value: &Spanned<DeValue<'_>>,
    kind: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let Some(raw) = value.get_ref().as_str() else {
        let hint = match kind {
            "address and port" => Some("as in \"127.0.0.1:8080\""),
            "size" => Some("with its unit, as in \"4MiB\""),
            "rate" => Some("a number per s, m or h, as in \"100/s\""),
            kind if kind.starts_with("duration") => {
                Some("with its unit, as in \"10s\", \"5m\" or \"250ms\"")
            }
            _ => None,
        };
        let kind = kind.trim_end_matches(", may be zero");
        report.error(
            path,
            format!("expected {kind} in quotes, found {}", found(value)),
            hint,
        );
        return None;
    };
    let text = match report.source.expand(raw) {
        Ok(text) => text,
        Err(what) => {
            report.error(path, what, Some(VARIABLES));
            return None;
        }
    };
    match parse(&text) {
        Ok(value) => Some(value),
        Err(mut what) => {
            // Quotes the text of the file, not the values of its variables; and no URL that may hold credentials or a query.
            if !raw.contains(['@', '?']) {
                what = format!("{}: {what}", quote(raw));
            }
            let hint = has_variable(raw).then_some("look at the variable's value");
            report.error(path, what, hint);
            None
        }
    }
}

/// A secret; no message shows its content.
pub(super) fn read_secret(
    report: &ReadReport<'_>,
    path: &str,
    value: &Spanned<DeValue<'_>>,
) -> Option<Secret> {
    let read = match value.get_ref() {
        DeValue::String(text) => match report.source.expand(text) {
            Ok(secret) => {
                if report.source.lacks_braces(text) {
                    let what = "has the name of a variable behind a `$` without braces, which stays as it is written";
                    report.warning(path, what, Some(VARIABLES));
                }
                Ok(Secret::new(secret))
            }
            Err(what) => {
                report.error(path, what, Some(VARIABLES));
                return None;
            }
        },
        DeValue::Table(table) => match (table.get("file").map(Spanned::get_ref), table.len()) {
            (Some(DeValue::String(file)), 1) => report.source.secret_file(file),
            _ => Err("expected text or { file = \"…\" }".to_owned()),
        },
        _ => Err(format!(
            "expected text or {{ file = \"…\" }}, found {}",
            found(value)
        )),
    };
    read.map_err(|what| report.error(path, what, Some(SECRET)))
        .ok()
}

/// Hint for a missing file.
pub(super) const BESIDE: &str = "a relative path begins at the directory of this file";
/// Hint for a secret in an unsupported form.
const SECRET: &str = "text with a variable, as in \"${NAME}\", or a file, whose relative path begins at the \
    directory of this one";

pub(super) fn number(integer: &DeInteger<'_>) -> Option<usize> {
    usize::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// A TOML string literal.
pub(super) fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
