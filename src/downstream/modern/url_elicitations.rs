//! Pages (URL elicitations) of one call. If the upstream asks for a page again although the user agreed to visit the
//! page, the question keeps its key, so that the client does not show the page twice. A key is never reused for any
//! other question. Spec: BRIDGING §3.1 step 3, §3.6.

use bytes::Bytes;

use super::answers;
use crate::call::InputRequest;

/// Pages remembered per call.
const MAX_PAGES: usize = 64;

/// Pages of a call, with their question numbers.
#[derive(Debug, Default)]
pub(super) struct UrlElicitations(Vec<UrlElicitation>);

#[derive(Debug)]
struct UrlElicitation {
    params: Bytes,
    number: u64,
    /// Whether a question for the page is open.
    is_open: bool,
    /// Whether the user agreed to visit the page.
    is_agreed: bool,
}

impl UrlElicitations {
    /// The number of a new question: `fresh`, unless its page was asked for before.
    pub(super) fn number(&mut self, question: &InputRequest, fresh: u64) -> u64 {
        let Some(params) = question
            .params
            .as_ref()
            .filter(|_| answers::is_page(question))
        else {
            return fresh;
        };
        let mut known = self.0.iter_mut();
        if let Some(page) = known.find(|page| !page.is_open && page.params == *params) {
            (page.is_open, page.is_agreed) = (true, false);
            return page.number;
        }
        if self.0.len() < MAX_PAGES {
            self.0.push(UrlElicitation {
                params: params.clone(),
                number: fresh,
                is_open: true,
                is_agreed: false,
            });
        }
        fresh
    }

    /// The user agreed to visit the page of question `number`.
    pub(super) fn agreed(&mut self, number: u64) {
        if let Some(page) = self.0.iter_mut().find(|page| page.number == number) {
            page.is_agreed = true;
        }
    }

    /// Closes question `number`. An agreed page is kept; a page without agreement gets a fresh number next time, since
    /// clients need not show a known question again.
    pub(super) fn close(&mut self, number: u64) {
        self.0
            .retain(|page| page.number != number || page.is_agreed);
        if let Some(page) = self.0.iter_mut().find(|page| page.number == number) {
            page.is_open = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(mode: &str, url: &str) -> InputRequest {
        InputRequest {
            method: "elicitation/create".to_owned(),
            params: Some(format!(r#"{{"mode":"{mode}","url":"{url}","message":"m"}}"#).into()),
        }
    }

    // Spec: BRIDGING §3.6.
    #[test]
    fn a_page_that_is_asked_for_again_keeps_its_number() {
        let (one, other) = (question("url", "https://a"), question("url", "https://b"));
        let mut pages = UrlElicitations::default();
        assert_eq!(pages.number(&one, 1), 1);
        assert_eq!(pages.number(&one, 2), 2, "each who waits is told apart");
        pages.agreed(1);
        pages.close(1);
        assert_eq!(pages.number(&other, 3), 3);
        assert_eq!(pages.number(&one, 4), 1);
        pages.close(1);
        assert_eq!(pages.number(&one, 5), 5, "the second time it was declined");
    }

    // Spec: BRIDGING §3.1 step 3.
    #[test]
    fn whatever_else_is_asked_again_is_a_new_question() {
        let mut pages = UrlElicitations::default();
        for number in 1..3 {
            assert_eq!(pages.number(&question("form", ""), number), number);
            pages.close(number);
        }
    }
}
