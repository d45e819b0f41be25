use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::serve;
use crate::clock::TestClock;

/// A client with a demo server of its own.
struct Client {
    input: Option<PipeWriter>,
    output: BufReader<PipeReader>,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

impl Client {
    fn new() -> Self {
        let (server_input, input) = std::io::pipe().unwrap();
        let (output, server_output) = std::io::pipe().unwrap();
        let clock = TestClock::at(1_000_000_000);
        let work = move || serve(BufReader::new(server_input), server_output, clock);
        let server = Some(std::thread::spawn(work));
        Self {
            input: Some(input),
            output: BufReader::new(output),
            server,
        }
    }

    fn initialized(version: &str, capabilities: &Value) -> Self {
        let mut client = Self::new();
        let params = json!({ "protocolVersion": version, "capabilities": capabilities });
        assert_eq!(
            client.ask(0, "initialize", &params)["protocolVersion"],
            version
        );
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn request(&mut self, id: u64, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.request(id, method, params);
        self.reply(id)
    }

    /// The reply to a request; notifications before it are skipped.
    fn reply(&mut self, id: u64) -> Value {
        loop {
            let message = self.receive();
            if message["id"] == id {
                return message
                    .get("result")
                    .or(message.get("error"))
                    .unwrap()
                    .clone();
            }
        }
    }

    fn call(&mut self, id: u64, name: &str, arguments: &Value) -> Value {
        self.begin(id, name, arguments);
        self.reply(id)
    }

    /// Calls a tool; what comes is still to be received.
    fn begin(&mut self, id: u64, name: &str, arguments: &Value) {
        let params = json!({ "name": name, "arguments": arguments });
        self.request(id, "tools/call", &params);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Some(server) = self.server.take() {
            server.join().unwrap().unwrap();
        }
    }
}

#[test]
fn an_unknown_revision_is_answered_with_the_newest_legacy_one() {
    let mut client = Client::new();
    let params = json!({ "protocolVersion": "2026-07-28", "capabilities": {} });
    assert_eq!(
        client.ask(1, "initialize", &params)["protocolVersion"],
        "2025-11-25"
    );
}

#[test]
fn members_younger_than_the_revision_are_left_out() {
    let mut old = Client::initialized("2024-11-05", &json!({}));
    let tools = old.ask(1, "tools/list", &json!({}));
    assert!(
        !tools.to_string().contains("annotations") && !tools.to_string().contains("outputSchema")
    );
    assert!(
        old.call(2, "add", &json!({ "a": 1, "b": 2 }))
            .get("structuredContent")
            .is_none()
    );
    let mut new = Client::initialized("2025-11-25", &json!({}));
    let sum = new.call(2, "add", &json!({ "a": 1, "b": 2 }));
    assert_eq!(sum["structuredContent"]["sum"], 3.0);
}

#[test]
fn echo_logs_and_answers() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    client.begin(1, "echo", &json!({ "text": "hi" }));
    assert_eq!(client.receive()["method"], "notifications/message");
    assert_eq!(client.receive()["result"]["content"][0]["text"], "hi");
}

#[test]
fn a_graver_level_silences_the_log() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    client.ask(1, "logging/setLevel", &json!({ "level": "error" }));
    client.begin(2, "echo", &json!({ "text": "hi" }));
    assert_eq!(client.receive()["id"], 2);
}

#[test]
fn the_clock_is_the_injected_one() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    let now = client.call(1, "clock", &json!({}));
    assert_eq!(now["content"][0]["text"], "2001-09-09T01:46:40Z");
}

#[test]
fn a_countdown_reports_progress_with_the_callers_token() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    let params = json!({
        "name": "countdown", "arguments": { "from": 2, "tick_ms": 0 },
        "_meta": { "progressToken": "p" },
    });
    client.request(1, "tools/call", &params);
    for step in 1..=2 {
        let progress = client.receive();
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(
            progress["params"],
            json!({ "progressToken": "p", "progress": step, "total": 2 })
        );
    }
    assert_eq!(client.receive()["id"], 1);
}

#[test]
fn a_cancelled_countdown_is_never_answered() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    let arguments = json!({ "from": 1, "tick_ms": 60_000 });
    client.begin(1, "countdown", &arguments);
    let cancel = json!({ "requestId": 1 });
    client
        .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel }));
    client.request(2, "ping", &json!({}));
    assert_eq!(client.receive()["id"], 2);
}

#[test]
fn a_name_is_asked_for_and_used() {
    let mut client = Client::initialized("2025-06-18", &json!({ "elicitation": {} }));
    client.request(1, "tools/call", &json!({ "name": "ask_name" }));
    let question = client.receive();
    assert_eq!(question["method"], "elicitation/create");
    let answer = json!({ "action": "accept", "content": { "name": "Ada" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer }));
    assert_eq!(
        client.receive()["result"]["content"][0]["text"],
        "Hello, Ada!"
    );
}

#[test]
fn a_client_that_cannot_be_asked_is_told_so() {
    let mut client = Client::initialized("2025-11-25", &json!({ "elicitation": { "url": {} } }));
    assert_eq!(client.call(1, "ask_name", &json!({}))["isError"], true);
}

#[test]
fn templates_are_read_and_completed() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    let read = client.ask(1, "resources/read", &json!({ "uri": "demo://squares/12" }));
    assert_eq!(read["contents"][0]["text"], "144");
    let reference = json!({ "type": "ref/resource", "uri": "demo://squares/{number}" });
    let params = json!({ "ref": reference, "argument": { "name": "number", "value": "9" } });
    let values = client.ask(2, "completion/complete", &params)["completion"]["values"].clone();
    assert_eq!(values.as_array().unwrap().len(), 11);
}

#[test]
fn a_prompt_is_filled_in() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    let params = json!({ "name": "greet", "arguments": { "name": "Ada", "style": "formal" } });
    let prompt = client.ask(1, "prompts/get", &params);
    assert_eq!(
        prompt["messages"][0]["content"]["text"],
        "Write a formal greeting for Ada."
    );
}

#[test]
fn what_is_unknown_has_the_right_code() {
    let mut client = Client::initialized("2025-06-18", &json!({}));
    assert_eq!(client.ask(1, "tools/fly", &json!({}))["code"], -32601);
    assert_eq!(client.call(2, "fly", &json!({}))["code"], -32602);
    assert_eq!(
        client.ask(3, "resources/read", &json!({ "uri": "demo://x" }))["code"],
        -32002
    );
    client.send(&json!("text"));
    assert_eq!(client.receive()["error"]["code"], -32600);
}
