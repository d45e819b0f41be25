//! The stdio transport: one thread reads stdin and answers short requests; longer calls run as tasks beside.

use std::io::BufRead as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::methods::{Handled, receive};
use crate::modern;
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
        let spawn = |work| drop(runtime.spawn(work));
        if modern::piped(world, "", &outlet, &line, spawn) {
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
        while world.is_stalled() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    if world.options.ignore_eof {
        loop {
            std::thread::sleep(Duration::from_mins(1));
        }
    }
    Ok(())
}
