//! `drawbridge status` and `drawbridge health`: what a running gateway says of itself.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use super::ask::{AdminAddress, AdminClient, AdminRequestError};
use super::{BAD_CONFIG, out};
use crate::status::GatewayStatus;

/// Between two looks of `--watch`.
const PAUSE: Duration = Duration::from_secs(2);
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

/// Prints what runs. Fails when an upstream is degraded or down, when an issuer has a cause, and when there is no
/// answer.
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
            // Who read it has gone.
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Prints whether the gateway takes new work.
pub(super) fn health(target: &AdminAddress) -> ExitCode {
    let answer = target.client().and_then(|client| client.get("/ready"));
    match answer {
        Ok(answer) if answer.status == 200 => {
            out::say("ready");
            ExitCode::SUCCESS
        }
        Ok(answer) => {
            let text = answer.body.lines().next().unwrap_or_default();
            out::say(&format!("HTTP {}: {text}", answer.status));
            ExitCode::FAILURE
        }
        Err(error) => {
            out::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
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
