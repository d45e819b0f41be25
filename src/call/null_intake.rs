//! A link that belongs to no session.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{InputOutcome, InputRequest, Notice, NoticeArrival, NoticeIntake, ServerDeclaration};
use crate::protocol::Message;

/// A link that drops notifications outside calls and answers no question.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullIntake;

impl NoticeIntake for NullIntake {
    fn opened(&self, _upstream: &Arc<str>, _declared: &Arc<ServerDeclaration>) {}

    fn heard(&self, _upstream: &Arc<str>, _lists: &[&'static str], _is_late: bool) {}

    fn notice(&self, _upstream: &Arc<str>, _notice: Notice, _arrival: NoticeArrival) {}

    fn task_changed(&self, _upstream: &Arc<str>, _status: &Message, _call: Option<u64>) {}

    fn question(
        &self,
        _upstream: &Arc<str>,
        _question: InputRequest,
    ) -> BoxFuture<'_, InputOutcome> {
        let refusal = "nobody is there to be asked outside a call";
        Box::pin(std::future::ready(InputOutcome::CannotAsk(
            refusal.to_owned(),
        )))
    }
}
