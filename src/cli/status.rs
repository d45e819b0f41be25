//! `drawbridge status` and `drawbridge health`: what a running gateway says of itself.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::ask::{AdminAddress, AdminClient, AdminRequestError, AdminResponse};
use super::{BAD_CONFIG, out};
use crate::status::GatewayStatus;

/// Between two looks of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// For all of `health`: less than the timeout of `HEALTHCHECK` in the Dockerfile, so that the reason is printed before
/// the container engine kills the program.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Has a terminal show what follows on an empty screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

// How `status` prints. No doc comment: it would stand in for that of the command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct StatusFormat {
    /// Prints again every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what runs. Fails unless [`GatewayStatus::is_well`], and when there is no answer.
pub(super) fn status(target: &AdminAddress, form: StatusFormat) -> ExitCode {
    let client = match target.client() {
        Ok(client) => client,
        Err(error) => return unusable(&error),
    };
    if !form.watch {
        return match look(&client, form.json) {
            Ok((text, is_well)) => {
                out::say(text.trim_end());
                if is_well {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                }
            }
            Err(error) => {
                out::complain(&format!("error: {error}"));
                ExitCode::FAILURE
            }
        };
    }
    let mut screen = std::io::stdout();
    let is_terminal = screen.is_terminal();
    let clear = if is_terminal { CLEAR } else { "" };
    loop {
        let text = match look(&client, form.json) {
            Ok((text, _)) => text,
            Err(error) if form.json && !is_terminal => {
                // A program that reads JSON would fail at it.
                out::complain(&format!("error: {error}"));
                String::new()
            }
            Err(error) => format!("error: {error}\n"),
        };
        let written = write!(screen, "{clear}{text}").and_then(|()| screen.flush());
        if written.is_err() {
            out::note(written);
            return ExitCode::SUCCESS;
        }
        thread::sleep(PAUSE);
    }
}

/// Prints whether the gateway takes new work.
pub(super) fn health(target: &AdminAddress) -> ExitCode {
    let answer = target.client().and_then(ready);
    match answer {
        Ok(answer) if answer.status == 200 => {
            out::say("ready");
            ExitCode::SUCCESS
        }
        Ok(answer) => {
            let text = answer.body.lines().next().unwrap_or_default();
            let text = text.replace(char::is_control, " ");
            out::say(&format!("HTTP {}: {text}", answer.status));
            ExitCode::FAILURE
        }
        Err(error) => {
            out::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Asks `/ready`, within [`HEALTH_TIMEOUT`] from the resolution of the name to the end of the answer. The thread of a
/// request that takes longer ends with the process.
fn ready(client: AdminClient) -> Result<AdminResponse, AdminRequestError> {
    let address = client.address();
    let (sender, answer) = mpsc::channel();
    let asking = thread::Builder::new().spawn(move || drop(sender.send(client.get("/ready"))));
    let answer = match asking {
        Ok(_) => answer.recv_timeout(HEALTH_TIMEOUT),
        Err(error) => return Err(AdminRequestError::Unreachable { address, error }),
    };
    answer.unwrap_or_else(|_| {
        let error = ErrorKind::TimedOut.into();
        Err(AdminRequestError::Unreachable { address, error })
    })
}

/// What is shown, and whether all is well.
fn look(client: &AdminClient, json: bool) -> Result<(String, bool), String> {
    let answer = client.get("/status").map_err(|error| error.to_string())?;
    if answer.status != 200 {
        let text = answer.body.trim().replace(char::is_control, " ");
        let (address, status) = (client.address(), answer.status);
        return Err(format!("{address} answers with HTTP {status}: {text}"));
    }
    let status: GatewayStatus = serde_json::from_str(&answer.body)
        .map_err(|error| format!("{} is of another version: {error}", client.address()))?;
    let is_well = status.is_well();
    let text = if json {
        answer.body
    } else {
        status.to_string()
    };
    Ok((text, is_well))
}

fn unusable(error: &AdminRequestError) -> ExitCode {
    out::complain(&format!("error: {error}"));
    match error {
        AdminRequestError::Config(_) | AdminRequestError::NoPort => ExitCode::from(BAD_CONFIG),
        _ => ExitCode::FAILURE,
    }
}
