//! What upstreams list. `pages` caches pages and fetches each once for several sessions, `reader` reads whole lists from
//! them, `late_lists` leaves out upstreams that are late, `merged_lists` makes one list of a merged endpoint's upstreams,
//! `resolve_name` looks names up in it, and `tools` says what a tool declares. Each uses modules named
//! before it only. Spec: DESIGN §5; BRIDGING §5.

mod anonymous_lists;
mod connect_tool;
mod cursors;
mod detached_link;
mod icons;
mod kept_lists;
mod late_lists;
mod list_deadline;
mod list_room;
mod lists_without_account;
mod merged_lists;
mod page_key;
mod pages;
mod reader;
mod resolve_name;
mod session_index;
mod tool_headers;
mod tools;
mod unanswered_lists;
mod uris;
mod warm;

use std::sync::Arc;

use self::anonymous_lists::AnonymousLists;
pub(crate) use self::connect_tool::{called_connect_tool, connect_tool};
pub(crate) use self::cursors::PageCursors;
pub(crate) use self::icons::{in_content, in_directory};
use self::kept_lists::KeptLists;
use self::late_lists::LateLists;
pub(crate) use self::list_room::make_room;
pub(crate) use self::lists_without_account::{AccountlessList, ListsWithoutAccount};
pub(crate) use self::merged_lists::MergedLists;
pub(crate) use self::page_key::ListPageKey;
pub(crate) use self::pages::{FetchLeader, FetchOutcome, FetchRole, ListPages, SharedPages, land};
use self::reader::ListReader;
pub(crate) use self::reader::lifetime;
pub(crate) use self::resolve_name::NameResolver;
use self::session_index::{list_indexes, session_indexes};
pub(crate) use self::tools::ToolSchemas;
pub(crate) use self::uris::odd;
pub(crate) use self::warm::OwnLister;
use crate::config::Config;
use crate::outbound::{AuditedPolicy, EditDepth, SessionLinks};
use crate::seal::Sealer;
use crate::session::SessionRegistry;
use crate::vault::Vault;

/// The lists of upstreams, and the look-up of names in them.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) pages: Arc<ListPages>,
    pub(crate) merged: Arc<MergedLists>,
    pub(crate) names: NameResolver,
    pub(crate) tools: ToolSchemas,
    pub(crate) cursors: PageCursors,
    pub(crate) own: Arc<OwnLister>,
    pub(crate) without_account: Arc<ListsWithoutAccount>,
}

/// What a [`Catalog`] is made of.
pub(crate) struct CatalogParts<'a> {
    pub(crate) settings: &'a Config,
    pub(crate) links: &'a Arc<SessionLinks>,
    pub(crate) policy: &'a Arc<AuditedPolicy>,
    pub(crate) sealer: &'a Arc<Sealer>,
    pub(crate) sessions: &'a Arc<SessionRegistry>,
    /// JSON text of our own `Implementation`.
    pub(crate) ourselves: &'a Arc<str>,
    pub(crate) vault: Option<&'a Vault>,
    pub(crate) edits: EditDepth,
}

impl Catalog {
    pub(crate) fn new(parts: &CatalogParts<'_>) -> Self {
        let CatalogParts {
            settings,
            links,
            policy,
            sealer,
            sessions,
            ourselves,
            edits,
            ..
        } = *parts;
        let links = || Arc::clone(links);
        let session_indexes = session_indexes();
        let cursors = PageCursors::new(Arc::clone(sealer));
        let kept = kept_lists(parts);
        let pages = Arc::new(ListPages::new(
            links(),
            edits,
            &settings.lists,
            Arc::clone(&kept),
        ));
        let reader = Arc::new(ListReader {
            links: links(),
            pages: Arc::clone(&pages),
            ttl: settings.lists.ttl,
        });
        let own = Arc::new(OwnLister {
            links: links(),
            reader: Arc::clone(&reader),
            sessions: Arc::clone(sessions),
            warm: settings.mcp.warm.clone(),
            edits,
        });
        let without_account = Arc::new(ListsWithoutAccount {
            links: links(),
            pages: Arc::clone(&pages),
            reader: Arc::clone(&reader),
            kept,
            anonymous: Arc::new(AnonymousLists::new(Arc::clone(&own))),
        });
        let late = LateLists {
            links: links(),
            pages: Arc::clone(&pages),
            reader: Arc::clone(&reader),
            session_indexes: session_indexes.clone(),
            first_wait: settings.mcp.first_wait,
        };
        let merged = Arc::new(MergedLists {
            links: links(),
            policy: Arc::clone(policy),
            late: Arc::new(late),
            cache: pages.shared.lists.clone(),
            indexes: list_indexes(),
            session_indexes,
            ourselves: Arc::clone(ourselves),
            fresh: settings.lists.fresh,
            without_account: Arc::clone(&without_account),
        });
        let names = NameResolver {
            links: links(),
            lists: Arc::clone(&merged),
            cursors: cursors.clone(),
            edits,
        };
        let tools = ToolSchemas {
            links: links(),
            pages: Arc::clone(&pages),
            reader,
        };
        Self {
            pages,
            merged,
            names,
            tools,
            cursors,
            own,
            without_account,
        }
    }
}

/// The last lists of callers with accounts.
fn kept_lists(parts: &CatalogParts<'_>) -> Arc<KeptLists> {
    let links = parts.links;
    let shared = (Arc::clone(&links.upstreams), links.spawner.clone());
    let common = parts.settings.upstreams_with_common_lists();
    Arc::new(KeptLists::new(parts.vault.cloned(), shared, common))
}
