//! Hints for a command line that cannot be read, where clap has none: how the configuration is named.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The variable that names the configuration of every command.
const VARIABLE: &str = "DRAWBRIDGE_CONFIG";

/// Adds to `refusal` of the command line `args` how the configuration is named, where it was named otherwise: as a plain
/// word, by `-c`, before the command, or by a variable without text.
pub(super) fn add_hint(refusal: &mut clap::Error, args: &[OsString]) {
    let is_named = args.iter().any(|arg| {
        let arg = arg.as_encoded_bytes();
        arg == b"--config" || arg.starts_with(b"--config=")
    });
    let hint: String = match refusal.kind() {
        ErrorKind::UnknownArgument => match text(refusal, ContextKind::InvalidArg) {
            "--config" => {
                "'--config' goes after the command, as in 'drawbridge check --config FILE'".into()
            }
            _ if is_named => return,
            "-c" => "the configuration is named by '--config FILE'".into(),
            file if is_toml(file) => format!("to name the configuration, use '--config {file}'"),
            _ => return,
        },
        ErrorKind::InvalidSubcommand => match text(refusal, ContextKind::InvalidSubcommand) {
            file if is_toml(file) => {
                format!("to run the gateway with a file, use 'serve --config {file}'")
            }
            _ => return,
        },
        // clap names the option also where the variable has been read.
        ErrorKind::InvalidValue
            if !is_named
                && text(refusal, ContextKind::InvalidValue).is_empty()
                && text(refusal, ContextKind::InvalidArg).starts_with("--config ") =>
        {
            refusal.insert(
                ContextKind::InvalidArg,
                ContextValue::String(VARIABLE.to_owned()),
            );
            "the variable is set to an empty text: set it to the path of the file, or unset it"
                .into()
        }
        _ => return,
    };
    refusal.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![StyledStr::from(hint)]),
    );
}

/// Whether a word can be meant as the configuration: `alice` in `vault list alice` is not.
fn is_toml(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|end| end == "toml")
}

/// What clap says of `kind`; empty where it says nothing.
fn text(refusal: &clap::Error, kind: ContextKind) -> &str {
    match refusal.get(kind) {
        Some(ContextValue::String(text)) => text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn refused(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut refusal = Cli::try_parse_from(&args).expect_err("a refusal");
        add_hint(&mut refusal, &args);
        refusal.to_string()
    }

    #[test]
    fn plain_file_name_is_told_its_option() {
        for command in ["check", "serve", "status", "vault list", "check --strict"] {
            let said = refused(&format!("drawbridge {command} a/gateway.toml"));
            let tip = "tip: to name the configuration, use '--config a/gateway.toml'";
            assert!(said.contains(tip), "{command}: {said}");
        }
        let said = refused("drawbridge a/gateway.toml");
        assert!(
            said.contains("use 'serve --config a/gateway.toml'"),
            "{said}"
        );
    }

    #[test]
    fn misplaced_or_short_option_is_told_its_place() {
        let said = refused("drawbridge check -c gateway.toml");
        assert!(said.contains("is named by '--config FILE'"), "{said}");
        let said = refused("drawbridge --config gateway.toml");
        assert!(said.contains("'drawbridge check --config FILE'"), "{said}");
    }

    #[test]
    fn other_mistakes_get_no_hint_of_ours() {
        for line in [
            "drawbridge check --config a.toml b.toml",
            "drawbridge check --config=a.toml b.toml",
            "drawbridge check --config",
            "drawbridge check --frobnicate",
            "drawbridge frobnicate",
            "drawbridge vault list alice",
        ] {
            let said = refused(line);
            assert!(!said.contains("tip: "), "{line}: {said}");
        }
    }
}
