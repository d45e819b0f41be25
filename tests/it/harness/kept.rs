//! A server that a test starts, which ends with the process of the test whatever happens.

use std::process::Command;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

/// A running program; killed when dropped.
pub(crate) struct KeptProcess {
    pid: Pid,
    keeper: Option<JoinHandle<()>>,
}

impl KeptProcess {
    /// Starts `program`, which `arrange` gives its arguments and places for its output.
    pub(crate) fn start(program: &str, arrange: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", program]);
        arrange(&mut command);
        // The signal at the parent's death comes when the thread ends that has started it.
        let (told, hears) = std::sync::mpsc::channel();
        let keeper = std::thread::spawn(move || {
            let mut child = command.spawn().unwrap();
            told.send(child.id()).unwrap();
            child.wait().unwrap();
        });
        let id = i32::try_from(hears.recv().unwrap()).unwrap();
        Self {
            pid: Pid::from_raw(id).unwrap(),
            keeper: Some(keeper),
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }
}

impl Drop for KeptProcess {
    fn drop(&mut self) {
        kill_process(self.pid, Signal::KILL).ok();
        if let Some(keeper) = self.keeper.take() {
            drop(keeper.join());
        }
    }
}
