//! URL elicitations of one call by a legacy client. One opens when the client agrees to it, and is over once the
//! upstream no longer asks for it; then the client is notified. Spec: BRIDGING §3.6; SPEC C-82, C-83.

use super::question::QuestionEntry;
use crate::call::{InputRequest, InputResponse, Notice, Reply};
use crate::protocol::error_codes::URL_ELICITATION_REQUIRED;
use crate::protocol::{json, rpc};

/// The URL elicitations of one call.
#[derive(Debug, Default)]
pub(super) struct CallUrlElicitations(Vec<OpenedUrl>);

#[derive(Debug)]
struct OpenedUrl {
    /// JSON text of the URL.
    url: String,
    /// JSON text of the id that the client has for it.
    id: String,
}

impl CallUrlElicitations {
    /// Records the URL elicitations of a round that the client agreed to.
    pub(super) fn note(
        &mut self,
        round: &[(String, InputRequest)],
        answers: &[(String, InputResponse)],
    ) {
        for (key, question) in round {
            let answer = answers.iter().find(|(answered, _)| answered == key);
            let agreed = answer.is_some_and(|(_, answer)| answer.is_accepted());
            let params = question.params.as_deref().map(std::str::from_utf8);
            let Some(Ok(params)) = params.filter(|_| agreed) else {
                continue;
            };
            if let (Some(url), Some(id)) = (
                json::member(params, "url"),
                json::member(params, "elicitationId"),
            ) {
                self.0.push(OpenedUrl {
                    url: url.to_owned(),
                    id: id.to_owned(),
                });
            }
        }
    }

    /// Notices to the client about URL elicitations that are over: `entries`, the upstream's next questions, no longer
    /// include them.
    pub(super) fn over(&mut self, entries: &[QuestionEntry]) -> Vec<Notice> {
        let asked = |url_elicitation: &OpenedUrl| {
            let mut urls = entries.iter().filter_map(|entry| entry.param("url"));
            urls.any(|url| url == url_elicitation.url)
        };
        let over = self
            .0
            .extract_if(.., |url_elicitation| !asked(url_elicitation));
        over.map(|url_elicitation| Notice::elicitation_complete(&url_elicitation.id))
            .collect()
    }

    /// The answer to the call if the upstream asks again for URL elicitations that the client has agreed to: they are
    /// not over, and the client is not asked twice.
    pub(super) fn unfinished(&self, entries: &[QuestionEntry]) -> Option<Reply> {
        let mut open = Vec::new();
        for entry in entries.iter().filter(|entry| entry.is_url()) {
            let url_elicitation = self
                .0
                .iter()
                .find(|url_elicitation| entry.param("url") == Some(url_elicitation.url.as_str()));
            open.extend(url_elicitation.and_then(|url_elicitation| {
                entry.with("elicitationId", Some(&url_elicitation.id))
            }));
        }
        if open.is_empty() {
            return None;
        }
        let text = "the visit that the user agreed to is not over: call again when it is";
        let data = json::object([("elicitations", json::array(open))]);
        let error = rpc::error(URL_ELICITATION_REQUIRED, text, Some(&data));
        Some(Reply::Error(error.into()))
    }
}
