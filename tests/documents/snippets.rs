//! Every fenced block is read by the program that it is for.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::{deployed, documents, read, root, yaml};

/// A fenced block of a document.
pub(crate) struct Snippet {
    pub(crate) document: PathBuf,
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) text: String,
    /// The line before the snippet, where a remark may say why the snippet is incomplete.
    pub(crate) remark: String,
}

impl Snippet {
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.document.display(), self.line)
    }
}

/// All fenced blocks of all documents.
pub(crate) fn snippets() -> Vec<Snippet> {
    let mut out: Vec<Snippet> = Vec::new();
    for document in documents() {
        let text = read(&document);
        let mut open: Option<Snippet> = None;
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            match (&mut open, line.trim_start().strip_prefix("```")) {
                (None, Some(language)) => {
                    open = Some(Snippet {
                        document: document.clone(),
                        line: number + 1,
                        language: language.to_owned(),
                        text: String::new(),
                        remark: before.to_owned(),
                    });
                }
                (Some(_), Some(_)) => out.extend(open.take()),
                (Some(snippet), None) => {
                    snippet.text.push_str(line);
                    snippet.text.push('\n');
                }
                (None, None) => before = line,
            }
        }
        assert!(open.is_none(), "{}: a block is open", document.display());
    }
    out
}

fn of(languages: &[&str]) -> Vec<Snippet> {
    let mut all = snippets();
    all.retain(|snippet| languages.contains(&&*snippet.language));
    assert!(!all.is_empty(), "no block in {languages:?}");
    all
}

/// `snippet`, completed to a valid configuration.
fn completed(snippet: &str) -> String {
    let mut text = snippet.to_owned();
    if !text.contains("[upstreams.") {
        text.push_str("\n[upstreams.example]\ncommand = \"server\"\n");
    }
    if !text.contains("[auth") {
        text.push_str("\n[auth]\nmode = \"none\"\n");
    }
    text
}

#[test]
fn every_toml_block_is_a_configuration() {
    // Every variable is set, and long enough to be a key.
    let env = |name: &str| Some(format!("the-value-of-{name}-which-is-long-enough"));
    let mut wrong = Vec::new();
    for snippet in of(&["toml"]) {
        if snippet.remark.starts_with("<!-- not read by a test: ") {
            continue;
        }
        let text = completed(&snippet.text);
        match drawbridge::config::parse(&text, &snippet.place(), &env) {
            Ok(config)
                if config.warnings.is_empty() || snippet.remark.starts_with("<!-- warns: ") => {}
            Ok(config) => wrong.push(format!("{}: {:?}", snippet.place(), config.warnings)),
            Err(refusal) => wrong.push(refusal.to_string()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_json_block_is_json() {
    for snippet in of(&["json"]) {
        let read = serde_json::from_str::<serde_json::Value>(&snippet.text);
        assert!(read.is_ok(), "{}: {read:?}", snippet.place());
    }
}

#[test]
fn every_language_has_a_reader() {
    const KNOWN: [&str; 11] = [
        "toml",
        "json",
        "yaml",
        "sh",
        "console",
        "js",
        "python",
        "mermaid",
        "nginx",
        "dockerfile",
        "rust",
    ];
    for snippet in snippets() {
        // Blocks without a language, and `text`, are drawings and foreign formats.
        let is_drawing = matches!(&*snippet.language, "" | "text");
        let known = is_drawing || KNOWN.contains(&&*snippet.language);
        assert!(known, "{}: {}", snippet.place(), snippet.language);
    }
}

/// Runs `program` with `input` on its standard input; `None` where it is not installed.
pub(crate) fn fed(program: &str, args: &[&str], input: &str) -> Option<Output> {
    #[expect(clippy::disallowed_methods, reason = "it is no child of a gateway")]
    let mut command = Command::new(program);
    command.args(args).current_dir(root().join("tests"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().ok()?;
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that ends early closes its input.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    Some(child.wait_with_output().expect("an end"))
}

#[test]
fn every_shell_block_is_shell() {
    for snippet in of(&["sh", "console"]) {
        let commands = match &*snippet.language {
            "console" => commands(&snippet.text),
            _ => snippet.text.clone(),
        };
        let done = fed("bash", &["-n"], &commands).expect("bash");
        assert!(done.status.success(), "{}: {done:#?}", snippet.place());
    }
}

/// Commands of a transcript: the text after each prompt, with continuation lines.
fn commands(transcript: &str) -> String {
    let mut out = String::new();
    let mut goes_on = false;
    for line in transcript.lines() {
        let command = line.strip_prefix("$ ").or(goes_on.then_some(line));
        if let Some(command) = command {
            out.push_str(command);
            out.push('\n');
        }
        goes_on = command.is_some_and(|command| command.ends_with('\\'));
    }
    out
}

#[test]
fn every_yaml_block_and_file_is_yaml() {
    let mut texts: Vec<(String, String)> = Vec::new();
    for snippet in of(&["yaml"]) {
        texts.push((snippet.place(), snippet.text));
    }
    let mut files = vec![root().join("docker-compose.yml")];
    files.extend(deployed(&["yaml", "yml"]));
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        texts.push((file.display().to_string(), read(&file)));
    }
    for (place, text) in texts {
        if yaml::documents(&place, &text).is_none() {
            return;
        }
    }
}
