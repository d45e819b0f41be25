//! Capabilities declared by `--extensions`: skills, a user interface, and an unknown extension.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::options::Options;
use crate::rpc::{Outcome, notification};
use crate::tools::{self, Call};

const SKILLS: &str = "io.modelcontextprotocol/skills";
/// An extension of our own, with methods and notifications below `vendor/`.
const VENDOR: &str = "com.example/vendor";

const SKILL: &str = "---\nname: refunds\ndescription: Pays back\n---\nSee examples/email.md.\n";
/// Files of skills and interfaces: all can be read, none is listed.
const FILES: [(&str, &str, &str); 4] = [
    ("skill://shop/refunds/SKILL.md", "text/markdown", SKILL),
    (
        "skill://shop/refunds/examples/email.md",
        "text/markdown",
        "Dear you\n",
    ),
    (
        "github://owner/daily/SKILL.md",
        "text/markdown",
        "---\nname: daily\n---\n",
    ),
    (
        "ui://dashboard",
        "text/html;profile=mcp-app",
        "<!DOCTYPE html><p>ui://dashboard</p>",
    ),
];

/// The declared extensions, an object; null when none are.
pub(crate) fn declared(options: &Options) -> Value {
    let text = options.extensions.as_deref().unwrap_or("null");
    serde_json::from_str(text).unwrap_or_default()
}

/// MIME type and text of a file.
pub(crate) fn file(uri: &str) -> Option<(&'static str, &'static str)> {
    let (_, kind, text) = FILES.iter().find(|(known, _, _)| *known == uri)?;
    Some((kind, text))
}

/// Answers a request that belongs to an extension; `None` when it is not declared.
pub(crate) fn answer(options: &Options, method: &str, params: &Value) -> Option<Outcome> {
    let declared = declared(options);
    let skills = declared.get(SKILLS);
    let uri = params["uri"].as_str().unwrap_or_default();
    let cursor = params["cursor"].as_str();
    let (refunds, daily) = (
        "skill://shop/refunds/SKILL.md",
        "github://owner/daily/SKILL.md",
    );
    let result = match method {
        "skills/list" if skills.is_some() => match cursor {
            None => json!({"skills": [skill(refunds)], "nextCursor": "second"}),
            Some("second") => json!({"skills": [skill(daily)]}),
            Some(_) => return Some(invalid("unknown cursor")),
        },
        "skills/get" if skills.is_some() => {
            if uri != refunds && uri != daily {
                return Some(invalid("no such skill"));
            }
            json!({"skill": skill(uri)})
        }
        "resources/directory/read" if skills?["directoryRead"] == true => {
            if params
                .get("cursor")
                .is_some_and(|cursor| !cursor.is_string())
            {
                return Some(invalid("a cursor is a string"));
            }
            let entry = |uri: &str, kind: &str| {
                options.with_icons(json!({"uri": uri, "name": "n", "mimeType": kind}))
            };
            match (uri, cursor) {
                ("skill://shop/refunds", None) => json!({
                    "resources": [entry(refunds, "text/markdown")], "nextCursor": "second",
                }),
                ("skill://shop/refunds", Some("second")) => json!({
                    "resources": [entry("skill://shop/refunds/examples", "inode/directory")],
                }),
                _ => return Some(invalid("no such directory")),
            }
        }
        "vendor/echo" if declared.get(VENDOR).is_some() => {
            json!({"params": params, "nextCursor": "theirs"})
        }
        _ => return None,
    };
    Some(Outcome::Result(result.to_string()))
}

fn skill(uri: &str) -> Value {
    let name = uri.rsplit('/').nth(1);
    let root = uri.trim_end_matches("SKILL.md");
    let files = FILES.iter().filter(|(file, _, _)| file.starts_with(root));
    let resources: Vec<Value> = files
        .map(|(uri, _, text)| {
            let hash = digest(&SHA256, text.as_bytes());
            let hex = hash.as_ref().iter().map(|b| format!("{b:02x}"));
            let hex = hex.collect::<Vec<_>>().concat();
            json!({"uri": uri, "digest": format!("sha256:{hex}"), "size": text.len()})
        })
        .collect();
    let resources = if uri.starts_with("github:") {
        json!("dynamic")
    } else {
        json!(resources)
    };
    json!({"uri": uri, "frontmatter": {"name": name, "description": "Pays back"},
           "resources": resources})
}

fn invalid(text: &str) -> Outcome {
    Outcome::Error(-32602, text.to_owned())
}

/// The tools that show extensions, where any are declared.
pub(crate) fn tools(options: &Options) -> Vec<Value> {
    if options.extensions.is_none() {
        return Vec::new();
    }
    let dashboard = json!({
        "name": "dashboard",
        "description": "Has a user interface",
        "inputSchema": {"type": "object"},
        "_meta": {"ui": {"resourceUri": "ui://dashboard", "visibility": ["app"]},
                  "ui/resourceUri": "ui://dashboard"},
    });
    let notice = tools::entry("vendor_notice", "Sends an unknown notification", &["via$"]);
    let result = tools::entry("vendor_result", "Answers with a kind of its own", &[]);
    vec![dashboard, notice, result]
}

pub(crate) fn run(call: &Call) -> Outcome {
    match call.name.as_str() {
        "vendor_notice" => {
            let notice = notification("notifications/vendor/changed", &json!({"n": 1}));
            match call.text("via") {
                Some("get") => call.session.general.message(notice),
                _ => call.outlet.message(notice),
            }
            Outcome::text("told")
        }
        "vendor_result" => Outcome::Result(json!({"resultType": "vendor", "x": 1}).to_string()),
        _ => Outcome::text("shown"),
    }
}
