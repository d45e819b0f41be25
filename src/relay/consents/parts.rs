//! `ConsentParts`: what asking for accounts needs.

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::open::OpenConsents;
use crate::call::Notice;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::relay::program_use::ProgramUses;
use crate::seal::Sealer;
use crate::session::Session;
use crate::vault::Vault;

/// The stores, keys and limits of all questions for accounts.
#[derive(Debug)]
pub(in crate::relay) struct ConsentParts {
    /// Accounts of callers, where there are any.
    pub(super) vault: Option<Vault>,
    /// Seals the links to pages.
    pub(super) sealer: Arc<Sealer>,
    pub(super) clock: SharedClock,
    pub(super) public_url: Url,
    /// `connect.wait`.
    pub(super) wait: Duration,
    pub(super) open: OpenConsents,
    pub(super) uses: Option<ProgramUses>,
}

impl ConsentParts {
    pub(in crate::relay) fn new(
        settings: &Config,
        (vault, uses): (Option<Vault>, Option<ProgramUses>),
        sealer: &Arc<Sealer>,
        clock: SharedClock,
    ) -> Self {
        Self {
            vault,
            sealer: Arc::clone(sealer),
            clock,
            public_url: settings.server.public_url.clone(),
            wait: settings.connect.wait,
            open: OpenConsents::default(),
            uses,
        }
    }

    /// Ends the question of a session whose account is there now, where no call waits for it: what tells the client.
    pub(in crate::relay) fn finished(
        &self,
        session: &Session,
        upstream: &Arc<str>,
    ) -> Option<Notice> {
        let finished = self.open.finish(session.key(), upstream, true);
        finished?.complete()
    }
}
