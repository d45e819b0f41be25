//! `TokenSource`: the token of one account or caller: cached, refreshed ahead, and requested once however many calls
//! wait.
//!
//! A call reads the cached token. Without a valid token it waits for the single request under way, which runs on even
//! if the waiting calls end. Failures are cached for a few seconds, so that calls do not flood a server that has just
//! failed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::account::{ObtainedToken, UpstreamAccount};
use super::challenge::Challenge;
use super::failure::TokenFailure;
use super::held_token::{HeldToken, NEXT_WITHIN};
use super::identity_assertion::IdentityProvider;
use super::source_owner::SourceOwner;
use super::source_state::{Outcome, PendingToken, SourceState, pause};
use super::token_subject::{TokenSubject, WantedToken};
use crate::call::{CallerAccess, CallerToken, OwnerKey};
use crate::lock::lock;
use crate::telemetry::request_tag;
use crate::telemetry::trace;

/// What the answer to a request means for the token that it carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Another token is there: send the request again, which has not run.
    Renewed,
    /// The answer is final: pass it on.
    Stands,
}

/// The source of one account's tokens.
#[derive(Debug)]
pub struct TokenSource {
    account: Arc<UpstreamAccount>,
    owner: SourceOwner,
    held: RwLock<Option<Arc<HeldToken>>>,
    state: Mutex<SourceState>,
}

/// How to replace a refused token.
#[derive(Debug)]
enum Replacement {
    /// Wait for the request under way.
    Wait(PendingToken),
    /// Another token is already cached.
    Held,
    /// Another token was refused less than a minute ago.
    TooSoon,
}

impl TokenSource {
    /// A source for the gateway's own account. Sends no request yet.
    #[must_use]
    pub fn new(account: Arc<UpstreamAccount>) -> Arc<Self> {
        Self::of(account, SourceOwner::Gateway)
    }

    /// A source that exchanges the tokens of `caller`. Sends no request yet.
    #[must_use]
    pub fn of_caller(account: Arc<UpstreamAccount>, caller: Arc<CallerAccess>) -> Arc<Self> {
        Self::of(account, SourceOwner::Caller(caller))
    }

    /// A source of tokens of `person`, whose identity `provider` asserts. Sends no request yet.
    #[must_use]
    pub fn of_person(
        account: Arc<UpstreamAccount>,
        provider: Arc<IdentityProvider>,
        person: OwnerKey,
    ) -> Arc<Self> {
        Self::of(account, SourceOwner::Person(provider, person))
    }

    fn of(account: Arc<UpstreamAccount>, owner: SourceOwner) -> Arc<Self> {
        Arc::new(Self {
            account,
            owner,
            held: RwLock::default(),
            state: Mutex::default(),
        })
    }

    /// The cached token, unless it has expired. Starts a refresh in the background when one is due.
    #[must_use]
    pub fn held(self: &Arc<Self>) -> Option<Arc<HeldToken>> {
        let token = self.good()?;
        if self.is_due(&token) {
            self.refresh();
        }
        Some(token)
    }

    /// The token, requested if none is cached.
    ///
    /// # Errors
    /// Why there is none. A failure is cached for 0.5 to 15 s, longer where the server says so.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    pub async fn token(self: Arc<Self>) -> Result<Arc<HeldToken>, TokenFailure> {
        if let Some(token) = self.held() {
            return Ok(token);
        }
        match self.begin()? {
            Ok(token) => Ok(token),
            Err(running) => self.wait(running).await,
        }
    }

    /// The token for a child, which cannot get another one later. Waits 5 s at most for the token that is being requested in
    /// place of `due`, and returns `due` where none comes.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    pub async fn next(&self, due: Arc<HeldToken>) -> Arc<HeldToken> {
        let running = lock(&self.state).running();
        let Some(running) = running else {
            return self.good().unwrap_or(due);
        };
        match timeout(NEXT_WITHIN, self.wait(running)).await {
            Ok(Ok(next)) => next,
            Ok(Err(_)) | Err(_) => due,
        }
    }

    /// Decides about an answer to a request that carried `used`. A 401 causes another token request, once a minute at
    /// most; a 403 that names scopes causes a request with these, three times for the same scopes.
    ///
    /// # Errors
    /// No other token can be had.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    // Spec: SPEC B-11
    pub async fn answered(
        self: Arc<Self>,
        used: Arc<HeldToken>,
        status: StatusCode,
        challenge: Challenge,
    ) -> Result<Renewal, TokenFailure> {
        if self.held().is_some_and(|held| !Arc::ptr_eq(&held, &used)) {
            return Ok(Renewal::Renewed);
        }
        let renewal = if status == StatusCode::UNAUTHORIZED {
            match self.replace(&used)? {
                Replacement::Wait(running) => {
                    self.wait(running).await?;
                    Renewal::Renewed
                }
                Replacement::Held => Renewal::Renewed,
                Replacement::TooSoon => Renewal::Stands,
            }
        } else {
            self.step_up(&used, &challenge).await
        };
        if renewal == Renewal::Stands {
            self.account.refused(status.as_u16());
        }
        Ok(renewal)
    }

    /// Whether a refresh is due and would give a token that lasts longer.
    fn is_due(&self, token: &HeldToken) -> bool {
        token.is_due() && self.owner.can_outlast(token)
    }

    /// The cached token, unless it has expired.
    fn good(&self) -> Option<Arc<HeldToken>> {
        self.snapshot().filter(|token| !token.has_ended())
    }

    fn snapshot(&self) -> Option<Arc<HeldToken>> {
        self.held
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn hold(&self, token: &Arc<HeldToken>) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(token));
        self.account.count_token();
    }

    /// Starts a refresh, unless one is under way, failed a moment ago, or has just ended.
    fn refresh(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let is_due = self.snapshot().is_none_or(|token| self.is_due(&token));
        if is_due && state.current_failure(self.owner.subject_number()).is_none() {
            drop(self.start(&mut state));
        }
    }

    /// `Err` with the request to wait for; `Ok` where one has just ended with a token.
    fn begin(self: &Arc<Self>) -> Result<Result<Arc<HeldToken>, PendingToken>, TokenFailure> {
        let mut state = lock(&self.state);
        if let Some(token) = self.good() {
            return Ok(Ok(token));
        }
        match state.current_failure(self.owner.subject_number()) {
            Some(failure) if state.running().is_none() => Err(failure.clone()),
            _ => Ok(Err(self.start(&mut state))),
        }
    }

    /// Requests another token than `used`. Other calls go on with `used` until the new token arrives.
    fn replace(self: &Arc<Self>, used: &Arc<HeldToken>) -> Result<Replacement, TokenFailure> {
        let mut state = lock(&self.state);
        if self.good().is_some_and(|held| !Arc::ptr_eq(&held, used)) {
            return Ok(Replacement::Held);
        }
        if let Some(running) = state.running() {
            return Ok(Replacement::Wait(running));
        }
        if let Some(failure) = state.current_failure(self.owner.subject_number()) {
            return Err(failure.clone());
        }
        if state.was_forced() {
            return Ok(Replacement::TooSoon);
        }
        state.forced = Some(Instant::now());
        // The upstream may have changed its authorization server.
        match &self.owner {
            SourceOwner::Gateway => self.account.forget(),
            SourceOwner::Caller(_) | SourceOwner::Person(..) => self.account.forget_old(),
        }
        Ok(Replacement::Wait(self.start(&mut state)))
    }

    /// Requests a token with the scopes of `challenge` added, unless that would bring the same one.
    async fn step_up(self: &Arc<Self>, used: &HeldToken, challenge: &Challenge) -> Renewal {
        let Some(wanted) = self.add_scopes(used, challenge) else {
            return Renewal::Stands;
        };
        // Twice, since the request under way may have started without these scopes.
        for _ in 0..2 {
            let running = self.start(&mut lock(&self.state));
            let Ok(token) = self.wait(running).await else {
                // The cached token stays valid for other calls.
                return Renewal::Stands;
            };
            if wanted.iter().all(|scope| token.scopes.contains(scope)) {
                return Renewal::Renewed;
            }
            let state = lock(&self.state);
            if wanted.iter().any(|scope| state.refused.contains(scope)) {
                return Renewal::Stands;
            }
        }
        Renewal::Stands
    }

    /// Adds the scopes of `challenge` that `used` lacks to the next request; `None` where there are none to request.
    fn add_scopes(&self, used: &HeldToken, challenge: &Challenge) -> Option<BTreeSet<String>> {
        let is_fixed = !self.account.config.scopes.is_empty();
        if is_fixed || !challenge.asks_for_scopes(StatusCode::FORBIDDEN) {
            return None;
        }
        let mut state = lock(&self.state);
        let wanted = challenge.scopes.iter();
        let wanted = wanted.filter(|scope| !used.scopes.contains(scope));
        let wanted: BTreeSet<String> = wanted.cloned().collect();
        let subject = self.owner.subject_number();
        let has_failed = state.current_failure(subject).is_some() && state.running().is_none();
        if has_failed || wanted.is_empty() || !state.refused.is_disjoint(&wanted) {
            return None;
        }
        state.count_step_up(&wanted)?;
        for scope in &wanted {
            if !state.further.contains(scope) && !state.adding.contains(scope) {
                state.adding.push(scope.clone());
            }
        }
        Some(wanted)
    }

    fn start(self: &Arc<Self>, state: &mut SourceState) -> PendingToken {
        if let Some(running) = state.running() {
            return running;
        }
        let (told, running) = watch::channel(None);
        state.running = Some(running.clone());
        let source = Arc::clone(self);
        let asked = trace::keep(async move {
            let outcome = source.ask().await;
            told.send_replace(Some(outcome));
        });
        // A service, which a drain does not wait for: the calls that need the token keep the drain waiting, and a
        // refresh ahead may be lost.
        self.account.tasks.spawn_service(request_tag::keep(asked));
        running
    }

    /// Requests a token, and caches the token or the failure.
    async fn ask(&self) -> Outcome {
        let token = match &self.owner {
            SourceOwner::Gateway | SourceOwner::Person(..) => None,
            SourceOwner::Caller(caller) => {
                let Some(token) = caller.token() else {
                    lock(&self.state).running = None;
                    return Err(TokenFailure::caller_token_ended());
                };
                Some(token)
            }
        };
        let subject = match (&self.owner, &token) {
            (SourceOwner::Caller(caller), Some(token)) => TokenSubject::Caller(caller, token),
            (SourceOwner::Person(provider, person), _) => TokenSubject::Person(provider, *person),
            (SourceOwner::Gateway | SourceOwner::Caller(_), _) => TokenSubject::Gateway,
        };
        let outcome = self.obtain(subject).await;
        let subject = token.map(|token| token.number);
        let mut state = lock(&self.state);
        state.running = None;
        match &outcome {
            Ok(token) => {
                state.failure = None;
                state.failures = 0;
                self.hold(token);
            }
            Err(failure) => {
                let pause = pause(failure, state.failures);
                state.failures = state.failures.saturating_add(1);
                state.failure = Some((failure.clone(), Instant::now() + pause, subject));
                // The refused token is still cached: allow its replacement after the pause.
                state.forced = None;
            }
        }
        outcome
    }

    async fn obtain(&self, subject: TokenSubject<'_>) -> Outcome {
        loop {
            let (further, adding) = {
                let state = lock(&self.state);
                (state.further.clone(), state.adding.clone())
            };
            let all: Vec<String> = further.iter().chain(&adding).cloned().collect();
            let wanted = WantedToken {
                further: &all,
                subject,
            };
            match self.account.obtain(wanted).await {
                Ok(obtained) => {
                    lock(&self.state).granted(&adding);
                    return self.made(obtained, subject.token());
                }
                // Retry without the scopes that the server refused.
                Err(failure) if failure.outcome == "invalid_scope" && !all.is_empty() => {
                    let is_step_up = !adding.is_empty();
                    let is_forced = {
                        let mut state = lock(&self.state);
                        state.refuse(if is_step_up { adding } else { further });
                        state.was_forced()
                    };
                    let keeps =
                        |token: &Arc<HeldToken>| is_step_up && !is_forced && !self.is_due(token);
                    if let Some(token) = self.good().filter(keeps) {
                        return Ok(token);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    async fn wait(&self, mut running: PendingToken) -> Outcome {
        let told = running.wait_for(Option::is_some).await;
        let outcome = told.ok().and_then(|told| told.clone());
        outcome.unwrap_or_else(|| {
            Err(if self.account.tasks.stopping().is_cancelled() {
                TokenFailure::stopping()
            } else {
                TokenFailure::unfinished()
            })
        })
    }

    fn made(&self, obtained: ObtainedToken, subject: Option<&CallerToken>) -> Outcome {
        let placed = self.account.placed(&obtained.issued.token);
        let placed = placed.ok_or_else(TokenFailure::unsendable)?;
        let token = HeldToken::new(placed, obtained.scopes, obtained.issued.lasts, subject);
        Ok(Arc::new(token))
    }
}
