//! Output and exit codes of `drawbridge check`.

use std::fs::File;
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::Command;

const OPEN: &str = "[auth]\nmode = \"none\"\n";

/// Runs `check` on a file with this text; `/opt/nope` is no directory.
async fn check(text: &str, options: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_drawbridge");
    check_by(Command::new(program), text, options).await
}

/// The same where no more than 300 file descriptors may be open.
async fn check_with_few_descriptors(text: &str, options: &[&str]) -> Output {
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=300:300", env!("CARGO_BIN_EXE_drawbridge")]);
    check_by(limited, text, options).await
}

async fn check_by(mut program: Command, text: &str, options: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    std::fs::write(&file, format!("{OPEN}{text}")).unwrap();
    program
        .args(["check", "--config"])
        .arg(&file)
        .args(options)
        .env("XDG_STATE_HOME", dir.path().join("state"))
        .env_remove("NOT_SET")
        .output()
        .await
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn empty_variable_is_named_where_it_names_no_file() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
    let output = program
        .arg("check")
        .env("DRAWBRIDGE_CONFIG", "")
        .output()
        .await
        .unwrap();
    let said = said(&output);
    assert!(
        said.contains("a value is required for 'DRAWBRIDGE_CONFIG'") && said.contains("unset it"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(2), "{said}");
}

const GONE: &str = "[upstreams.gone]\ncommand = \"no-such-program\"\ncwd = \"/opt/nope\"\n";

#[tokio::test]
async fn missing_programs_and_directories_are_warnings() {
    let output = check(GONE, &[]).await;
    let said = said(&output);
    assert!(said.contains("gateway.toml:4:11: upstreams.gone.command: the program no-such-program is in no directory of PATH"), "{said}");
    assert!(
        said.contains("gateway.toml:5:7: upstreams.gone.cwd: there is no directory /opt/nope"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn warnings_fail_where_that_is_asked_for() {
    let output = check(GONE, &["--strict"]).await;
    assert_eq!(output.status.code(), Some(1));
    let fine = "[upstreams.there]\ncommand = \"sh\"\n";
    let output = check(fine, &["--strict"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

// A file in its place, as root may write in every directory.
#[tokio::test]
async fn state_directory_that_cannot_be_used_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let check = async |text: &str| {
        std::fs::write(&file, format!("{OPEN}{text}")).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
        program.args(["check", "--strict", "--config"]).arg(&file);
        program.env("XDG_STATE_HOME", &file).output().await.unwrap()
    };
    let output = check("[upstreams.a]\ncommand = \"sh\"\n").await;
    let warned = said(&output);
    let cause = format!(
        "XDG_STATE_HOME: {0}/drawbridge: cannot be made in {0}: ",
        file.display()
    );
    assert!(warned.contains(&cause), "{warned}");
    assert_eq!(output.status.code(), Some(1), "{warned}");
    // Nothing is kept there.
    let output = check("[upstreams.a]\nurl = \"https://tracker.example.net/mcp\"\n").await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[tokio::test]
async fn variable_that_is_not_utf8_is_named_as_such() {
    use std::os::unix::ffi::OsStrExt as _;
    let text = "[upstreams.a]\ncommand = \"sh\"\nenv = { KEY = \"${LATIN_1}\" }\n";
    let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
    program.env("LATIN_1", std::ffi::OsStr::from_bytes(b"hunter2\xe9"));
    let output = check_by(program, text, &[]).await;
    let said = said(&output);
    assert!(
        said.contains("environment variable LATIN_1 is not UTF-8 text"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(output.status.code(), Some(78));
}

#[tokio::test]
async fn unset_variables_are_assumed_where_that_is_asked_for() {
    let text = "[upstreams.a]\ncommand = \"sh\"\nenv = { KEY = \"${NOT_SET}\" }\n";
    let output = check(text, &[]).await;
    assert_eq!(output.status.code(), Some(78), "{}", said(&output));
    let output = check(text, &["--assume-env", "--strict"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // A machine without the secrets has not the programs either.
    let output = check(GONE, &["--assume-env", "--strict"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[tokio::test]
async fn mistakes_and_warnings_are_json_where_that_is_asked_for() {
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let output = check(GONE, &["--json"]).await;
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(report["errors"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["warnings"][0]["key"], "upstreams.gone.command");
    assert_eq!(report["warnings"][0]["line"], 4);
    let output = check("[upstreams.a]\ncommnd = \"sh\"\n", &["--json"]).await;
    assert_eq!(output.status.code(), Some(78));
    let keys: Vec<_> = json(&output)["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["key"].clone())
        .collect();
    assert!(keys.contains(&"upstreams.a.commnd".into()), "{keys:?}");
}

// Too few descriptors are a warning as missing programs are: `--strict` fails.
#[tokio::test]
async fn lack_of_descriptors_is_a_warning_like_any_other() {
    let text = "[upstreams.there]\ncommand = \"sh\"\n";
    let few = async |options: &[&str]| check_with_few_descriptors(text, options).await;
    let output = few(&["--strict"]).await;
    let told = said(&output);
    let place = "gateway.toml:1:1: server.max_connections: started like this, 300 file descriptors may be open";
    assert!(told.contains(place), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    let report: Value = serde_json::from_slice(&few(&["--json"]).await.stdout).unwrap();
    assert_eq!(report["warnings"][0]["key"], "server.max_connections");
    let shown = String::from_utf8(few(&[]).await.stdout).unwrap();
    assert!(shown.contains("usable, with a warning"), "{shown}");
    let elsewhere = few(&["--assume-env", "--strict"]).await;
    assert_eq!(elsewhere.status.code(), Some(0), "{}", said(&elsewhere));
}

#[tokio::test]
async fn directory_of_the_database_is_missed_before_the_start() {
    let database = "[database]\nurl = \"sqlite:/opt/nope/a.db\"\n[upstreams.there]\n";
    let account = "url = \"https://a.test/mcp\"\n[upstreams.there.auth]\nkind = \"user_key\"\n";
    let output = check(&format!("{database}{account}"), &[]).await;
    let place = "gateway.toml:4:7: database.url: there is no directory /opt/nope";
    assert!(said(&output).contains(place), "{}", said(&output));
    // Without accounts no database is made.
    let output = check(&format!("{database}command = \"sh\"\n"), &["--strict"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// Runs the program with these arguments and this standard output.
async fn run_into(out: impl Into<Stdio>, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_drawbridge"));
    program.args(arguments).stdout(out).stderr(Stdio::piped());
    program.spawn().unwrap().wait_with_output().await.unwrap()
}

#[tokio::test]
async fn full_disk_does_not_look_like_a_written_report() {
    for arguments in [&["check", "--reference"][..], &["--version"][..]] {
        let output = run_into(File::create("/dev/full").unwrap(), arguments).await;
        assert!(
            said(&output).contains("standard output cannot be written"),
            "{output:?}"
        );
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[tokio::test]
async fn reader_that_has_seen_enough_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run_into(writer, &["check", "--reference"]).await;
    assert_eq!(said(&output), "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
