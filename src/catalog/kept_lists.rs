//! `KeptLists`: the last whole list of each caller at an upstream with accounts, sealed with its grant, for the time when the
//! account is missing. Pages are put together as they come, so that no list is asked for only to be kept.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use super::page_key::ListPageKey;
use crate::call::{OwnerKey, ServerDeclaration};
use crate::cause::chain;
use crate::database::DatabaseError;
use crate::digest::digest_of;
use crate::lock::lock;
use crate::protocol::methods::ListKind;
use crate::protocol::{Message, Revision, json};
use crate::runtime::lifecycle::TaskSpawner;
use crate::store::lists::ContentDigest;
use crate::upstream::Upstreams;
use crate::upstream::account::Account;
use crate::vault::{GrantKey, MAX_LIST, Vault};

/// Bytes of lists whose later pages have not come yet.
const MAX_GROWING: u64 = 32 * 1024 * 1024;
/// How long the next page of a list is waited for.
const GROWS_FOR: Duration = Duration::from_mins(10);
/// Digests of written lists in memory.
const MAX_WRITTEN: u64 = 50_000;

/// Whose list, of what kind.
type ListOf = (OwnerKey, i64, Arc<str>, ListKind);

/// A list whose last page has not come yet.
#[derive(Debug, Clone)]
struct GrowingList {
    /// The items so far, JSON texts between commas.
    items: Arc<str>,
    /// JSON text of the cursor of the next page.
    next: Arc<str>,
}

/// A whole list, as it is sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeptList {
    revision: String,
    /// JSON text of what the upstream declared.
    capabilities: String,
    /// JSON text of all items, an array.
    items: String,
}

/// The last lists.
#[derive(Debug)]
pub(super) struct KeptLists {
    vault: Option<Vault>,
    upstreams: Arc<Upstreams>,
    spawner: TaskSpawner,
    growing: Cache<ListOf, GrowingList>,
    /// What was kept last, so that an equal list is not written again.
    written: Cache<ListOf, ContentDigest>,
    /// The last tools of anybody, for the upstreams with `lists = "common"`.
    common: Vec<(Arc<str>, CommonList)>,
}

type CommonList = Mutex<Option<Arc<KeptList>>>;

impl KeptLists {
    /// `common` are the upstreams with `lists = "common"`.
    pub(super) fn new(
        vault: Option<Vault>,
        (upstreams, spawner): (Arc<Upstreams>, TaskSpawner),
        common: impl Iterator<Item = Arc<str>>,
    ) -> Self {
        let size =
            |_: &ListOf, list: &GrowingList| u32::try_from(list.items.len()).unwrap_or(u32::MAX);
        Self {
            vault,
            upstreams,
            spawner,
            growing: Cache::builder()
                .max_capacity(MAX_GROWING)
                .weigher(size)
                .time_to_live(GROWS_FOR)
                .build(),
            written: Cache::new(MAX_WRITTEN),
            common: common.map(|name| (name, CommonList::default())).collect(),
        }
    }

    /// Takes a page that came for `account`. The last one of a list has it kept.
    pub(super) fn take(
        self: &Arc<Self>,
        account: Account,
        place: ListPageKey<'_>,
        (declared, message): (&ServerDeclaration, &Message),
    ) {
        let (Account::Connected(owner, connection), Some(vault)) = (account, &self.vault) else {
            return;
        };
        let of = (owner, connection, Arc::clone(place.upstream), place.kind);
        let before = match place.cursor {
            None => String::new(),
            Some(cursor) => match self.growing.remove(&of) {
                Some(growing) if *growing.next == *cursor => growing.items.to_string(),
                _ => return,
            },
        };
        let Some(items) = joined(before, message.result_member(place.kind.member())) else {
            return;
        };
        let next = message.result_member("nextCursor");
        if let Some(next) = next.filter(|next| *next != "null") {
            let (items, next) = (items.into(), next.into());
            self.growing.insert(of, GrowingList { items, next });
            return;
        }
        let kept = KeptList::new(declared, &items);
        let digest = kept.digest();
        if place.kind == ListKind::Tools
            && let Some((_, common)) = self.common.iter().find(|(name, _)| name == place.upstream)
        {
            *lock(common) = Some(Arc::new(kept.clone()));
        }
        if self.written.get(&of) == Some(digest) {
            return;
        }
        let (lists, vault) = (Arc::clone(self), vault.clone());
        self.spawner.spawn_service(async move {
            lists.write(&vault, of, (&kept, digest)).await;
        });
    }

    async fn write(&self, vault: &Vault, of: ListOf, (kept, digest): (&KeptList, ContentDigest)) {
        let (owner, connection, upstream, kind) = &of;
        let write = async || -> Result<bool, DatabaseError> {
            for key in self
                .upstreams
                .caller_accounts()
                .grant_keys(upstream, *owner)
            {
                let grant = vault.grant(&key).await?;
                let Some(grant) = grant.filter(|it| it.state.connection == *connection) else {
                    continue;
                };
                let text = serde_json::to_string(kept).unwrap_or_default();
                let name = name_of(&key, upstream, *kind);
                return vault.lists().put(&key, grant.version, (&name, &text)).await;
            }
            Ok(false)
        };
        match write().await {
            Ok(true) => self.written.insert(of, digest),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%upstream, error = chain(&error), "list of a connected account cannot be kept");
            }
        }
    }

    /// The last list of `owner`; `None` where there is none, or the database fails.
    pub(super) async fn last_of(
        &self,
        owner: OwnerKey,
        upstream: &Arc<str>,
        kind: ListKind,
    ) -> Option<KeptList> {
        let vault = self.vault.as_ref()?;
        for key in self.upstreams.caller_accounts().grant_keys(upstream, owner) {
            let name = name_of(&key, upstream, kind);
            if let Some(kept) = vault.lists().get(&key, &name).await.ok()? {
                return serde_json::from_str(&kept).ok();
            }
        }
        None
    }

    /// The last tools of anybody, where the operator lets them be shown to all.
    pub(super) fn common(&self, upstream: &str) -> Option<Arc<KeptList>> {
        let (_, common) = self.common.iter().find(|(name, _)| **name == *upstream)?;
        lock(common).clone()
    }

    /// The list that `pages` are; `None` where it is too long.
    pub(super) fn whole(
        declared: &ServerDeclaration,
        kind: ListKind,
        pages: &[(ContentDigest, Message)],
    ) -> Option<KeptList> {
        let mut pages = pages.iter();
        let items = pages.try_fold(String::new(), |items, (_, page)| {
            joined(items, page.result_member(kind.member()))
        })?;
        Some(KeptList::new(declared, &items))
    }
}

/// The name of a list beside the grant of `key`, which may be of several upstreams.
fn name_of(key: &GrantKey, upstream: &Arc<str>, kind: ListKind) -> Cow<'static, str> {
    if key.upstream == *upstream {
        kind.member().into()
    } else {
        format!("{} {upstream}", kind.member()).into()
    }
}

/// `items` and the items of `page`; `None` without an array in `page`, or over half of `MAX_LIST`.
fn joined(mut items: String, page: Option<&str>) -> Option<String> {
    let more = page?.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    if !items.is_empty() && !more.is_empty() {
        items.push(',');
    }
    items.push_str(more);
    (items.len() < MAX_LIST / 2).then_some(items)
}

impl KeptList {
    fn new(declared: &ServerDeclaration, items: &str) -> Self {
        Self {
            revision: declared.revision.as_str().to_owned(),
            capabilities: (*declared.capabilities).to_owned(),
            items: format!("[{items}]"),
        }
    }

    /// Whether it can stand in for the list of a caller without an account: an empty list of tools leaves no way to ask for
    /// the account.
    pub(super) fn is_of_use(&self, kind: ListKind) -> bool {
        kind != ListKind::Tools || self.items != "[]"
    }

    /// Equal for equal lists.
    pub(super) fn digest(&self) -> ContentDigest {
        digest_of([self.capabilities.as_bytes(), self.items.as_bytes()])
    }

    /// The declaration and the list as one page; `None` where the revision is unknown to this release.
    pub(super) fn read(&self, kind: ListKind) -> Option<(Arc<ServerDeclaration>, Message)> {
        let revision = Revision::parse(&self.revision)?;
        let capabilities = Bytes::copy_from_slice(self.capabilities.as_bytes());
        let info = Bytes::from_static(b"{}");
        let declared = ServerDeclaration::new(revision, capabilities, info, None);
        let (member, items) = (kind.member(), &self.items);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"{member}":{items}}}}}"#);
        let message = Message::parse(text.into(), json::MAX_DEPTH).ok()?;
        Some((Arc::new(declared), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_joined_and_too_much_is_not_kept() {
        let join = |items: &str, page| joined(items.to_owned(), page);
        assert_eq!(join("", Some("[ ]")).as_deref(), Some(""));
        assert_eq!(join("", Some("[1, 2]")).as_deref(), Some("1, 2"));
        assert_eq!(join("1", Some("[]")).as_deref(), Some("1"));
        assert_eq!(join("1", Some("[2]")).as_deref(), Some("1,2"));
        assert_eq!(join("1", None), None);
        assert_eq!(join("1", Some("{}")), None);
        let long = format!("[\"{}\"]", "x".repeat(MAX_LIST));
        assert_eq!(join("1", Some(&long)), None);
    }
}
