//! `AskedConsent`: how the question for an account ended.

use bytes::Bytes;

use crate::call::InputOutcome;

/// How asking ended.
pub(super) enum AskedConsent {
    /// The account is there, with the number of its connection.
    Connected(i64),
    /// The client has to come again with answers: this is the reply.
    Suspended(Bytes),
    /// The user does not want to.
    Declined,
    /// The client cannot be asked, or the wait is over.
    Ended,
}

impl AskedConsent {
    /// What an answered, or unanswered, question says; `None` where the user agreed to open the page, which is not to say
    /// that anything was done there (SPEC C-85).
    pub(super) fn of(outcome: InputOutcome) -> Option<Self> {
        match outcome {
            InputOutcome::Answered(answers) if answers.iter().all(|(_, one)| one.is_accepted()) => {
                None
            }
            InputOutcome::Answered(_) => Some(Self::Declined),
            InputOutcome::Suspended(result) => Some(Self::Suspended(result)),
            InputOutcome::CannotAsk(_) | InputOutcome::Unanswered => Some(Self::Ended),
        }
    }
}
