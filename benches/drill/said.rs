//! What callers say of themselves and of each call: not all the same, as in the field.

use std::fmt::Write as _;

/// Names of clients; with a version each they make 32 descriptions.
const NAMES: [&str; 8] = [
    "drill",
    "claude-code",
    "Visual Studio Code",
    "inspector-client",
    "cursor-vscode",
    "mcp",
    "LibreChat",
    "goose",
];
const VERSIONS: [&str; 4] = ["1", "1.128.0", "0.47.3", "2.1.0-nightly.20261104"];
/// What a client can do; none of it is asked for by the tools that are called.
const CAPABILITIES: [&str; 4] = [
    "{}",
    r#"{"roots":{}}"#,
    r#"{"elicitation":{}}"#,
    r#"{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{}}"#,
];

/// The kind of a caller, which says how it describes itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kind {
    number: usize,
    /// Bytes of its title; none where 0.
    title: usize,
}

impl Kind {
    /// That of caller `number`: 32 in turn.
    pub(crate) fn of(number: usize) -> Self {
        Self {
            number: number % (NAMES.len() * VERSIONS.len()),
            title: 0,
        }
    }

    /// A caller with a title of this many bytes.
    pub(crate) fn titled(title: usize) -> Self {
        Self { number: 0, title }
    }

    /// `clientInfo`.
    pub(crate) fn info(self) -> String {
        let name = NAMES.get(self.number % NAMES.len()).unwrap_or(&NAMES[0]);
        let version = VERSIONS
            .get(self.number / NAMES.len())
            .unwrap_or(&VERSIONS[0]);
        let title = match self.title {
            0 => String::new(),
            bytes => format!(r#","title":"{}""#, "x".repeat(bytes)),
        };
        format!(r#"{{"name":"{name}","version":"{version}"{title}}}"#)
    }

    /// What it can do.
    pub(crate) fn capabilities(self) -> &'static str {
        CAPABILITIES
            .get(self.number / NAMES.len())
            .unwrap_or(&CAPABILITIES[0])
    }

    /// Parameters of `initialize`.
    pub(crate) fn initialize(self) -> String {
        format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{}}}"#,
            self.capabilities(),
            self.info()
        )
    }
}

/// Writes the members of `_meta` that differ in every request, and come from half of the callers: from a quarter the
/// trace that it belongs to, from a quarter a token for progress. Whether any was written.
pub(crate) fn write_differing(out: &mut String, caller: usize, id: u64) -> bool {
    let written = match caller % 4 {
        1 => write!(
            out,
            r#""traceparent":"00-{:032x}-{id:016x}-01""#,
            (u128::from(id) << 64) + caller as u128
        ),
        3 => write!(out, r#""progressToken":"{caller}-{id}""#),
        _ => return false,
    };
    // Writing into a string does not fail.
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_32_descriptions_of_callers_and_all_are_json() {
        let all: BTreeSet<String> = (0..256).map(|n| Kind::of(n).initialize()).collect();
        assert_eq!(all.len(), 32);
        let titled = Kind::titled(5000).initialize();
        assert!(titled.len() > 5000, "{titled}");
        for text in all.into_iter().chain([titled]) {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }

    #[test]
    fn half_of_the_callers_send_what_differs_in_every_request() {
        let said = |caller, id| {
            let mut out = String::from("{");
            let is_written = write_differing(&mut out, caller, id);
            let value: serde_json::Value = serde_json::from_str(&(out + "}")).unwrap();
            is_written.then_some(value)
        };
        assert_eq!((0..64).filter(|n| said(*n, 7).is_some()).count(), 32);
        assert_ne!(said(1, 7), said(1, 8));
        assert_ne!(said(3, 7), said(3, 8));
    }
}
