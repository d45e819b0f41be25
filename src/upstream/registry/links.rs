//! `LinkMaker`: links of sessions to one upstream, their own or memberships of shared ones.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::entries::RegistryEntry;
use super::{ClientContext, Upstreams};
use crate::call::UpstreamLink;
use crate::config::{AccountKind, Isolation};
use crate::process::holders::SessionHolders;
use crate::protocol::Era;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::{AskedClient, Carrier, LinkSettings};
use crate::upstream::link::modern::ToolSchemas;
use crate::upstream::link::negotiated::{EraCell, EraLink};
use crate::upstream::link::shared::PoolKey;

/// A shared HTTP session without users is ended after this.
const SHARED_HTTP_IDLE: Duration = Duration::from_mins(1);

/// Makes links to one upstream.
pub(super) struct LinkMaker<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) name: &'a Arc<str>,
    pub(super) entry: &'a RegistryEntry,
}

impl LinkMaker<'_> {
    /// A link for this client context: its own, or membership of a shared one. Nothing is opened yet.
    pub(super) fn link(&self, mut client: ClientContext) -> Arc<dyn UpstreamLink> {
        let (upstreams, entry) = (self.upstreams, self.entry);
        // No other upstream is told apart, or given, what callers bring.
        let exchanges = entry
            .accounts
            .account
            .as_ref()
            .map(|account| account.kind());
        client.caller = client
            .caller
            .filter(|_| exchanges == Some(AccountKind::TokenExchange));
        if entry.settings.isolation == Isolation::Session {
            let holders = SessionHolders::of(client.session);
            return self.make(client, (holders, true));
        }
        let key = PoolKey {
            upstream: Arc::clone(self.name),
            account: entry.account(client.owner),
            access: client.caller.as_ref().map(|caller| *caller.key()),
            capabilities: client.capabilities.fingerprint(),
            offer: client.offer,
        };
        let idle = match entry.carrier {
            Carrier::Duplex(DuplexSource::Children(_)) => upstreams.stdio_idle,
            Carrier::Duplex(_) | Carrier::Http(..) => SHARED_HTTP_IDLE,
        };
        let intake = Arc::clone(&client.intake);
        let member = (client.session, client.owner, intake);
        let make = |intake, holders: SessionHolders| {
            let client_info = crate::upstream::OWN_INFO;
            let client = ClientContext {
                client_info,
                intake,
                // Other sessions are at the link too.
                adopted: None,
                ..client
            };
            self.make(client, (holders, false))
        };
        let idle = (idle, &upstreams.tasks);
        upstreams.shared.place(key, member, idle, make)
    }

    /// A link held by the sessions of `holders`; `exclusive` if used by one session alone.
    pub(super) fn make(
        &self,
        client: ClientContext,
        (holders, exclusive): (SessionHolders, bool),
    ) -> Arc<EraLink> {
        let (upstreams, entry) = (self.upstreams, self.entry);
        let unattributed = match entry.settings.isolation {
            Isolation::Session if client.offer.era() == Era::Legacy => AskedClient::Session,
            Isolation::Session | Isolation::Principal => AskedClient::Call,
            Isolation::Shared => AskedClient::Nobody,
        };
        let account = entry.carrier.account_of(client.owner);
        let era = entry.eras.of(account, || EraCell::new(&entry.settings));
        let settings = LinkSettings {
            unattributed,
            asks: entry.asks.clone(),
            single_streams: entry.single_streams.clone(),
            upstream: Arc::clone(&entry.settings),
            name: Arc::clone(self.name),
            carrier: entry
                .carrier
                .on_behalf_of(client.owner, client.caller.as_ref()),
            owner: client.owner,
            capabilities: client.capabilities,
            client_info: client.client_info,
            client: client.offer.era(),
            offer: era.offer(client.offer),
            intake: client.intake,
            holders,
            exclusive,
            tasks: upstreams.tasks.clone(),
            message_depth: upstreams.limits.json_depth,
            replies: entry.replies.clone(),
            health: Arc::clone(&entry.health),
            load: Arc::clone(&entry.load),
            fence: upstreams.fence.clone(),
            connection: account.connection(),
            adopted: Mutex::new(
                client
                    .adopted
                    .map(|link| link.for_account(account.connection())),
            ),
        };
        let schemas = entry.schemas.of(account, ToolSchemas::default);
        let link = EraLink::new(Arc::new(settings), era, schemas);
        if let Carrier::Duplex(DuplexSource::Children(_)) = entry.carrier {
            entry.links.add(&link);
        }
        link
    }
}
