//! `ListsWithoutAccount`: the list of an upstream for a caller without an account there. In this order: the caller's own
//! last list, what the upstream lists without an account, a public list, the last tools of any caller (`auth.lists =
//! "common"`), the gateway's own tool.

use std::sync::Arc;

use super::anonymous_lists::AnonymousLists;
use super::connect_tool::connect_tool;
use super::kept_lists::{KeptList, KeptLists};
use super::page_key::ListPageKey;
use super::pages::ListPages;
use super::reader::{ListReader, UpstreamList};
use crate::call::ServerDeclaration;
use crate::digest::digest_of;
use crate::outbound::SessionLinks;
use crate::protocol::Message;
use crate::protocol::methods::ListKind;
use crate::session::Session;
use crate::translate::project::CacheHints;

/// A list for a caller without an account.
#[derive(Debug)]
pub(crate) enum AccountlessList {
    /// What the upstream listed before, whole.
    Last(Arc<ServerDeclaration>, Message),
    /// Nothing is known: JSON text of the gateway's own tool, in a list of tools.
    Own(Option<String>),
}

/// The lists of upstreams where callers have accounts of their own.
#[derive(Debug)]
pub(crate) struct ListsWithoutAccount {
    pub(super) links: Arc<SessionLinks>,
    pub(super) pages: Arc<ListPages>,
    pub(super) reader: Arc<ListReader>,
    pub(super) kept: Arc<KeptLists>,
    pub(super) anonymous: Arc<AnonymousLists>,
}

impl ListsWithoutAccount {
    /// The list for a caller without an account at `upstream`; `None` for a caller that has or needs none.
    pub(crate) async fn list(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<AccountlessList> {
        if !self.links.lacks_account(session, upstream).await {
            return None;
        }
        Some(self.stand_in(session, upstream, kind).await)
    }

    /// The list for a caller whose account does not do for it.
    pub(crate) async fn stand_in(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> AccountlessList {
        let owner = session.owner();
        let is_of_use = |known: &KeptList| known.is_of_use(kind);
        let own = self.kept.last_of(owner, upstream, kind).await;
        let mut known = own.filter(is_of_use);
        if known.is_none() {
            known = self.anonymous.list(session, upstream, kind).await;
        }
        if known.is_none() {
            known = self.public(session, upstream, kind).filter(is_of_use);
        }
        if known.is_none() && kind == ListKind::Tools {
            let common = self.kept.common(upstream).as_deref().cloned();
            known = common.filter(is_of_use);
        }
        if let Some((declared, message)) = known.and_then(|known| known.read(kind)) {
            return AccountlessList::Last(declared, message);
        }
        let tool = (kind == ListKind::Tools).then(|| connect_tool(upstream));
        AccountlessList::Own(tool)
    }

    /// The same as the part of one upstream in a merged list.
    pub(super) async fn part(
        &self,
        session: &Arc<Session>,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<UpstreamList> {
        let empty = UpstreamList::empty(upstream, CacheHints::NONE);
        Some(match self.list(session, upstream, kind).await? {
            AccountlessList::Own(own_tool) => UpstreamList { own_tool, ..empty },
            AccountlessList::Last(declared, message) => {
                let digest = digest_of([message.result().unwrap_or_default().as_bytes()]);
                UpstreamList {
                    from: Some(declared.revision),
                    hosts_tasks: declared.hosts_tasks(),
                    pages: vec![(digest, message)],
                    ..empty
                }
            }
        })
    }

    /// A list that the upstream called public and that is still good (SPEC M-82).
    fn public(&self, session: &Session, upstream: &Arc<str>, kind: ListKind) -> Option<KeptList> {
        let page = |cursor: Option<&str>| {
            let place = ListPageKey::new(upstream, kind, cursor);
            let held = self.pages.public_page(session, place)?;
            let page = self.pages.page(&held)?;
            Some((held, page.message.clone()))
        };
        let declared = page(None)?.0.declared;
        let part = self.reader.part_of(upstream, page)?;
        KeptLists::whole(&declared, kind, &part.pages)
    }
}
