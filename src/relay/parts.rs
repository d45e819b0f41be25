//! `RelayParts`: what the relay is made of, and how its parts are put together.

use std::sync::{Arc, Weak};

use super::Relay;
use super::consents::ConsentParts;
use super::forward::ForwardParts;
use super::initialize::SessionOpener;
use super::list_changes::SharedChanges;
use super::listen::Subscriptions;
use super::notify::ClientNotices;
use super::program_use::ProgramUses;
use super::route::Router;
use crate::audit::AuditSink;
use crate::catalog::{Catalog, CatalogParts};
use crate::clock::SharedClock;
use crate::config::Config;
use crate::outbound::{
    AuditedPolicy, EditDepth, IntakeFactory, ReplySources, RequestHandler, SessionLinks,
};
use crate::policy::ToolPolicy;
use crate::runtime::lifecycle::TaskSpawner;
use crate::seal::Sealer;
use crate::session::SessionRegistry;
use crate::tasks::{TaskParts, Tasks};
use crate::translate::merge::GatewayInfo;
use crate::upstream::Upstreams;
use crate::vault::Vault;

/// What a [`Relay`] is made of.
#[derive(Debug)]
pub struct RelayParts {
    /// The whole configuration.
    pub settings: Arc<Config>,
    /// The configured upstreams.
    pub upstreams: Arc<Upstreams>,
    /// Decides which caller may use which tool.
    pub policy: Arc<ToolPolicy>,
    /// Takes the audit records.
    pub audit: AuditSink,
    /// Seals cursors and other handles that clients send back.
    pub sealer: Arc<Sealer>,
    /// All sessions of clients.
    pub sessions: Arc<SessionRegistry>,
    /// Accounts of callers, where there are any.
    pub vault: Option<Vault>,
    /// The time of day.
    pub clock: SharedClock,
    /// Background work.
    pub tasks: TaskSpawner,
}

impl RelayParts {
    /// Puts the parts together. Some parts call the relay back, through a weak reference.
    pub(super) fn assemble(self) -> Arc<Relay> {
        let Self {
            settings,
            upstreams,
            policy,
            audit,
            sealer,
            sessions,
            vault,
            clock,
            tasks,
        } = self;
        let ourselves = GatewayInfo::new(&settings.mcp);
        let uses = vault
            .clone()
            .map(|vault| ProgramUses::start(vault, audit.clone(), Arc::clone(&clock), &tasks));
        let policy = Arc::new(AuditedPolicy::new(policy, audit));
        let edits = EditDepth::new(settings.limits.json_depth);
        let consents = ConsentParts::new(&settings, (vault.clone(), uses), &sealer, clock);
        let changes = SharedChanges::new(&upstreams);
        Arc::new_cyclic(|own| {
            let intakes: Weak<dyn IntakeFactory> = Weak::<Relay>::clone(own);
            let links = Arc::new(SessionLinks::new(
                &settings,
                upstreams,
                tasks,
                &ourselves.info,
                intakes,
            ));
            let handler = || -> Weak<dyn RequestHandler> { Weak::<Relay>::clone(own) };
            let catalog = Arc::new(Catalog::new(&CatalogParts {
                settings: &settings,
                links: &links,
                policy: &policy,
                sealer: &sealer,
                sessions: &sessions,
                ourselves: &ourselves.info,
                vault: vault.as_ref(),
                edits,
            }));
            let sources = ReplySources::new(Arc::clone(&ourselves.info), settings.lists.ttl);
            let tasks = Arc::new(Tasks::new(TaskParts {
                limits: &settings.limits,
                links: &links,
                policy: &policy,
                sealer: &sealer,
                sessions: &sessions,
                sources: &sources,
                edits,
                handler: handler(),
            }));
            Relay {
                router: Router {
                    links: Arc::clone(&links),
                    catalog: Arc::clone(&catalog),
                    tasks: Arc::clone(&tasks),
                    edits,
                },
                subscriptions: Subscriptions {
                    links: Arc::clone(&links),
                    tasks: Arc::clone(&tasks),
                    edits,
                    tells_changes: ourselves.tells_changes,
                    handler: handler(),
                },
                opener: SessionOpener {
                    links: Arc::clone(&links),
                    sessions,
                    ourselves,
                },
                notices: ClientNotices {
                    links: Arc::clone(&links),
                },
                parts: ForwardParts::new(links, policy, catalog, tasks, sources, consents, edits),
                list_wait: settings.limits.call_wait,
                changes,
            }
        })
    }
}
