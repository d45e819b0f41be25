//! Effective capabilities: what a client can be asked through the gateway. Spec: BRIDGING §1.2, §3.8, §5.1, §6; SPEC N-01.

use std::borrow::Cow;

use bytes::Bytes;

use crate::call::ClientCapabilities;
use crate::protocol::{Era, Revision, extensions, json, without_nulls};

/// Subset of a client's declared capabilities that `revision` can express and the gateway carries. Upstreams
/// learn no other capability, to avoid questions that the gateway would refuse. A merged endpoint carries only
/// capabilities that the gateway understands.
pub(crate) fn capabilities(
    declared: &str,
    revision: Revision,
    is_pure: bool,
) -> ClientCapabilities {
    let declared = without_nulls(declared);
    let Ok(members) = json::members(&declared) else {
        return ClientCapabilities::none();
    };
    let kept = |revision| {
        let kept = members
            .iter()
            .filter_map(|(name, value)| Some((name, carried(name, value, revision, is_pure)?)));
        Bytes::from(json::object(kept))
    };
    let mut told = ClientCapabilities::read(kept(revision));
    if revision.allows_beyond(revision) {
        told = told.with_beyond(revision, kept(Revision::LATEST_LEGACY));
    }
    // Before 2025-11-25 every client that samples can be asked for its context. Spec: SPEC C-70.
    if !revision.has_sampling_tools() {
        told = told.with_context();
    }
    told
}

/// The declared capabilities (JSON text) without elicitation, sampling and roots, for a client that
/// cannot be asked now.
#[must_use]
pub fn without_questions(declared: &str) -> String {
    let members = json::members(declared).unwrap_or_default();
    let is_question = |name: &str| matches!(name, "elicitation" | "sampling" | "roots");
    json::object(members.into_iter().filter(|(name, _)| !is_question(name)))
}

fn carried<'a>(
    name: &str,
    value: &'a str,
    revision: Revision,
    is_pure: bool,
) -> Option<Cow<'a, str>> {
    match name {
        // Tasks of the experimental design are not carried, those of the extension only for modern
        // clients.
        "tasks" => None,
        "extensions" => {
            let carries = |id: &str| {
                (revision.era() == Era::Modern || id != extensions::TASKS)
                    && (is_pure || extensions::UNDERSTOOD.contains(&id))
            };
            Some(extensions::filtered(value, carries).into())
        }
        "experimental" if !is_pure => None,
        // The revision has no elicitation.
        "elicitation" if !revision.has_elicitation() => None,
        // In this revision the capability does not name forms, and URLs do not exist.
        "elicitation" if !revision.has_url_elicitation() => {
            let only_visits =
                json::member(value, "url").is_some() && json::member(value, "form").is_none();
            (!only_visits).then(|| plain(value))
        }
        "sampling" if !revision.has_sampling_tools() => Some(plain(value)),
        _ => Some(value.into()),
    }
}

/// The capability without members of later revisions.
fn plain(value: &str) -> Cow<'_, str> {
    if value.starts_with('{') {
        Cow::Borrowed("{}")
    } else {
        Cow::Borrowed(value)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // Spec: SPEC C-70, C-80, K-15: what each revision knows.
    #[rstest]
    #[case(Revision::V2024_11_05, r#"{"roots":{},"sampling":{}}"#)]
    #[case(Revision::V2025_03_26, r#"{"roots":{},"sampling":{}}"#)]
    #[case(
        Revision::V2025_06_18,
        r#"{"roots":{},"sampling":{},"elicitation":{}}"#
    )]
    #[case(
        Revision::V2025_11_25,
        r#"{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}"#
    )]
    #[case(
        Revision::V2026_07_28,
        r#"{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}"#
    )]
    fn a_client_is_asked_for_what_its_revision_knows(
        #[case] revision: Revision,
        #[case] told: &str,
    ) {
        let declared =
            r#"{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"tasks":{}}"#;
        assert_eq!(capabilities(declared, revision, true).text(), told);
    }

    // SDKs declare newer capabilities in the oldest revision. An exception to SPEC L-04.
    #[test]
    fn peers_of_2024_11_05_are_told_all_but_tasks() {
        let declared = r#"{"sampling":{"tools":{}},"elicitation":{"url":{}},"tasks":{}}"#;
        let same = Revision::V2024_11_05;
        let told = capabilities(declared, same, true);
        assert_eq!(
            told.towards(same).text(),
            r#"{"sampling":{"tools":{}},"elicitation":{"url":{}}}"#
        );
        for other in [Revision::V2025_03_26, Revision::V2026_07_28] {
            assert_eq!(told.towards(other).text(), r#"{"sampling":{}}"#);
        }
        let later = capabilities(declared, Revision::V2025_03_26, true);
        assert_eq!(later.towards(same).text(), r#"{"sampling":{}}"#);
    }

    // SPEC N-01, K-15.
    #[rstest]
    #[case(
        Revision::V2026_07_28,
        true,
        r#"{"experimental":{"e":{}},"extensions":{"v/x":{},"io.modelcontextprotocol/tasks":{}}}"#
    )]
    #[case(
        Revision::V2025_11_25,
        true,
        r#"{"experimental":{"e":{}},"extensions":{"v/x":{}}}"#
    )]
    #[case(
        Revision::V2026_07_28,
        false,
        r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#
    )]
    fn a_merged_endpoint_carries_only_what_we_understand(
        #[case] revision: Revision,
        #[case] is_pure: bool,
        #[case] told: &str,
    ) {
        let declared = r#"{"experimental":{"e":{}},"extensions":{"v/x":{},"io.modelcontextprotocol/tasks":{}}}"#;
        let carried = capabilities(declared, revision, is_pure);
        assert_eq!(carried.text(), told);
    }

    // Else a server of a strict SDK refuses the handshake, and another one asks in vain.
    #[test]
    fn what_a_client_declares_as_null_it_does_not_have() {
        let declared = r#"{"roots":null,"sampling":null,"elicitation":{"form":{},"url":null},"experimental":null}"#;
        let told = capabilities(declared, Revision::V2025_11_25, true);
        assert_eq!(told.text(), r#"{"elicitation":{"form":{}}}"#);
        assert!(!told.elicitation_url);
        assert!(!told.allows("sampling/createMessage", false));
    }

    #[test]
    fn who_cannot_be_asked_declares_the_rest() {
        let declared = r#"{"roots":{},"extensions":{"v/x":{}},"sampling":{},"elicitation":{},"experimental":{"e":1}}"#;
        let rest = r#"{"extensions":{"v/x":{}},"experimental":{"e":1}}"#;
        assert_eq!(without_questions(declared), rest);
        assert_eq!(without_questions("{}"), "{}");
    }

    #[test]
    fn url_only_client_cannot_be_asked_in_older_revisions() {
        let declared = r#"{"elicitation":{"url":{}}}"#;
        let old = capabilities(declared, Revision::V2025_06_18, true);
        assert!(!old.allow_some());
        let new = capabilities(declared, Revision::V2025_11_25, true);
        assert!(new.allows("elicitation/create", true));
    }
}
