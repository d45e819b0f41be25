//! Runs the examples that the pages show: the transcript of the README, `check`, and the two clients.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::snippets::{Snippet, snippets};
use crate::{read, root};

fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "it is no child of a gateway")]
    Command::new(program)
}

/// A gateway with the demonstration upstream, killed on drop.
struct Gateway {
    child: Child,
    port: u16,
}

impl Gateway {
    fn start() -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (one, other) = (free(), free());
        let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
        let (port, admin) = (port(&one), port(&other));
        drop((one, other));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("gateway.toml");
        let text = read(&root().join("config/quickstart.toml"))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
        let text = format!("{text}\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n");
        std::fs::write(&file, text).expect("a file");
        let mut serve = command(env!("CARGO_BIN_EXE_drawbridge"));
        serve.arg("serve").arg("--config").arg(&file);
        let child = serve.stdout(Stdio::null()).spawn().expect("a gateway");
        let gateway = Self { child, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_mins(1), "no gateway");
            std::thread::yield_now();
        }
        gateway
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The guardian ends the demonstration.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:#?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The block of `page` in `language` that contains `part`.
fn block(page: &str, language: &str, part: &str) -> Snippet {
    let mut all = snippets();
    all.retain(|s| s.document.ends_with(page) && s.language == language && s.text.contains(part));
    all.pop().expect("a block")
}

/// Events without the random part of their ids.
fn events(transcript: &str) -> Vec<String> {
    transcript
        .lines()
        .map(|line| match line.strip_prefix("id: ") {
            Some(id) => format!("id: {}", id.split_once('.').map_or("", |(_, rest)| rest)),
            None => line.to_owned(),
        })
        .collect()
}

#[test]
fn the_readme_shows_how_a_call_is_resumed() {
    let gateway = Gateway::start();
    let script = root().join("docs/resume.sh");
    let done = command("bash").arg(script).arg(gateway.url()).output();
    let seen = events(&text(&done.expect("bash")));
    let shown = block("README.md", "console", "docs/resume.sh");
    let shown = events(&shown.text);
    let (prompt, shown) = shown.split_first().expect("a line");
    assert!(prompt.starts_with("$ bash docs/resume.sh"), "{prompt}");
    // How many events come before the cut depends on the machine; all of them come once and in order.
    let order = |lines: &[String]| -> Vec<String> {
        let kept = lines.iter().filter(|line| !line.starts_with("---"));
        kept.cloned().collect()
    };
    assert_eq!(order(&seen), order(shown));
}

#[test]
fn check_says_what_the_page_on_five_servers_shows() {
    let configuration = block("five-servers.md", "toml", "[upstreams.files]");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, configuration.text).expect("a file");
    let mut check = command(env!("CARGO_BIN_EXE_drawbridge"));
    check.arg("check").arg("--config").arg(&file);
    let said = text(
        &check
            .env("TRACKER_TOKEN", "tr-4711")
            .output()
            .expect("check"),
    );
    let shown = block("five-servers.md", "console", "drawbridge check");
    let between = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| *line != "endpoints");
        let lines = lines.take_while(|line| *line != "file descriptors");
        lines.map(str::to_owned).collect()
    };
    assert!(between(&shown.text).len() > 10, "{}", shown.text);
    assert_eq!(between(&said), between(&shown.text));
}

#[test]
fn the_clients_of_the_page_list_tools() {
    let python = root().join(".cache/python1/bin/python");
    let peers = python.exists() && root().join("tests/node_modules").is_dir();
    if !peers {
        let is_required = std::env::var_os("DRAWBRIDGE_PEERS").is_some_and(|v| v == "required");
        assert!(!is_required, "the SDKs are not installed");
        eprintln!("SKIPPED: the SDKs are not installed; `make test` installs them");
        return;
    }
    let gateway = Gateway::start();
    let program = |language| block("clients.md", language, "MCP_URL").text;
    let python = python.to_string_lossy();
    for (interpreter, args, source) in [
        (&*python, ["-c"].as_slice(), program("python")),
        (
            "node",
            ["--input-type=module", "-e"].as_slice(),
            program("js"),
        ),
    ] {
        let mut run = command(interpreter);
        run.args(args).arg(source).env("MCP_URL", gateway.url());
        let done = run.current_dir(root().join("tests")).output();
        let said = text(&done.expect(interpreter));
        assert!(said.contains("countdown"), "{interpreter}: {said}");
    }
}
