//! `OpenQuestions` of an upstream on a connection, and the answers on their way to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::protocol::RequestId;
use crate::upstream::lock;

/// The questions without an answer, by the upstream's ids.
#[derive(Debug)]
pub(super) struct OpenQuestions {
    /// With tokens that withdraw them.
    by_id: Mutex<HashMap<RequestId, CancellationToken>>,
    most: usize,
    /// Permits for answers that the gateway gives without asking a client.
    answers: Arc<Semaphore>,
}

/// Why a question is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuestionRefusal {
    /// Another open question has its id.
    InUse,
    /// As many are open as may be.
    TooMany,
}

impl OpenQuestions {
    /// None; `most` may be open at a time.
    pub(super) fn new(most: usize) -> Self {
        Self {
            by_id: Mutex::default(),
            most,
            answers: Arc::new(Semaphore::new(most)),
        }
    }

    /// Opens a question; returns the token that withdraws it.
    pub(super) fn open(&self, key: &RequestId) -> Result<CancellationToken, QuestionRefusal> {
        let mut open = lock(&self.by_id);
        if open.contains_key(key) {
            return Err(QuestionRefusal::InUse);
        }
        if open.len() >= self.most {
            return Err(QuestionRefusal::TooMany);
        }
        let withdrawn = CancellationToken::new();
        open.insert(key.clone(), withdrawn.clone());
        Ok(withdrawn)
    }

    /// Closes a question that is answered; one that is withdrawn is closed already, and the upstream may have used its
    /// id again.
    pub(super) fn close(&self, key: &RequestId, withdrawn: &CancellationToken) {
        let mut open = lock(&self.by_id);
        // Cancelled under the lock.
        if !withdrawn.is_cancelled() {
            open.remove(key);
        }
    }

    /// Withdraws a question: the upstream no longer wants an answer.
    pub(super) fn withdraw(&self, key: &RequestId) {
        let mut open = lock(&self.by_id);
        if let Some(question) = open.remove(key) {
            question.cancel();
        }
    }

    /// Withdraws all questions, as the connection is over.
    pub(super) fn withdraw_all(&self) {
        let mut open = lock(&self.by_id);
        for (_, question) in open.drain() {
            question.cancel();
        }
    }

    /// A permit for an answer that the gateway gives itself; `None` where the upstream does not read those before.
    pub(super) fn answer_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.answers).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> RequestId {
        RequestId::parse(text).unwrap()
    }

    #[test]
    fn question_is_refused_while_its_id_is_in_use_or_too_many_are_open() {
        let questions = OpenQuestions::new(2);
        let first = questions.open(&key("1")).unwrap();
        assert_eq!(
            questions.open(&key("1")).unwrap_err(),
            QuestionRefusal::InUse
        );
        questions.open(&key("2")).unwrap();
        assert_eq!(
            questions.open(&key("3")).unwrap_err(),
            QuestionRefusal::TooMany
        );
        questions.withdraw(&key("1"));
        assert!(first.is_cancelled());
        assert!(questions.open(&key("3")).is_ok(), "a place is free again");
    }

    #[test]
    fn question_that_was_withdrawn_does_not_close_the_next_one_with_its_id() {
        let questions = OpenQuestions::new(2);
        let first = questions.open(&key("1")).unwrap();
        questions.withdraw(&key("1"));
        let second = questions.open(&key("1")).unwrap();
        questions.close(&key("1"), &first);
        assert!(questions.open(&key("1")).is_err(), "it is still open");
        questions.withdraw(&key("1"));
        assert!(second.is_cancelled());
        let third = questions.open(&key("1")).unwrap();
        questions.close(&key("1"), &third);
        assert!(questions.open(&key("1")).is_ok());
    }
}
