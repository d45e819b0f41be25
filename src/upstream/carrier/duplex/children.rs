//! `ChildSource`: how the children of one upstream are started, each with the token of its caller's account in its
//! environment. A child keeps the token that it was started with, so that one whose token has ended takes no new calls.
//! Spec: DESIGN §6

use std::sync::Arc;

use crate::call::{CallerAccess, OwnerKey};
use crate::config::UpstreamConfig;
use crate::grants::{HeldToken, TokenFailure};
use crate::process::holders::SessionHolders;
use crate::process::{StdioConnection, StdioRuntime, StdoutReader, WaitPolicy};
use crate::upstream::account::Account;
use crate::upstream::carrier::http::exchange_error::ExchangeError;
use crate::upstream::credentials::{Credential, Credentials, Requester};
use crate::upstream::error::LinkError;
use crate::upstream::link_caller::LinkCaller;

/// Starts the children of one upstream. Clones start them with tokens of the same account.
#[derive(Debug, Clone)]
pub(crate) struct ChildSource {
    runtime: Arc<StdioRuntime>,
    account: Option<ChildAccount>,
}

/// Whose token a child gets.
#[derive(Debug, Clone)]
struct ChildAccount {
    credentials: Arc<dyn Credentials>,
    account: Account,
    /// The caller whose tokens are exchanged.
    caller: Option<Arc<LinkCaller>>,
}

/// A child, the token that it was started with, and its output.
pub(super) type StartedChild = (StdioConnection, Option<Arc<HeldToken>>, StdoutReader);

impl ChildSource {
    /// Children of `runtime`, with tokens of `credentials`; without any they have none.
    pub(in crate::upstream) fn new(
        runtime: &Arc<StdioRuntime>,
        credentials: Option<Arc<dyn Credentials>>,
    ) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            account: credentials.map(|credentials| ChildAccount {
                credentials,
                account: Account::Common,
                caller: None,
            }),
        }
    }

    /// The account whose token a child of `owner` gets.
    pub(in crate::upstream) fn account_of(&self, owner: OwnerKey) -> Account {
        let account = self.account.as_ref();
        account.map_or(Account::Common, |own| own.credentials.account_of(owner))
    }

    /// The same for children of `owner`, whose tokens `caller` has where they are exchanged.
    pub(in crate::upstream) fn on_behalf_of(
        &self,
        owner: OwnerKey,
        caller: Option<&Arc<CallerAccess>>,
    ) -> Self {
        let account = self.account.as_ref().map(|own| ChildAccount {
            credentials: Arc::clone(&own.credentials),
            account: own.credentials.account_of(owner),
            caller: caller.map(|caller| LinkCaller::new(Arc::clone(caller))),
        });
        Self {
            runtime: Arc::clone(&self.runtime),
            account,
        }
    }

    /// The caller whose tokens are exchanged.
    pub(in crate::upstream) fn caller(&self) -> Option<&Arc<LinkCaller>> {
        self.account.as_ref()?.caller.as_ref()
    }

    /// Starts a child of `owner` for the sessions of `holders`, and waits for a place with this patience. Its token comes first: without
    /// one nothing is started.
    ///
    /// # Errors
    /// [`LinkError::Account`] where there is no token, else as for [`StdioRuntime::open`].
    ///
    /// # Cancel safety
    /// A child that was started meanwhile is stopped; a token request goes on.
    pub(super) async fn open(
        &self,
        owner: OwnerKey,
        upstream: &UpstreamConfig,
        holders: &SessionHolders,
        patience: WaitPolicy,
    ) -> Result<StartedChild, LinkError> {
        let token = self.token().await?;
        let variable = token.as_ref().and_then(|token| token.variable());
        let opened = self
            .runtime
            .open(owner, upstream, patience, holders, variable);
        let (child, lines) = opened.await?;
        Ok((child, token, lines))
    }

    /// The token for the next child; `None` where children have none.
    async fn token(&self) -> Result<Option<Arc<HeldToken>>, LinkError> {
        let Some(own) = &self.account else {
            return Ok(None);
        };
        let requester = Requester {
            account: own.account,
            caller: own.caller.as_ref().map(|caller| caller.current()),
        };
        match own.credentials.for_request(&requester) {
            // Of the gateway itself, which has no account: no child is started without its token.
            Credential::Ready(_) => Err(ExchangeError::from(TokenFailure::not_connected()).into()),
            Credential::Held(token) if token.is_due() => {
                Ok(Some(own.credentials.for_child(&requester, token).await?))
            }
            Credential::Held(token) => Ok(Some(token)),
            Credential::Awaited(token) => Ok(Some(token.await?)),
        }
    }
}
