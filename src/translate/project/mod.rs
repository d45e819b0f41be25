//! Projects messages between revisions: removes members that an older peer must not see, and adds members
//! that a newer peer requires and an older one does not send.
//! Spec: BRIDGING §3.9; SPEC M-40, M-41, M-80, C-51, C-92, G-04.
//!
//! Pure: bytes in, bytes out. Where nothing has to change the same bytes come out.

mod content;
mod error;
mod hints;
mod object;
mod question;
mod request;
mod result;
mod schema;
mod tool;

pub(crate) use error::{
    ErrorSubject, ProjectedError, covers, from_upstream as error, readable as readable_error,
};
pub(crate) use hints::{CacheHints, CacheScope};
pub(crate) use question::methods;
pub(crate) use request::request;
pub(crate) use result::{ResultOrigin, UnusableResult, is_of_unknown_kind, wraps};

use std::borrow::Cow;

use self::content::ContentProjection;
use self::object::MemberFate;
use crate::call::{Notice, NoticeKind};
use crate::cause::chain;
use crate::protocol::json::JsonError;
use crate::protocol::{Era, Message, Revision, methods};
use crate::telemetry::metrics::LABELED;

/// From the revision of an upstream to that of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RevisionProjection {
    from: Revision,
    to: Revision,
    /// Whether calls of the upstream are run here as tasks of 2025-11-25.
    hosts_tasks: bool,
}

impl RevisionProjection {
    /// Projection from the upstream's revision to the client's.
    pub(crate) fn new(from: Revision, to: Revision) -> Self {
        Self {
            from,
            to,
            hosts_tasks: false,
        }
    }

    /// Whether there are content blocks that the client does not know and the upstream may send.
    fn narrows_content(self) -> bool {
        self.from > self.to && !self.to.has_structured_content()
    }

    /// Content blocks as the client knows them.
    fn blocks(self) -> ContentProjection {
        ContentProjection(self.to)
    }

    /// [`new`](Self::new) for an upstream whose revision may be unknown yet: the other era is assumed, so
    /// that no member passes unchanged by mistake.
    pub(crate) fn of(from: Option<Revision>, to: Revision) -> Self {
        let unknown = match to.era() {
            Era::Legacy => Revision::V2026_07_28,
            Era::Modern => Revision::LATEST_LEGACY,
        };
        Self::new(from.unwrap_or(unknown), to)
    }

    /// Sets whether the gateway runs calls of this upstream as tasks of 2025-11-25.
    #[must_use]
    pub(crate) fn hosting_tasks(self, hosts_tasks: bool) -> Self {
        Self {
            hosts_tasks,
            ..self
        }
    }

    /// Whether nothing is ever changed on the way, but for what a modern result must have.
    pub(crate) fn is_identity(self) -> bool {
        self.from == self.to
    }

    /// Whether both sides are of the legacy era.
    pub(crate) fn is_legacy(self) -> bool {
        self.from.era() == Era::Legacy && self.to.era() == Era::Legacy
    }

    /// Whether a legacy upstream answers a modern client.
    pub(crate) fn is_up(self) -> bool {
        self.from.era() == Era::Legacy && self.to.era() == Era::Modern
    }

    /// Whether a modern upstream answers a legacy client.
    fn is_down(self) -> bool {
        self.from.era() == Era::Modern && self.to.era() == Era::Legacy
    }

    /// The items of a list of `kind`, the JSON text of an array that `upstream` sent. An item with a repeated
    /// member cannot be rewritten: the item is dropped and counted; the rest of the list stays.
    ///
    /// # Errors
    /// When the text is no array.
    pub(crate) fn items<'i>(
        self,
        kind: methods::ListKind,
        items: &'i str,
        upstream: &str,
    ) -> Result<Cow<'i, str>, JsonError> {
        if kind != methods::ListKind::Tools || self.is_identity() && !self.shows_execution(items) {
            return Ok(Cow::Borrowed(items));
        }
        object::array(items, |item| {
            if tool::is_left_out(self, item) {
                return Ok(MemberFate::Drop);
            }
            Ok(tool::tool(self, item).map_or_else(
                |error| {
                    let name = object::string_member(item, "name").unwrap_or_default();
                    LABELED.upstream_garbage.add(upstream, 1);
                    tracing::warn!(upstream, tool = ?name, error = chain(&error), "a tool is left out of a list");
                    MemberFate::Drop
                },
                MemberFate::from,
            ))
        })
    }

    /// Whether both sides may use capabilities beyond their revision.
    fn is_beyond(self) -> bool {
        self.from.allows_beyond(self.to)
    }

    /// Whether a method may go to the client.
    fn passes(self, method: &str) -> bool {
        self.is_beyond() || is_in(method, self.to)
    }

    /// Whether a tool among `items` may say how it is run, in words that its client knows.
    fn shows_execution(self, items: &str) -> bool {
        self.to.has_tasks_capability()
            && memchr::memmem::find(items.as_bytes(), b"\"execution\"").is_some()
    }

    /// A notification toward the client; `None` if the client's revision does not define it.
    pub(crate) fn notice(self, notice: Notice) -> Option<Notice> {
        match &notice.kind {
            NoticeKind::Progress { .. } if !self.to.has_progress_message() => {
                let message = Message::parse(notice.bytes, usize::MAX).ok()?;
                let bytes = match message.param("message") {
                    Some(_) => message.edit().remove_param("message").finish(),
                    None => message.bytes().clone(),
                };
                let kind = notice.kind;
                Some(Notice { kind, bytes })
            }
            NoticeKind::ElicitationComplete if !self.passes(ELICITATION_COMPLETE) => None,
            NoticeKind::Other if !self.is_identity() => {
                let message = Message::parse(notice.bytes.clone(), usize::MAX).ok()?;
                is_in(message.method()?, self.to).then_some(notice)
            }
            _ => Some(notice),
        }
    }
}

const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";

/// Whether a revision has a method; inventions belong to none.
fn is_in(method: &str, revision: Revision) -> bool {
    methods::lookup(method).is_none_or(|known| known.is_in(revision))
}

#[cfg(test)]
mod tests;
