//! A link that belongs to no session.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Asked, Declared, Intake, Notice, Question};
use crate::protocol::Message;

/// A link that drops notifications outside calls and answers no question.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deaf;

impl Intake for Deaf {
    fn opened(&self, _upstream: &Arc<str>, _declared: &Arc<Declared>) {}

    fn heard(&self, _upstream: &Arc<str>, _lists: &[&'static str], _is_late: bool) {}

    fn notice(&self, _upstream: &Arc<str>, _notice: Notice, _call: Option<u64>) {}

    fn task_changed(&self, _upstream: &Arc<str>, _status: &Message, _call: Option<u64>) {}

    fn question(&self, _upstream: &Arc<str>, _question: Question) -> BoxFuture<'_, Asked> {
        let refusal = "nobody is there to be asked outside a call";
        Box::pin(std::future::ready(Asked::CannotAsk(refusal.to_owned())))
    }
}
