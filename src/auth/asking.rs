//! Asking every issuer at once, without a caller.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::Authenticator;
use super::issuer::Issuer;
use crate::runtime::lifecycle::TaskSpawner;

/// Issuers that are asked at the same time.
const AT_ONCE: usize = 16;

impl Authenticator {
    /// Loads the keys of every issuer and asks those with `introspection` about a made-up token, for `check --online`.
    /// The results are in [`status`](Self::status). Takes 10 s for each 16 issuers at most.
    ///
    /// # Cancel safety
    /// Loading goes on in the background.
    pub async fn ask_issuers(&self) {
        let all = stream::iter(&self.issuers);
        all.for_each_concurrent(AT_ONCE, |issuer| ask(issuer, &self.tasks))
            .await;
    }
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
