//! Servers that declare `listChanged` but never announce a change: `tests/servers/notes.mjs`, on the official
//! TypeScript SDK. Spec: SPEC M-85; DESIGN §5.

use std::path::PathBuf;

use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::events::EventStream;
use crate::harness::peers::{self, Service};
use crate::harness::session::Reply;
use crate::harness::{Gateway, Session, Setup, eventually};
use crate::modern::Modern;

/// A gateway before the server.
struct Notes {
    gw: Gateway,
    /// The notes that the server lists.
    file: PathBuf,
    _home: tempfile::TempDir,
    _service: Option<Service>,
}

impl Notes {
    /// Reached by `carrier`; nothing where the peers are not installed.
    async fn start(carrier: &str, lists: &str) -> Option<Self> {
        if !peers::are_installed() {
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("notes");
        let script = peers::script("servers/notes.mjs");
        let args = [script.as_str(), carrier, file.to_str().unwrap()];
        let setup = Setup::open().toml(lists);
        let (setup, service) = if carrier == "stdio" {
            (setup.stdio("notes", &peers::node(), &args, ""), None)
        } else {
            let service = peers::serve(&peers::node(), &args, &[]).await;
            let ready: Value = serde_json::from_str(&service.first_line).unwrap();
            let setup = setup.url("notes", ready["url"].as_str().unwrap(), "");
            (setup, Some(service))
        };
        Some(Self {
            gw: setup.start().await,
            file,
            _home: home,
            _service: service,
        })
    }

    /// Adds a note without a call.
    fn add(&self, name: &str) {
        std::fs::write(&self.file, format!("{name}\n")).unwrap();
    }
}

/// A client of either era.
enum Client {
    /// With a GET stream: over HTTP changes are announced only there.
    Legacy(Session, EventStream),
    Modern(Modern),
}

impl Client {
    async fn of(gw: &Gateway, era: &str) -> Self {
        let (actor, path) = (gw.anonymous(), "/mcp/notes");
        match era {
            "legacy" => {
                let session = actor.open(path).await;
                let stream = session.listen().await;
                Self::Legacy(session, stream)
            }
            _ => Self::Modern(Modern::with(actor, path, json!({}))),
        }
    }

    async fn request(&self, method: &str, params: Value) -> Reply {
        match self {
            Self::Legacy(session, _) => session.request(method, params).await,
            Self::Modern(modern) => modern.send(method, params).await,
        }
    }

    async fn notes(&self) -> Vec<String> {
        let page = self.request("resources/list", json!({})).await.unwrap();
        let notes = page["resources"].as_array().unwrap().iter();
        notes
            .map(|note| note["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[rstest]
#[tokio::test]
async fn a_list_changed_by_a_call_is_seen_at_once(
    #[values("stdio", "http")] carrier: &str,
    #[values("legacy", "modern")] era: &str,
) {
    let Some(world) = Notes::start(carrier, "").await else {
        return;
    };
    let client = Client::of(&world.gw, era).await;
    assert!(client.notes().await.is_empty());
    for count in 1..4 {
        let params = json!({"name": "add_note", "arguments": {"name": format!("n{count}")}});
        let added = client.request("tools/call", params).await.unwrap();
        assert_ne!(added["isError"], true, "{added}");
        assert_eq!(client.notes().await.len(), count);
    }
    world.gw.stop().await;
}

// With the default configuration; `eventually` waits for 20 s.
#[rstest]
#[tokio::test]
async fn a_list_changed_by_itself_is_seen_in_20_s(
    #[values("stdio", "http")] carrier: &str,
    #[values("legacy", "modern")] era: &str,
) {
    let Some(world) = Notes::start(carrier, "").await else {
        return;
    };
    let client = Client::of(&world.gw, era).await;
    assert!(client.notes().await.is_empty());
    world.add("new");
    eventually("the note is listed", async || {
        (client.notes().await == ["new"]).then_some(())
    })
    .await;
    world.gw.stop().await;
}

// A listening client is told of a change found by a background revalidation, and one revalidation finds it.
#[tokio::test]
async fn a_change_found_in_the_background_is_announced() {
    let Some(world) = Notes::start("stdio", "[lists]\nfresh = \"2s\"").await else {
        return;
    };
    let Client::Legacy(user, mut stream) = Client::of(&world.gw, "legacy").await else {
        unreachable!("a legacy client was asked for");
    };
    let list = async || user.names("resources/list", "resources", "name").await;
    assert!(list().await.is_empty());
    world.add("new");
    let told = stream.until("notifications/resources/list_changed");
    let listing = async {
        loop {
            list().await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = told => {}
        () = listing => {}
    }
    assert_eq!(list().await, ["new"]);
    world.gw.stop().await;
}
