//! `TokenSource`: the token of one account, held, refreshed ahead, and asked for once however many calls wait.
//!
//! A call reads the token that is held. Only without one that is good it waits: for the one request under way, which
//! goes on whatever becomes of the calls that wait for it. Failures are remembered for a moment, so that no call asks a
//! server that has just failed.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;

use super::account::{Obtained, UpstreamAccount};
use super::challenge::Challenge;
use super::failure::TokenFailure;
use crate::lock::lock;

/// The part of its life after which a token is refreshed, and how far chance moves that.
const REFRESH_AT: f64 = 0.8;
const SPREAD: f64 = 0.1;
/// A token is not used this long before its end, nor in the last tenth of a shorter life.
const MARGIN: Duration = Duration::from_secs(10);
/// Pauses after failures that may pass: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(15);
/// The pause after a failure that somebody has to solve.
const PAUSE_REFUSED: Duration = Duration::from_secs(15);
/// How often a refusal of the upstream makes for another token.
const FORCED_EVERY: Duration = Duration::from_mins(1);
/// How often scopes are added. Spec: SPEC B-11
const MOST_STEP_UPS: u32 = 3;

/// A token in the headers that carry it.
#[derive(Debug)]
pub struct HeldToken {
    headers: HeaderMap,
    /// Scopes that were asked for.
    scopes: Vec<String>,
    refresh_at: Option<Instant>,
    ends: Option<Instant>,
}

/// What the answer to a request means for its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// There is another token: the request, which has not run, is to be made again.
    Renewed,
    /// The answer stands.
    Stands,
}

type Outcome = Result<Arc<HeldToken>, TokenFailure>;

/// The source of one account's tokens.
#[derive(Debug)]
pub struct TokenSource {
    account: Arc<UpstreamAccount>,
    held: RwLock<Option<Arc<HeldToken>>>,
    state: Mutex<SourceState>,
}

#[derive(Debug, Default)]
struct SourceState {
    /// The request under way.
    running: Option<watch::Receiver<Option<Outcome>>>,
    /// The last failure, and until when it is the answer.
    failure: Option<(TokenFailure, Instant)>,
    failures: u32,
    /// When the upstream last refused a token and another one was asked for.
    forced: Option<Instant>,
    /// Scopes that the upstream asked for beyond the first ones.
    further: Vec<String>,
    step_ups: u32,
}

impl HeldToken {
    /// The headers of a request.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// A credential without an end.
    #[must_use]
    pub fn lasting(headers: HeaderMap) -> Self {
        Self {
            headers,
            scopes: Vec::new(),
            refresh_at: None,
            ends: None,
        }
    }

    fn new(headers: HeaderMap, scopes: Vec<String>, lasts: Option<Duration>) -> Self {
        let now = Instant::now();
        let chance = rand::random_range(1.0 - SPREAD..=1.0 + SPREAD);
        let refresh_at = lasts.map(|lasts| now + lasts.mul_f64(REFRESH_AT * chance));
        let ends = lasts.map(|lasts| now + lasts.saturating_sub(MARGIN.min(lasts / 10)));
        Self {
            headers,
            scopes,
            refresh_at,
            ends,
        }
    }
}

impl TokenSource {
    /// A source that has asked for nothing yet.
    #[must_use]
    pub fn new(account: Arc<UpstreamAccount>) -> Arc<Self> {
        Arc::new(Self {
            account,
            held: RwLock::default(),
            state: Mutex::default(),
        })
    }

    /// The token, if a good one is held. One that ends soon is refreshed in the background.
    #[must_use]
    pub fn held(self: &Arc<Self>) -> Option<Arc<HeldToken>> {
        let token = self.snapshot()?;
        if let Some(refresh_at) = token.refresh_at {
            let now = Instant::now();
            if token.ends.is_some_and(|ends| now >= ends) {
                return None;
            }
            if now >= refresh_at {
                self.refresh();
            }
        }
        Some(token)
    }

    /// The token, asked for if none is held.
    ///
    /// # Errors
    /// Why there is none. For a moment after a failure it is the answer, and nobody is asked.
    ///
    /// # Cancel safety
    /// Dropping the future abandons nothing: the request goes on.
    pub async fn token(self: Arc<Self>) -> Result<Arc<HeldToken>, TokenFailure> {
        if let Some(token) = self.held() {
            return Ok(token);
        }
        let running = self.begin()?;
        wait(running).await
    }

    /// What to do about an answer to a request that carried `used`. A 401 makes for another token once a minute at
    /// most; a 403 that names scopes for one with these, three times.
    ///
    /// # Errors
    /// There is no other token.
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
        let is_current = |held: &Arc<HeldToken>| Arc::ptr_eq(held, &used);
        if self.held().is_some_and(|held| !is_current(&held)) {
            return Ok(Renewal::Renewed);
        }
        let running = match status {
            StatusCode::UNAUTHORIZED => self.replace(&used),
            _ => self.step_up(&used, &challenge),
        };
        let Some(running) = running else {
            self.account.refused(status.as_u16());
            return Ok(Renewal::Stands);
        };
        match wait(running).await {
            Ok(_) => Ok(Renewal::Renewed),
            // The token that is held is still good for other calls.
            Err(_) if status == StatusCode::FORBIDDEN => Ok(Renewal::Stands),
            Err(failure) => Err(failure),
        }
    }

    fn snapshot(&self) -> Option<Arc<HeldToken>> {
        self.held
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn hold(&self, token: Option<Arc<HeldToken>>) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Begins a refresh, unless one is under way or failed a moment ago.
    fn refresh(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.current_failure().is_none() {
            drop(self.start(&mut state));
        }
    }

    fn begin(self: &Arc<Self>) -> Result<watch::Receiver<Option<Outcome>>, TokenFailure> {
        let mut state = lock(&self.state);
        match state.current_failure() {
            Some(failure) if state.running.is_none() => Err(failure.clone()),
            _ => Ok(self.start(&mut state)),
        }
    }

    /// Asks for another token than `used`; `None` if that was done within a minute.
    fn replace(
        self: &Arc<Self>,
        used: &Arc<HeldToken>,
    ) -> Option<watch::Receiver<Option<Outcome>>> {
        let mut state = lock(&self.state);
        if let Some(running) = &state.running {
            return Some(running.clone());
        }
        if state.forced.is_some_and(|at| at.elapsed() < FORCED_EVERY) {
            return None;
        }
        state.forced = Some(Instant::now());
        if self.snapshot().is_some_and(|held| Arc::ptr_eq(&held, used)) {
            self.hold(None);
        }
        // The upstream may have another authorization server by now.
        self.account.forget();
        Some(self.start(&mut state))
    }

    /// Asks for a token with the scopes of `challenge` too; `None` where it would be the same one.
    fn step_up(
        self: &Arc<Self>,
        used: &Arc<HeldToken>,
        challenge: &Challenge,
    ) -> Option<watch::Receiver<Option<Outcome>>> {
        let mut state = lock(&self.state);
        let is_fixed = !self.account.config.scopes.is_empty();
        let wanted = challenge
            .scopes
            .iter()
            .filter(|scope| !used.scopes.contains(scope));
        let wanted: Vec<String> = wanted.cloned().collect();
        if is_fixed
            || wanted.is_empty()
            || state.step_ups >= MOST_STEP_UPS
            || !challenge.asks_for_scopes(StatusCode::FORBIDDEN)
        {
            return None;
        }
        state.step_ups += 1;
        for scope in wanted {
            if !state.further.contains(&scope) {
                state.further.push(scope);
            }
        }
        Some(self.start(&mut state))
    }

    fn start(self: &Arc<Self>, state: &mut SourceState) -> watch::Receiver<Option<Outcome>> {
        if let Some(running) = &state.running
            && running.has_changed().is_ok()
        {
            return running.clone();
        }
        let (told, running) = watch::channel(None);
        state.running = Some(running.clone());
        let source = Arc::clone(self);
        self.account.tasks.spawn_service(async move {
            let outcome = source.ask().await;
            told.send_replace(Some(outcome));
        });
        running
    }

    /// Asks for a token, and keeps it or why there is none.
    async fn ask(&self) -> Outcome {
        let mut further = lock(&self.state).further.clone();
        let outcome = loop {
            match self.account.obtain(&further).await {
                // Without the scopes that the server does not know or grant.
                Err(failure) if failure.outcome == "invalid_scope" && !further.is_empty() => {
                    further.clear();
                    lock(&self.state).further.clear();
                }
                outcome => break outcome,
            }
        };
        let outcome = outcome.and_then(|obtained| self.made(obtained));
        let mut state = lock(&self.state);
        state.running = None;
        match &outcome {
            Ok(token) => {
                state.failure = None;
                state.failures = 0;
                self.hold(Some(Arc::clone(token)));
            }
            Err(failure) => {
                let pause = pause(failure, state.failures);
                state.failures = state.failures.saturating_add(1);
                state.failure = Some((failure.clone(), Instant::now() + pause));
            }
        }
        outcome
    }

    fn made(&self, obtained: Obtained) -> Outcome {
        let headers = self.account.headers(&obtained.issued.token);
        let headers = headers.ok_or_else(TokenFailure::unsendable)?;
        let token = HeldToken::new(headers, obtained.scopes, obtained.issued.lasts);
        Ok(Arc::new(token))
    }
}

impl SourceState {
    fn current_failure(&self) -> Option<&TokenFailure> {
        let (failure, until) = self.failure.as_ref()?;
        (Instant::now() < *until).then_some(failure)
    }
}

/// How long a failure is the answer, after `before` others in a row.
fn pause(failure: &TokenFailure, before: u32) -> Duration {
    if !failure.may_pass {
        return PAUSE_REFUSED;
    }
    let doubled = PAUSE_FIRST.saturating_mul(1 << before.min(10));
    failure
        .retry_after
        .unwrap_or_default()
        .max(doubled.min(PAUSE_LONGEST))
}

async fn wait(mut running: watch::Receiver<Option<Outcome>>) -> Outcome {
    let told = running.wait_for(Option::is_some).await;
    // The task is dropped at a stop alone.
    let outcome = told.ok().and_then(|told| told.clone());
    outcome.unwrap_or_else(|| Err(TokenFailure::stopping()))
}
