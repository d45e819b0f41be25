//! The command line: what the program can be asked to do, and its exit codes.

mod ask;
mod check;
pub mod demo;
mod hints;
mod machine;
mod out;
mod status;
mod vault;

use std::ffi::OsString;
use std::io::{BufReader, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};

use crate::app::durable::DurableError;
use crate::clock::SystemClock;
use crate::config::{self, Config, ConfigErrors, ConfigProblem, LogLevels};
use crate::process;
use crate::telemetry::chain::chain;

/// The exit code for a configuration that cannot be used (`EX_CONFIG` of sysexits).
const BAD_CONFIG: u8 = 78;

/// The configuration of `serve` without a file.
const QUICKSTART: &str = include_str!("../../config/quickstart.toml");

/// A remote MCP gateway: one URL in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "drawbridge", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the gateway until SIGTERM or SIGINT; without a file, the built-in demonstration.
    ///
    /// The first of these signals lets running calls finish; another one, a second later or more, stops at once. SIGHUP
    /// does nothing: the configuration is read at the start only.
    ///
    /// Exit code 0: it was told to stop and has stopped. 1: it cannot run, its last words say why. 2: wrong options. 78:
    /// the configuration or the schema of the database cannot be used, and a restart changes nothing.
    Serve {
        /// The configuration.
        #[arg(long, env = "DRAWBRIDGE_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Reports every mistake in a configuration, or what it amounts to. Opens no port.
    ///
    /// Exit code 0: it can be used, and with `--online` all is well. 1: with `--online` an issuer, an upstream, its
    /// account, a login, Redis or a database fails, or with `--strict` there is a warning. 2: wrong options. 78: the
    /// configuration cannot be used.
    Check {
        /// The configuration.
        #[arg(
            long,
            env = "DRAWBRIDGE_CONFIG",
            value_name = "FILE",
            required_unless_present = "reference"
        )]
        config: Option<PathBuf>,
        /// Prints every key with its meaning, type and default instead.
        #[arg(long)]
        reference: bool,
        #[command(flatten)]
        how: check::CheckOptions,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Asks a running gateway what runs: upstreams, issuers, and why they fail.
    ///
    /// Exit code 0: all is well. 1: an upstream is degraded or down, an issuer has a fault, a replica is fenced, has no
    /// lease or no Redis, or there is no answer. 2: wrong options. 78: the configuration cannot be used.
    Status {
        #[command(flatten)]
        target: ask::AdminAddress,
        #[command(flatten)]
        form: status::StatusFormat,
    },
    /// Asks a running gateway whether it takes new work, for health checks of containers.
    ///
    /// Exit code 0: it does. 1: it does not (yet, or no longer), does not answer within 5 s, or cannot be asked. 2: wrong
    /// options.
    Health {
        #[command(flatten)]
        target: ask::AdminAddress,
    },
    /// Brings the schema of the database up to date: `PostgreSQL` before a new version starts; `SQLite` does it by itself.
    ///
    /// Exit code 0: it is up to date. 1: the database fails. 78: the configuration cannot be used, or a newer program has
    /// made the schema unusable for this one.
    Migrate {
        #[command(flatten)]
        file: vault::ConfigFile,
    },
    /// Accounts of callers at upstreams, as the database has them.
    #[command(subcommand)]
    Vault(vault::VaultCommand),
    /// Is a small MCP server on stdin and stdout.
    #[command(hide = true)]
    DemoUpstream,
}

/// What is logged, said outside the configuration.
#[derive(Debug, clap::Args)]
struct LogOptions {
    /// Goes before `telemetry.log_level`: `info`, or `info,drawbridge::upstream=debug`.
    #[arg(long = "log-level", env = "DRAWBRIDGE_LOG", value_name = "LEVELS")]
    levels: Option<String>,
}

impl LogOptions {
    /// The levels; empty text counts as missing.
    fn given(&self) -> Option<&str> {
        self.levels.as_deref().filter(|levels| !levels.is_empty())
    }
}

/// Does what `args` ask for; the first of them is the program.
///
/// Must be called before any other thread exists: two of the hidden commands turn this process
/// into something else.
#[must_use]
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    // Not for clap: their arguments are the gateway's own, and they start many times a second.
    match args.get(1).and_then(|command| command.to_str()) {
        Some(process::EXEC_CHILD) => return process::exec_child(args.into_iter().skip(2)),
        Some(process::GUARDIAN) => return process::guardian(args.into_iter().skip(2)),
        _ => {}
    }
    let code = match Cli::try_parse_from(&args) {
        Ok(cli) => match cli.command {
            // The environment may name a file all the same.
            Command::Check {
                config: Some(file),
                reference: false,
                how,
                log,
            } => check::check(&file, how, &log),
            Command::Check { .. } => {
                out::say(config::reference().trim_end());
                ExitCode::SUCCESS
            }
            Command::Serve { config, log } => serve(config.as_deref(), &log),
            Command::Status { target, form } => status::status(&target, form),
            Command::Health { target } => status::health(&target),
            Command::Migrate { file } => vault::migrate(&file),
            Command::Vault(command) => vault::vault(&command),
            Command::DemoUpstream => demo_upstream(),
        },
        Err(mut refusal) => {
            hints::add_hint(&mut refusal, &args);
            out::note(refusal.print());
            ExitCode::from(u8::try_from(refusal.exit_code()).unwrap_or(2))
        }
    };
    out::exit_code(code)
}

fn serve(file: Option<&Path>, log: &LogOptions) -> ExitCode {
    let config = match load(file, log) {
        Ok(config) => config,
        Err(refusal) => {
            let name = file.map_or("quickstart.toml".into(), Path::to_string_lossy);
            return refuse(&name, &refusal);
        }
    };
    warn(&config.warnings);
    let name = file.map(Path::to_string_lossy);
    match crate::app::run(config, name.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let durable = error.downcast_ref::<DurableError>();
            fail(
                &chain(error.as_ref()),
                durable.and_then(DurableError::remedy),
            );
            if durable.is_some_and(DurableError::is_configuration) {
                return ExitCode::from(BAD_CONFIG);
            }
            ExitCode::FAILURE
        }
    }
}

fn demo_upstream() -> ExitCode {
    match demo::serve(BufReader::new(stdin()), stdout(), Arc::new(SystemClock)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The configuration of a run: a file's, or the built-in demonstration's.
fn load(file: Option<&Path>, log: &LogOptions) -> Result<Config, ConfigErrors> {
    let config = match file {
        Some(file) => config::load(file),
        None => config::parse(QUICKSTART, "quickstart.toml", &config::process_environment),
    };
    with_levels(config, log)
}

/// The configuration with the levels of log lines that were said outside it.
fn with_levels(
    mut config: Result<Config, ConfigErrors>,
    log: &LogOptions,
) -> Result<Config, ConfigErrors> {
    let levels = log.given().map(str::parse::<LogLevels>).transpose();
    match (&mut config, levels) {
        (Ok(config), Ok(Some(levels))) => config.telemetry.log_level = levels,
        (_, Ok(_)) => {}
        (Ok(config), Err(what)) => {
            return Err(ConfigErrors {
                errors: vec![wrong_levels(what)],
                warnings: std::mem::take(&mut config.warnings),
            });
        }
        (Err(refusal), Err(what)) => refusal.errors.push(wrong_levels(what)),
    }
    config
}

/// A mistake that stands in no file.
fn wrong_levels(what: String) -> ConfigProblem {
    ConfigProblem {
        file: "command line or environment".to_owned(),
        line: 1,
        column: 1,
        key: "--log-level, DRAWBRIDGE_LOG".to_owned(),
        what,
        hint: None,
    }
}

fn warn(warnings: &[ConfigProblem]) {
    for warning in warnings {
        out::complain(&format!("warning: {warning}"));
    }
}

/// Prints why a command fails, and what to do about it.
fn fail(error: &str, remedy: Option<&str>) {
    out::complain(&format!("error: {error}"));
    if let Some(remedy) = remedy {
        out::complain(&format!("    {remedy}"));
    }
}

/// Prints every mistake.
fn refuse(file: &str, refusal: &ConfigErrors) -> ExitCode {
    warn(&refusal.warnings);
    for error in &refusal.errors {
        out::complain(&format!("error: {error}"));
    }
    let count = refusal.errors.len();
    let mistakes = if count == 1 { "mistake" } else { "mistakes" };
    out::complain(&format!("{file}: {count} {mistakes}; nothing was started"));
    ExitCode::from(BAD_CONFIG)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_built_in_configuration_is_right() {
        let log = LogOptions { levels: None };
        let config = load(None, &log).expect("a valid quickstart");
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        assert!(config.server.listen.ip().is_loopback());
    }

    #[test]
    fn levels_of_the_environment_go_before_those_of_the_file() {
        let load = |levels: &str| {
            let levels = Some(levels.to_owned());
            load(None, &LogOptions { levels }).map(|config| config.telemetry.log_level.to_string())
        };
        assert_eq!(load("debug").as_deref(), Ok("debug"));
        assert_eq!(load("").as_deref(), Ok("info"));
        let refusal = load("loud").unwrap_err().to_string();
        assert!(
            refusal.contains("DRAWBRIDGE_LOG: expected levels"),
            "{refusal}"
        );
    }

    #[test]
    fn check_needs_a_file_or_the_wish_for_the_reference() {
        assert!(Cli::try_parse_from(["drawbridge", "check", "--reference"]).is_ok());
        assert!(Cli::try_parse_from(["drawbridge", "check", "--config", "x"]).is_ok());
        // As with DRAWBRIDGE_CONFIG in the environment.
        let both = ["drawbridge", "check", "--config", "x", "--reference"];
        assert!(Cli::try_parse_from(both).is_ok());
    }
}
