//! `RequestCredentials`: whose credential the requests of a client carry, and what becomes of one that is refused.

use std::sync::Arc;

use http::{Method, Response, StatusCode};

use super::body::UpstreamBody;
use super::exchange_error::ExchangeError;
use super::token_memo::TokenMemo;
use crate::call::{CallerAccess, OwnerKey};
use crate::grants::{Challenge, HeldToken, Renewal};
use crate::upstream::account::Account;
use crate::upstream::credentials::{Credential, Credentials, Requester};
use crate::upstream::link_caller::LinkCaller;

/// The credentials of one client. Clones are for the same account.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct RequestCredentials {
    credentials: Arc<dyn Credentials>,
    /// The account whose credential the requests carry.
    account: Account,
    /// The token of that account, where it changes only with accounts.
    memo: Option<Arc<TokenMemo>>,
    /// The caller of requests that belong to no call.
    caller: Option<Arc<LinkCaller>>,
}

impl RequestCredentials {
    /// Those of everybody's account.
    pub(super) fn new(credentials: Arc<dyn Credentials>) -> Self {
        Self {
            credentials,
            account: Account::Common,
            memo: None,
            caller: None,
        }
    }

    /// The same with other credentials.
    pub(super) fn with(&self, credentials: Arc<dyn Credentials>) -> Self {
        Self {
            credentials,
            ..self.clone()
        }
    }

    /// The same, for the requests of `owner`; `caller` has the tokens that can be exchanged for those of requests that
    /// belong to no call.
    pub(super) fn on_behalf_of(&self, owner: OwnerKey, caller: Option<&Arc<CallerAccess>>) -> Self {
        let remembers = self.credentials.generation(owner).is_some();
        Self {
            account: self.account_of(owner),
            memo: remembers.then(Arc::default),
            caller: caller.map(|caller| LinkCaller::new(Arc::clone(caller))),
            credentials: Arc::clone(&self.credentials),
        }
    }

    /// The account whose credential requests for `owner` carry.
    pub(in crate::upstream) fn account_of(&self, owner: OwnerKey) -> Account {
        self.credentials.account_of(owner)
    }

    /// The caller of requests that belong to no call, where callers' tokens are exchanged.
    pub(in crate::upstream) fn caller(&self) -> Option<&Arc<LinkCaller>> {
        self.caller.as_ref()
    }

    /// Resolves once requests that belong to no call can have a credential.
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::upstream) async fn caller_ready(&self) {
        if let Some(caller) = &self.caller {
            caller.ready().await;
        }
    }

    /// Resolves when a stream that belongs to no call has to end, as its caller's token has ended.
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::upstream) async fn caller_ended(&self) {
        match &self.caller {
            Some(caller) => caller.ended().await,
            None => std::future::pending().await,
        }
    }

    /// On whose behalf a request goes that belongs to a call of `caller`, or to none. A call that goes on after the end of
    /// its caller's token, such as one that follows a task, uses what a later call has brought.
    pub(super) fn requester(&self, caller: Option<Arc<CallerAccess>>) -> Requester {
        let caller = caller.filter(|caller| self.caller.is_none() || caller.token().is_some());
        let link = self.caller.as_ref();
        Requester {
            account: self.account,
            caller: link.map(|link| caller.unwrap_or_else(|| link.current())),
        }
    }

    /// The credential of a request of `requester`.
    pub(super) fn of(&self, method: &Method, requester: &Requester) -> Credential<'_> {
        if *method == Method::OPTIONS {
            self.credentials.for_check(requester)
        } else if let Some(memo) = &self.memo {
            memo.credential(&*self.credentials, requester)
        } else {
            self.credentials.for_request(requester)
        }
    }

    /// The answer, which says something of the token `used`; an error to make the request again if it is refused and
    /// there is another one by now.
    pub(super) async fn answered(
        &self,
        requester: &Requester,
        used: Arc<HeldToken>,
        answer: Response<UpstreamBody>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let status = answer.status();
        if status.is_success() {
            self.credentials.accepted(self.account, used).await;
            return Ok(answer);
        }
        if let Some(memo) = &self.memo {
            memo.forget();
        }
        let challenge = Challenge::of(answer.headers());
        let renewal = self.credentials.refused(requester, used, status, challenge);
        match renewal.await? {
            Renewal::Renewed => Err(ExchangeError::renewed(status)),
            Renewal::Stands => Ok(answer),
        }
    }
}

/// Whether a status says something of the credential: a refusal, or that one on trial is good.
pub(super) fn is_telling(used: &HeldToken, status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        || used.is_on_trial() && status.is_success()
}
