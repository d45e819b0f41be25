//! Calls of callers without an account at the upstream: the user is asked to connect one, and the call goes on when it
//! is there. Spec: BRIDGING §3; SPEC C-82, C-83, C-85.

mod asked_consent;
mod open;
mod parts;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::{Receiver, error::RecvError};

use self::asked_consent::AskedConsent;
use self::open::{ConnectQuestion, TurnEnd};
pub(super) use self::parts::ConsentParts;
use super::forward::ForwardParts;
use super::program_use::{client_info, own_program, program_name};
use crate::audit::{AccountEvent, AccountRecord, AuditOutcome, PendingRecord};
use crate::call::{Call, Reply};
use crate::catalog::AccountlessList;
use crate::consent::{ConsentLink, consent_url};
use crate::fault::{Fault, FaultKind};
use crate::grants::TokenFailure;
use crate::outbound::{RelayFailure, UpstreamTarget, given_cursor, invalid, tool_failure};
use crate::protocol::error_codes::URL_ELICITATION_REQUIRED;
use crate::protocol::methods::{ListKind, lookup, may_ask};
use crate::protocol::{Era, content, json, rpc};
use crate::session::Session;
use crate::telemetry::metrics::LABELED;
use crate::upstream::AccountState;
use crate::vault::{GrantKey, Vault};

/// How a request goes on.
pub(super) enum ConsentEnd {
    /// With the account of the connection of this number.
    Connected(i64),
    /// By this reply: the caller has no account, and gets none in time.
    Replied(Reply),
}

/// A request to an upstream where callers have accounts of their own.
pub(super) struct Consent<'a> {
    pub(super) parts: &'a ForwardParts,
    pub(super) call: &'a Call,
    pub(super) session: &'a Arc<Session>,
    pub(super) target: &'a UpstreamTarget,
    /// Number of the connection that the upstream wants more of.
    pub(super) insufficient: Option<i64>,
}

impl Consent<'_> {
    /// Answers a call of the gateway's own tool, which connects an account.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    ///
    /// # Cancel safety
    /// As [`ask`](Self::ask).
    pub(super) async fn connect(&self) -> Result<Reply, RelayFailure> {
        if let ConsentEnd::Replied(reply) = self.ask().await? {
            return Ok(reply);
        }
        self.audit().end(AuditOutcome::Ok);
        let text = format!(
            "\"{}\" is connected. List the tools again.",
            self.target.upstream
        );
        let result = json::object([("content", content::text_content(&text))]);
        Ok(self.authored(result))
    }

    /// Waits for an account of the caller at the upstream, where there is none.
    ///
    /// # Errors
    /// The link to the page, in words for the client; or the database fails.
    ///
    /// # Cancel safety
    /// The question is withdrawn; what the user does on the page goes on.
    pub(super) async fn ask(&self) -> Result<ConsentEnd, RelayFailure> {
        if let Some(connection) = self.connection().await? {
            return Ok(ConsentEnd::Connected(connection));
        }
        // Looked at once more behind the subscription, which most calls do without: no change in between is missed.
        let vault = self.parts.consents.vault.as_ref();
        let mut changes = vault.map(Vault::changes);
        if let Some(connection) = self.connection().await? {
            return Ok(ConsentEnd::Connected(connection));
        }
        let method = self.call.message.method().unwrap_or_default();
        if let Some(kind) = lookup(method).and_then(|known| known.list) {
            return self.listed(kind).await.map(ConsentEnd::Replied);
        }
        let question = self.question();
        let asked = match &mut changes {
            Some(changes) => self.asked(&question, changes).await?,
            None => AskedConsent::Ended,
        };
        let (reply, outcome) = match asked {
            // The call is audited as it goes on.
            AskedConsent::Connected(connection) => return Ok(ConsentEnd::Connected(connection)),
            AskedConsent::Suspended(result) => (Ok(Reply::Result(result)), AuditOutcome::Ok),
            AskedConsent::Declined => {
                LABELED.consents_refused.add(&self.target.upstream, 1);
                self.audit_declined();
                (self.in_words(&question.url), AuditOutcome::Failed)
            }
            AskedConsent::Ended => match self.required(&question) {
                Some(reply) => (Ok(reply), AuditOutcome::Failed),
                None => (self.in_words(&question.url), AuditOutcome::Failed),
            },
        };
        self.audit().end(outcome);
        Ok(ConsentEnd::Replied(reply?))
    }

    fn audit(&self) -> PendingRecord<'_> {
        self.parts.policy.audit(self.call, self.target)
    }

    fn audit_declined(&self) {
        let (owner, upstream) = (self.session.owner(), &self.target.upstream);
        let record = AccountRecord::new(AccountEvent::Refused, owner, upstream);
        let record = record.of_call(self.call).program(Some(&self.program()));
        let record = record.reason(AuditOutcome::Denied, "declined");
        self.parts.policy.audit_account(record);
    }

    /// The name that the calling program gives itself.
    fn program(&self) -> Cow<'_, str> {
        program_name(client_info(self.call, self.session))
    }

    /// Notes that the program of the call uses the account of the connection of this number. Its next calls go on without
    /// a look-up, as long as nothing changes.
    pub(super) fn note_use(&self, connection: i64) {
        let upstreams = &*self.parts.links.upstreams;
        let upstream = &*self.target.upstream;
        let noted = self.parts.consents.uses.as_ref().is_none_or(|uses| {
            let (used, by) = ((upstreams, upstream), (self.call, &**self.session));
            uses.note(by, used, connection)
        });
        let check = upstreams
            .caller_accounts()
            .check(upstream, self.session.owner());
        if let Some(check) = check.filter(|check| noted && check.connection() == connection) {
            let program = own_program(self.call);
            self.session.links().set_checked(upstream, check, program);
        }
    }

    /// The number of the connection that the request can use; `None` where the caller has to connect first.
    async fn connection(&self) -> Result<Option<i64>, Fault> {
        let upstreams = &self.parts.links.upstreams;
        let state = upstreams
            .caller_accounts()
            .state(&self.target.upstream, self.session.owner());
        let state = state.await.map_err(|failure| self.unknown(failure))?;
        Ok(match state {
            // Callers have no accounts of their own there.
            None => Some(0),
            Some(AccountState::Connected(number)) if Some(number) != self.insufficient => {
                Some(number)
            }
            Some(_) => None,
        })
    }

    fn unknown(&self, failure: TokenFailure) -> Fault {
        let text = format!(
            "upstream \"{}\" is not available: {failure}",
            self.target.upstream
        );
        Fault::upstream(FaultKind::UpstreamUnavailable, text).caused_by(failure)
    }

    /// Whether the client can be shown a URL.
    fn shows_urls(&self) -> bool {
        let method = self.call.message.method().unwrap_or_default();
        let capabilities = self.call.link.capabilities();
        may_ask(method) && capabilities.allows("elicitation/create", true)
    }

    async fn asked(
        &self,
        question: &ConnectQuestion,
        changes: &mut Receiver<GrantKey>,
    ) -> Result<AskedConsent, Fault> {
        if !self.shows_urls() {
            return Ok(AskedConsent::Ended);
        }
        let wait = self.parts.consents.wait;
        if self.call.revision.era() == Era::Modern {
            // The client comes again when it likes; only then the wait begins.
            let asking = self.call.link.ask(question.round());
            return match AskedConsent::of(asking.await) {
                Some(ended) => Ok(ended),
                None => within(wait, self.connected(changes)).await,
            };
        }
        let ended = within(wait, self.asked_in_turn(question, changes)).await?;
        if matches!(ended, AskedConsent::Connected(_)) {
            let open = &self.parts.consents.open;
            let finished = open.finish(self.session.key(), &self.target.upstream, false);
            if let Some(complete) = finished.and_then(|finished| finished.complete()) {
                self.call.link.notify(complete);
            }
        }
        Ok(ended)
    }

    /// Puts the question to the client, or waits for the call that has put it.
    async fn asked_in_turn(
        &self,
        question: &ConnectQuestion,
        changes: &mut Receiver<GrantKey>,
    ) -> Result<AskedConsent, Fault> {
        let mut turns = question.turns();
        let mut connected = pin!(self.connected(changes));
        let mut turn = loop {
            if let Some(turn) = question.begin() {
                break turn;
            }
            tokio::select! {
                biased;
                connected = &mut connected => return connected,
                Ok(()) = turns.changed() => {
                    let end = *turns.borrow_and_update();
                    match end {
                        TurnEnd::Over => {}
                        TurnEnd::Declined => return Ok(AskedConsent::Declined),
                        // This call finds out a moment later.
                        TurnEnd::Connected => return connected.await,
                    }
                }
            }
        };
        let asked = async {
            match AskedConsent::of(self.call.link.ask(question.round()).await) {
                Some(ended) => ended,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            connected = connected => connected?,
            asked = asked => asked,
        };
        turn.end = match ended {
            AskedConsent::Connected(_) => TurnEnd::Connected,
            AskedConsent::Declined => TurnEnd::Declined,
            AskedConsent::Suspended(_) | AskedConsent::Ended => TurnEnd::Over,
        };
        Ok(ended)
    }

    /// Waits until the account is there.
    async fn connected(&self, changes: &mut Receiver<GrantKey>) -> Result<AskedConsent, Fault> {
        loop {
            if let Some(connection) = self.connection().await? {
                return Ok(AskedConsent::Connected(connection));
            }
            match changes.recv().await {
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(AskedConsent::Ended),
            }
        }
    }

    /// The link in an error that the client knows how to show. Spec: SPEC C-83
    fn required(&self, question: &ConnectQuestion) -> Option<Reply> {
        if !self.shows_urls() || self.call.revision.era() == Era::Modern {
            return None;
        }
        let data = json::object([("elicitations", json::array([question.params()]))]);
        let error = rpc::error(URL_ELICITATION_REQUIRED, &question.message, Some(&data));
        Some(Reply::Error(error.into()))
    }

    /// The link in words: of a tool for its model, else in an error.
    fn in_words(&self, url: &str) -> Result<Reply, Fault> {
        let upstream = &self.target.upstream;
        let text = format!(
            "upstream \"{upstream}\" needs an account of the user: ask the user to open {url} in a browser and to \
             connect one there, then call again"
        );
        if self.call.message.method() == Some("tools/call") {
            let source = self.parts.sources.of(self.call, None, &self.target.view);
            return Ok(tool_failure(self.call, &source, &text));
        }
        Err(Fault::downstream(FaultKind::CannotAsk, text))
    }

    /// The open question of the session.
    fn question(&self) -> Arc<ConnectQuestion> {
        let (consents, upstream) = (&self.parts.consents, &self.target.upstream);
        consents.open.of(self.session.key(), upstream, || {
            let owner = self.session.owner();
            let accounts = self.parts.links.upstreams.caller_accounts();
            let link = ConsentLink {
                owner,
                program: self.program().into_owned(),
                lacking: accounts.wants_more(upstream, owner),
            };
            let sealing = (&*consents.sealer, &consents.clock);
            let is_told = self.shows_urls() && self.call.revision.era() == Era::Legacy;
            let chance = rand::random::<u128>();
            ConnectQuestion::new(
                consent_url(sealing, &consents.public_url, upstream, &link),
                format!("\"{upstream}\" needs an account of yours. Connect it on this page."),
                // Spec: SPEC C-82
                is_told.then(|| format!("connect-{chance:032x}")),
            )
        })
    }

    /// The list of a pure endpoint: what the upstream listed before, or the tool with which a model can begin.
    async fn listed(&self, kind: ListKind) -> Result<Reply, RelayFailure> {
        if given_cursor(&self.call.message).is_some() {
            return Err(invalid("unknown cursor, list again from the start").into());
        }
        let audited = self.audit();
        let (parts, upstream) = (self.parts, &self.target.upstream);
        let lists = &parts.catalog.without_account;
        let list = match self.insufficient {
            None => lists.list(self.session, upstream, kind).await,
            Some(_) => Some(lists.stand_in(self.session, upstream, kind).await),
        };
        let reply = match list {
            Some(AccountlessList::Last(declared, message)) => {
                let source = parts
                    .sources
                    .of(self.call, Some(declared), &self.target.view);
                let reply = Reply::Relayed(message);
                parts
                    .replies
                    .bring_back(self.call, self.target, &source, reply)?
            }
            Some(AccountlessList::Own(tool)) => {
                self.authored(json::object([(kind.member(), json::array(tool))]))
            }
            // Connected just now: its notice tells the client to list again.
            None => self.authored(json::object([(kind.member(), "[]")])),
        };
        audited.end(AuditOutcome::Ok);
        Ok(reply)
    }

    fn authored(&self, result: String) -> Reply {
        let source = self.parts.sources.of(self.call, None, &self.target.view);
        let result = source
            .projection
            .authored(result, &source.origin(self.call));
        Reply::Result(result.into())
    }
}

async fn within(
    wait: Duration,
    consent: impl Future<Output = Result<AskedConsent, Fault>>,
) -> Result<AskedConsent, Fault> {
    let ended = tokio::time::timeout(wait, consent).await;
    ended.unwrap_or(Ok(AskedConsent::Ended))
}
