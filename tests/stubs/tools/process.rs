//! Tools about the process itself.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio, exit};

use serde_json::json;

use super::Call;
use crate::outlet::Outlet;
use crate::rpc::Outcome;
use crate::stream::Event;
use crate::world::last_words;

pub(super) fn run(call: &Call) -> Outcome {
    match call.name.as_str() {
        "env" => environment(call.text("name")),
        "cwd" => {
            let cwd = std::env::current_dir().unwrap_or_default();
            Outcome::text(&cwd.to_string_lossy())
        }
        "spawn_grandchild" => grandchild(),
        "hang_up" if matches!(call.outlet, Outlet::Shared(_)) => {
            call.outlet.event(Event::Cut);
            Outcome::Silence
        }
        "crash" | "hang_up" => {
            last_words(
                call.text("words")
                    .unwrap_or("stub-upstream: crashing, as asked"),
            );
            exit(i32::try_from(call.number("code").unwrap_or(3)).unwrap_or(3));
        }
        "flood_stderr" => flood(call.size("bytes")),
        // `exit_after_reply` does the rest once its reply has left.
        "exit_after_reply" => Outcome::text("bye"),
        _ => Outcome::text(&std::process::id().to_string()),
    }
}

fn environment(name: Option<&str>) -> Outcome {
    if let Some(name) = name {
        let value = std::env::var(name);
        return Outcome::text(value.as_deref().unwrap_or("(unset)"));
    }
    let all: BTreeMap<String, String> = std::env::vars().collect();
    Outcome::text(&json!(all).to_string())
}

/// Starts a grandchild that outlives this process unless the process group is killed.
fn grandchild() -> Outcome {
    let sleep = Command::new("sleep")
        .arg("3600")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match sleep {
        Ok(child) => Outcome::text(&child.id().to_string()),
        Err(error) => Outcome::Error(-32603, format!("cannot start sleep: {error}")),
    }
}

fn flood(mut bytes: usize) -> Outcome {
    let line = [&[b'e'; 99][..], b"\n"].concat();
    let mut stderr = std::io::stderr().lock();
    while bytes > 0 {
        let size = bytes.min(line.len());
        if stderr.write_all(line.get(..size).unwrap_or(&line)).is_err() {
            break;
        }
        bytes -= size;
    }
    Outcome::text("flooded")
}
