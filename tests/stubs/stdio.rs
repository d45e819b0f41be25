//! The stdio transport: this thread reads and answers what it can; calls that take time run beside.

use std::io::BufRead as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;

use crate::methods::{Handled, receive};
use crate::modern::{self, Scripted};
use crate::options::Era;
use crate::outlet::Outlet;
use crate::rpc::{Message, refusal};
use crate::session::Session;
use crate::world::World;

/// Serves until end of input.
pub(crate) fn serve(world: &Arc<World>, runtime: &Handle) -> anyhow::Result<()> {
    let outlet = Outlet::Lines(Arc::new(Mutex::new(std::io::stdout())));
    let session = Session::new("stdio".to_owned(), outlet.clone());
    world.add_session(&session);
    let mut stdin = std::io::stdin().lock();
    let mut line = String::new();
    loop {
        line.clear();
        if stdin.read_line(&mut line)? == 0 {
            break;
        }
        if modern_line(world, runtime, &outlet, &line) {
            continue;
        }
        if let Ok(message) = serde_json::from_str::<Message<'_>>(&line) {
            match receive(world, &session, &message, &[]) {
                Handled::Reply(json) => outlet.message(json),
                Handled::Later(later) => {
                    runtime.spawn(later.run(outlet.clone()));
                }
                Handled::Taken => {}
            }
        } else {
            world.count("unreadable");
            outlet.message(refusal(-32700, "unreadable message"));
        }
        // A call that stalls the process says so from another thread.
        if line.contains("\"stall\"") {
            std::thread::sleep(Duration::from_millis(20));
        }
        while world.stalled.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    if world.options.ignore_eof {
        loop {
            std::thread::sleep(Duration::from_mins(1));
        }
    }
    Ok(())
}

/// Takes a line of the modern era, or a scripted probe; `false` when it is neither.
#[expect(
    clippy::indexing_slicing,
    reason = "a JSON value that has no such member gives null"
)]
fn modern_line(world: &Arc<World>, runtime: &Handle, outlet: &Outlet, line: &str) -> bool {
    if world.options.era == Era::Legacy && world.options.probe.is_none() {
        return false;
    }
    let message: Value = serde_json::from_str(line).unwrap_or_default();
    match modern::scripted(world, &message) {
        Some(Scripted::Answer(_, body)) => {
            outlet.message(body);
            return true;
        }
        Some(Scripted::Silence) => return true,
        Some(Scripted::Exit) => std::process::exit(4),
        None => {}
    }
    if message["method"] == "notifications/cancelled" {
        let params = &message["params"];
        let known = world.modern.cancel(&params["requestId"].to_string());
        if known || world.options.era == Era::Modern {
            world.record_cancel(params, known);
        }
        return known;
    }
    if !modern::is_modern(&world.options, &message) {
        return false;
    }
    if message.get("id").is_none() || message.get("method").is_none() {
        return true;
    }
    if let Err((_, body)) = modern::check(&message, None) {
        outlet.message(body);
    } else {
        let key = message["id"].to_string();
        let work = modern::serve(Arc::clone(world), key, message, Vec::new(), outlet.clone());
        runtime.spawn(work);
    }
    true
}
