//! stub
use crate::call::{Notice, Question};
use crate::fault::Fault;
use crate::protocol::Message;
use std::sync::Arc;
pub(super) fn notice(_u: &Arc<str>, n: Notice) -> Option<Notice> {
    Some(n)
}
pub(super) fn question(_u: &Arc<str>, q: Question) -> Question {
    q
}
pub(super) fn result(_u: &Arc<str>, _m: &str, m: Message) -> Result<Message, Fault> {
    Ok(m)
}
pub(super) fn error(_u: &Arc<str>, m: Message) -> Message {
    m
}
pub(super) fn kept_tools(t: &str, _f: impl Fn(&str) -> bool) -> String {
    t.to_owned()
}
