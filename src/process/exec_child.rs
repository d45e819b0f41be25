//! The helper that turns itself into a child: `drawbridge exec-child …` (DESIGN §6).
//!
//! The gateway starts this program again with the child's environment already in place. While it
//! is still single-threaded it ties its life to its parent, applies limits and the working
//! directory, and becomes the configured program. So nothing has to run between fork and exec in
//! a threaded process, and no secret ever travels through an argument.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};

use super::isolation;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "exec-child";

/// Exit code when the program could not be started, as shells use it.
const CANNOT_RUN: u8 = 126;

/// The arguments of the helper.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ExecPlan {
    /// The parent, whose death ends the child.
    pub(super) parent: i32,
    /// Working directory.
    pub(super) cwd: PathBuf,
    /// Soft limit on file descriptors, where it is not the one that is inherited.
    pub(super) descriptors: Option<u64>,
    /// Whether the child gets a Landlock domain of its own.
    pub(super) isolated: bool,
    /// Resource limits by configured name.
    pub(super) rlimits: Vec<(String, u64)>,
    /// The program and its arguments.
    pub(super) command: Vec<OsString>,
}

/// Why a plan cannot be carried out.
#[derive(Debug, thiserror::Error)]
enum PlanError {
    #[error("bad arguments")]
    Arguments,
    #[error("the gateway is gone")]
    Orphan,
    #[error("cannot set limit {0}: {1}")]
    Limit(String, io::Error),
    #[error("cannot keep other children out: {0}")]
    Isolation(anyhow::Error),
    #[error("cannot enter {0}: {1}")]
    Directory(String, io::Error),
    #[error("cannot run {0}: {1}")]
    Exec(String, io::Error),
    #[error("cannot prepare the child: {0}")]
    Prepare(#[from] io::Error),
}

impl ExecPlan {
    /// The arguments that [`ExecPlan::decode`] reads, subcommand included.
    pub(super) fn encode(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![
            SUBCOMMAND.into(),
            "--parent".into(),
            self.parent.to_string().into(),
            "--cwd".into(),
            self.cwd.clone().into_os_string(),
        ];
        if let Some(soft) = self.descriptors {
            args.extend(["--descriptors".into(), soft.to_string().into()]);
        }
        if self.isolated {
            args.push("--isolated".into());
        }
        for (name, value) in &self.rlimits {
            args.extend(["--rlimit".into(), format!("{name}={value}").into()]);
        }
        args.push("--".into());
        args.extend(self.command.iter().cloned());
        args
    }

    /// Reads the arguments behind the subcommand.
    fn decode(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut plan = Self::default();
        loop {
            let flag = args.next()?;
            match flag.to_str()? {
                "--parent" => plan.parent = args.next()?.to_str()?.parse().ok()?,
                "--cwd" => plan.cwd = args.next()?.into(),
                "--descriptors" => plan.descriptors = Some(args.next()?.to_str()?.parse().ok()?),
                "--isolated" => plan.isolated = true,
                "--rlimit" => {
                    let text = args.next()?;
                    let (name, value) = text.to_str()?.split_once('=')?;
                    plan.rlimits.push((name.to_owned(), value.parse().ok()?));
                }
                "--" => break,
                _ => return None,
            }
        }
        plan.command = args.collect();
        (!plan.command.is_empty()).then_some(plan)
    }
}

/// The kernel's name of a limit that the configuration may set.
#[must_use]
pub fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "nofile" => Resource::Nofile,
        "as" => Resource::As,
        "cpu" => Resource::Cpu,
        "nproc" => Resource::Nproc,
        "core" => Resource::Core,
        "fsize" => Resource::Fsize,
        _ => return None,
    })
}

/// Runs the hidden subcommand with the arguments that follow its name. It returns only when the
/// program could not be started; the reason is on standard error, where the gateway reads it.
///
/// Must be called before any other thread exists.
pub fn exec_child(args: impl Iterator<Item = OsString>) -> ExitCode {
    let error = match ExecPlan::decode(args) {
        Some(plan) => carry_out(&plan),
        None => PlanError::Arguments,
    };
    // Ignored: without standard error the error cannot be reported.
    drop(writeln!(io::stderr(), "{error}"));
    ExitCode::from(CANNOT_RUN)
}

fn carry_out(plan: &ExecPlan) -> PlanError {
    if let Err(error) = prepare(plan) {
        return error;
    }
    let Some((program, args)) = plan.command.split_first() else {
        return PlanError::Arguments;
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the child: it becomes the program"
    )]
    let error = Command::new(program).args(args).exec();
    PlanError::Exec(shown(program), error)
}

fn prepare(plan: &ExecPlan) -> Result<(), PlanError> {
    // The spawner made us leader of our group already; asserting it costs nothing.
    if rustix::process::getpgrp() != getpid() {
        rustix::process::setpgid(None, None).map_err(io::Error::from)?;
    }
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    // The parent may have died before the line above: then no signal will ever come.
    if getppid().map(Pid::as_raw_pid) != Some(plan.parent) {
        return Err(PlanError::Orphan);
    }
    // The gateway runs without huge pages; the program gets the default. Where a sandbox knows no such call, the gateway could
    // not switch them off either.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    if let Some(soft) = plan.descriptors {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(maximum.map_or(soft, |most| soft.min(most)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).map_err(io::Error::from)?;
    }
    if plan.isolated {
        isolation::enter_own_domain().map_err(PlanError::Isolation)?;
    }
    for (name, value) in &plan.rlimits {
        let refused = |error| PlanError::Limit(name.clone(), error);
        let resource = resource(name).ok_or_else(|| refused(io::ErrorKind::InvalidInput.into()))?;
        let limit = Rlimit {
            current: Some(*value),
            maximum: Some(*value),
        };
        setrlimit(resource, limit).map_err(|error| refused(error.into()))?;
    }
    std::env::set_current_dir(&plan.cwd)
        .map_err(|error| PlanError::Directory(shown(plan.cwd.as_os_str()), error))
}

fn shown(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_arguments() {
        let plan = ExecPlan {
            parent: 42,
            cwd: "/a b".into(),
            descriptors: Some(1024),
            isolated: true,
            rlimits: vec![("nofile".to_owned(), 64), ("core".to_owned(), 0)],
            command: vec!["sh".into(), "--".into(), "--cwd".into(), "a\nb".into()],
        };
        let decoded = ExecPlan::decode(plan.encode().into_iter().skip(1));
        assert_eq!(decoded, Some(plan));
    }

    #[test]
    fn arguments_without_a_program_are_refused() {
        let args = ["--parent", "1", "--cwd", "/", "--"].map(OsString::from);
        assert_eq!(ExecPlan::decode(args.into_iter()), None);
        assert_eq!(
            ExecPlan::decode(["--what"].map(OsString::from).into_iter()),
            None
        );
        assert_eq!(ExecPlan::decode(std::iter::empty()), None);
    }

    #[test]
    fn every_documented_limit_has_a_resource() {
        for name in ["nofile", "as", "cpu", "nproc", "core", "fsize"] {
            assert!(resource(name).is_some(), "{name}");
        }
        assert!(resource("stack").is_none());
    }
}
