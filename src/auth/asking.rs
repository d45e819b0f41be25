//! Asking every issuer at once, without a caller.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::issuer::Issuer;
use crate::runtime::lifecycle::TaskSpawner;

/// Issuers that are asked at the same time.
const AT_ONCE: usize = 16;

/// Loads the keys of `issuers`, and asks those with `introspection` about a made-up token.
pub(super) async fn ask_issuers(issuers: &[Arc<Issuer>], tasks: &TaskSpawner) {
    let all = stream::iter(issuers);
    all.for_each_concurrent(AT_ONCE, |issuer| ask(issuer, tasks))
        .await;
}

async fn ask(issuer: &Arc<Issuer>, tasks: &TaskSpawner) {
    let Some(introspection) = &issuer.introspection else {
        issuer.refresh(tasks).await;
        return;
    };
    tokio::join!(issuer.refresh(tasks), introspection.probe());
    // Its opaque tokens need no keys. JWTs do, and "all" is about JWTs.
    if !introspection.all {
        issuer.excuse_missing_keys();
    }
}
