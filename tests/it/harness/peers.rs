//! Other people's programs: Node, npm modules and the Python environments of `tests/setup`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::eventually;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the peers are installed. Without them a test says so and passes, except where
/// `DRAWBRIDGE_PEERS=required` (which `make test` sets) makes it fail.
pub(crate) fn are_installed() -> bool {
    let missing: Vec<PathBuf> = [
        "node",
        "modules",
        "python1",
        "python2",
        "python1-8",
        "python1-22",
        "authlib",
        "tasks",
    ]
    .iter()
    .map(|part| root().join(".cache").join(format!("{part}.stamp")))
    .filter(|stamp| !stamp.exists())
    .collect();
    if missing.is_empty() {
        return true;
    }
    let is_required = std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|value| value == "required");
    assert!(
        !is_required,
        "not installed: {missing:?}; run tests/setup/install.py"
    );
    eprintln!("SKIPPED: peers are not installed ({missing:?}); run tests/setup/install.py");
    false
}

/// Debian's Chromium. Without it a test says so and passes, except where `DRAWBRIDGE_PEERS=required` makes it fail.
pub(crate) fn chromium() -> Option<&'static str> {
    const PROGRAM: &str = "/usr/bin/chromium";
    if Path::new(PROGRAM).exists() {
        return Some(PROGRAM);
    }
    let is_required = std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|value| value == "required");
    assert!(!is_required, "no {PROGRAM}; run tests/setup/install.py");
    eprintln!("SKIPPED: there is no {PROGRAM}; run tests/setup/install.py");
    None
}

/// The Node that the tests install.
pub(crate) fn node() -> String {
    root().join(".cache/bin/node").to_str().unwrap().to_owned()
}

/// A Python environment: 1 or 2, after the SDK's major version.
pub(crate) fn python(generation: u8) -> String {
    environment(&format!("python{generation}"))
}

/// The Python of an environment in `.cache`, after its list in `tests/setup`.
pub(crate) fn environment(name: &str) -> String {
    let program = format!(".cache/{name}/bin/python");
    root().join(program).to_str().unwrap().to_owned()
}

/// The server of the tasks extension (`tests/servers/tasks`).
pub(crate) fn tasks_fixture() -> String {
    root()
        .join(".cache/bin/tasks-fixture")
        .to_str()
        .unwrap()
        .to_owned()
}

/// A file of an installed npm module.
pub(crate) fn module(path: &str) -> String {
    root()
        .join("tests/node_modules")
        .join(path)
        .to_str()
        .unwrap()
        .to_owned()
}

/// A file below `tests/`.
pub(crate) fn script(path: &str) -> String {
    root().join("tests").join(path).to_str().unwrap().to_owned()
}

/// A program of a peer with its arguments, in a clean environment.
pub(crate) fn command(program: &str, args: &[&str], home: &Path) -> Command {
    let system = std::env::var_os("PATH").unwrap_or_default();
    let mut path = root().join(".cache/bin").into_os_string();
    path.push(":");
    path.push(system);
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", path)
        .env("HOME", home)
        .env("LANG", "C.UTF-8")
        .env("PYTHONWARNINGS", "ignore")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Output of a finished program.
pub(crate) struct Finished {
    pub(crate) is_success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a peer to its end, at most three minutes.
pub(crate) async fn run(program: &str, args: &[&str]) -> Finished {
    run_with(program, args, &[]).await
}

/// Runs a peer to its end with further variables.
pub(crate) async fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Finished {
    let home = tempfile::tempdir().unwrap();
    let output = command(program, args, home.path())
        .envs(env.iter().copied())
        .output();
    let limit = std::time::Duration::from_mins(3);
    let output = tokio::time::timeout(limit, output).await;
    let output = output
        .unwrap_or_else(|_| panic!("{program} {args:?}: still running"))
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Finished {
        is_success: output.status.success(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs a tour of `tests/clients` and fails unless every step in `steps` was taken and was fine.
pub(crate) async fn tour(program: &str, args: &[&str], steps: &[&str]) {
    tour_with(program, args, &[], steps).await;
}

/// The same with further variables.
pub(crate) async fn tour_with(program: &str, args: &[&str], env: &[(&str, &str)], steps: &[&str]) {
    let finished = run_with(program, args, env).await;
    let lines: Vec<Value> = finished
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let failed: Vec<String> = lines
        .iter()
        .filter(|line| line["ok"] != true)
        .map(|line| {
            format!(
                "{}: {}",
                line["step"],
                line["error"].as_str().unwrap_or("?")
            )
        })
        .collect();
    assert!(
        failed.is_empty(),
        "{}\n{}",
        failed.join("\n"),
        finished.stderr
    );
    let taken: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["step"].as_str())
        .collect();
    for step in steps {
        assert!(
            taken.contains(step),
            "{step} was not taken, only {taken:?}\n{}",
            finished.stderr
        );
    }
    assert!(finished.is_success, "{}", finished.stderr);
}

/// A peer process, killed on drop.
pub(crate) struct Service {
    _child: tokio::process::Child,
    _home: tempfile::TempDir,
    /// The first line it wrote.
    pub(crate) first_line: String,
}

/// Starts a peer and waits for its first line on stdout.
pub(crate) async fn serve(program: &str, args: &[&str], env: &[(&str, &str)]) -> Service {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("stdout");
    let mut command = command(program, args, home.path());
    command.envs(env.iter().copied()).stderr(Stdio::inherit());
    command.stdout(std::fs::File::create(&file).unwrap());
    let child = command.spawn().unwrap();
    let first_line = eventually("the first line of a peer", async || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.split_once('\n').map(|(line, _)| line.to_owned())
    })
    .await;
    Service {
        _child: child,
        _home: home,
        first_line,
    }
}
