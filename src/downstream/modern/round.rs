//! Rounds of a parked call. Questions are sent together as `input_required`; a retry brings answers and takes the call
//! over; a client that never retries loses the call after a deadline. Spec: BRIDGING §3.1; SPEC M-64 to M-69.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::answers;
use super::link::{ExchangeOutcome, ExchangePreferences, ModernClientLink, TakeoverState};
use super::parking::ParkingPermit;
use super::request_state::{LIFE, RequestState};
use super::response_queue::ResponseQueue;
use super::url_elicitations::UrlElicitations;
use crate::call::{InputOutcome, InputRequest, InputResponse};
use crate::downstream::access_log::AccessRecord;
use crate::sync::on_drop::OnDrop;
use crate::telemetry::metrics::{COUNTERS, GAUGES, GaugeGuard};
use crate::translate::answer_validation::is_answered_by;

/// How long a question waits for further ones, to share a round.
const WINDOW: Duration = Duration::from_millis(25);
/// Rounds of one call.
const MAX_ROUNDS: u16 = 10;
/// How long an upstream may take to finish after its question got no answer.
const MOMENT: Duration = Duration::from_secs(2);

/// Progress of a call through its rounds.
#[derive(Debug)]
pub(super) enum RoundStage {
    /// An exchange waits for the call.
    Awaited(Arc<ResponseQueue<ExchangeOutcome>>),
    /// The client was told to retry.
    Waiting,
    /// The call finished while waiting: the outcome is for the retry.
    Finished(Box<ExchangeOutcome>),
    /// No retry is accepted any more.
    Over,
}

/// The questions of a call.
#[derive(Debug, Default)]
pub(super) struct InputRounds {
    /// Open questions by number; a number is reused only for the same page.
    open: BTreeMap<u64, OpenRequest>,
    pages: UrlElicitations,
    last: u64,
    round: u16,
    place: Option<ParkingPermit<ModernClientLink>>,
}

#[derive(Debug)]
struct OpenRequest {
    question: InputRequest,
    answer: oneshot::Sender<Result<InputResponse, CannotAsk>>,
    _counted: GaugeGuard,
}

/// A question and the client's answer.
#[derive(Debug)]
struct AnsweredRequest {
    number: u64,
    question: InputRequest,
    answer: Bytes,
}

impl AnsweredRequest {
    /// Whether the answer fits the question; a misfit is ignored (SPEC M-65).
    fn fits(&self) -> bool {
        let text = std::str::from_utf8(&self.answer);
        text.is_ok_and(|text| is_answered_by(&self.question, text))
    }
}

/// The client cannot be asked this question.
#[derive(Debug)]
struct CannotAsk;

impl InputRounds {
    fn ask(
        &mut self,
        question: InputRequest,
    ) -> (u64, oneshot::Receiver<Result<InputResponse, CannotAsk>>) {
        let (answer, receiver) = oneshot::channel();
        let number = self.pages.number(&question, self.last + 1);
        self.last = self.last.max(number);
        let question = OpenRequest {
            question,
            answer,
            _counted: GAUGES.questions_open.enter(),
        };
        self.open.insert(number, question);
        (number, receiver)
    }

    /// The open questions that have an answer among `answers`; unknown keys are left (SPEC M-65).
    fn answered(&self, answers: Vec<(String, Bytes)>) -> Vec<AnsweredRequest> {
        let known = |(key, answer): (String, Bytes)| {
            let number = key.strip_prefix('i')?.parse().ok()?;
            // Only the exact key as sent: `i01` would answer question 1 a second time.
            if key != format!("i{number}") {
                return None;
            }
            let question = self.open.get(&number)?.question.clone();
            Some(AnsweredRequest {
                number,
                question,
                answer,
            })
        };
        answers.into_iter().filter_map(known).collect()
    }

    /// Hands out answers.
    fn take(&mut self, answers: Vec<AnsweredRequest>) {
        for AnsweredRequest { number, answer, .. } in answers {
            if let Some(open) = self.open.remove(&number) {
                let answer = InputResponse::Result(answer);
                if answer.is_accepted() {
                    self.pages.agreed(number);
                }
                // The receiver may have been dropped.
                drop(open.answer.send(Ok(answer)));
            }
        }
    }

    /// Fails all open questions: the client cannot be asked.
    fn refuse(&mut self) {
        COUNTERS.questions_refused.add(self.open.len() as u64);
        for open in std::mem::take(&mut self.open).into_values() {
            // The receiver may have been dropped.
            drop(open.answer.send(Err(CannotAsk)));
        }
    }
}

impl ModernClientLink {
    /// Asks by parking the call: waits until a retry brings the answers.
    pub(super) async fn park(&self, entries: Vec<(String, InputRequest)>) -> InputOutcome {
        let mut waiting = Vec::with_capacity(entries.len());
        for (key, question) in entries {
            let mut state = self.lock();
            // `RoundStage::Over`: no retry is accepted, so the question would wait for ever.
            if matches!(state.stage, RoundStage::Over) {
                return InputOutcome::Unanswered;
            }
            let (number, receiver) = state.rounds.ask(question);
            drop(state);
            let withdraw = OnDrop::new(move || self.withdraw(number));
            waiting.push((key, receiver, withdraw));
        }
        tokio::time::sleep(WINDOW).await;
        if self.take_place().await {
            self.put_round();
        }
        let mut answered = Vec::with_capacity(waiting.len());
        for (key, receiver, withdraw) in waiting {
            let answer = match receiver.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(CannotAsk)) => {
                    let why = "too many calls wait for answers, or this one has asked too often";
                    return InputOutcome::CannotAsk(why.to_owned());
                }
                Err(_) => return InputOutcome::Unanswered,
            };
            drop(withdraw);
            answered.push((key, answer));
        }
        InputOutcome::Answered(answered)
    }

    /// Withdraws a question whose asker stops waiting.
    fn withdraw(&self, number: u64) {
        let mut state = self.lock();
        state.rounds.pages.close(number);
        let withdrawn = state.rounds.open.remove(&number);
        drop(state);
        if withdrawn.is_some() {
            COUNTERS.questions_withdrawn.add(1);
        }
    }

    /// Ends the waiting exchange, if any, with all open questions; refuses the questions when the call has asked too
    /// often.
    fn put_round(&self) {
        let mut state = self.lock();
        let RoundStage::Awaited(response_queue) = &state.stage else {
            return;
        };
        let response_queue = Arc::clone(response_queue);
        if state.rounds.open.is_empty() {
            return;
        }
        let place = state.rounds.place.as_ref();
        let Some(key) = place
            .filter(|_| state.rounds.round < MAX_ROUNDS)
            .map(ParkingPermit::key)
        else {
            return state.rounds.refuse();
        };
        state.rounds.round += 1;
        let round = state.rounds.round;
        let life = self.life();
        let owner = self.context.parking.owner;
        let sealed = self.sealed(&RequestState::Parked { owner, key, round }, life);
        let server = self.context.relay.opener.server_info(&self.context.session);
        let open = state.rounds.open.iter();
        let shown = open.map(|(number, open)| (format!("i{number}"), &open.question));
        let result = answers::input_required(shown, &sealed, &server);
        COUNTERS.questions_asked.add(state.rounds.open.len() as u64);
        state.stage = RoundStage::Waiting;
        drop(state);
        response_queue.end(ExchangeOutcome::Parked(result));
        let link = self.me.clone();
        self.context.parking.tasks.spawn_service(async move {
            tokio::time::sleep(life).await;
            if let Some(link) = link.upgrade() {
                link.expire(round).await;
            }
        });
    }

    /// Gives the call its place among the parked ones, if it has none yet; waits for one up to `ask_wait`. Its
    /// questions are refused, and `false` returned, when there is none in time.
    ///
    /// # Cancel safety
    /// The call stops waiting; a further question of it waits in its own right.
    async fn take_place(&self) -> bool {
        // One question waits on behalf of the call: a call takes one place.
        let _turn = self.placing.lock().await;
        {
            let state = self.lock();
            if !matches!(state.stage, RoundStage::Awaited(_)) || state.rounds.place.is_some() {
                return true;
            }
            // Another question waited for the place, and was refused with this one.
            if state.rounds.open.is_empty() {
                return false;
            }
        }
        let Some(me) = self.me.upgrade() else {
            return false;
        };
        let unknown = || Arc::from("");
        let upstream = self.upstream().map_or_else(unknown, Arc::clone);
        let patience = self.context.relay.ask_wait(&upstream).unwrap_or_default();
        let parking = &self.context.parking;
        let caller = (self.context.owner, self.context.connection);
        let place = parking.place(upstream, caller, me, patience).await;
        let mut state = self.lock();
        let Some(place) = place else {
            state.rounds.refuse();
            return false;
        };
        if matches!(state.stage, RoundStage::Awaited(_)) {
            state.rounds.place = Some(place);
            return true;
        }
        drop(state);
        // The call is over: nothing else would release its place.
        drop(place);
        false
    }

    /// Time limit for the client's retry.
    fn life(&self) -> Duration {
        let upstream = self.upstream();
        let patience = upstream.and_then(|upstream| self.context.relay.ask_timeout(upstream));
        patience.unwrap_or(LIFE).min(LIFE)
    }

    /// A retry takes the call over; `false` when the retry does not answer the last round.
    pub(super) fn resume(
        &self,
        round: u16,
        wants: ExchangePreferences,
        answers: Vec<(String, Bytes)>,
        response_queue: &Arc<ResponseQueue<ExchangeOutcome>>,
        record: &AccessRecord,
    ) -> bool {
        let mut answers = {
            let state = self.lock();
            if state.rounds.round != round {
                return false;
            }
            state.rounds.answered(answers)
        };
        // Checking takes as long as the client's answers are large: not under the lock.
        answers.retain(AnsweredRequest::fits);
        let mut state = self.lock();
        if state.rounds.round != round {
            return false;
        }
        match std::mem::replace(&mut state.stage, RoundStage::Over) {
            RoundStage::Waiting => {}
            RoundStage::Finished(outcome) => {
                let place = state.rounds.place.take();
                drop(state);
                drop(place);
                response_queue.end(*outcome);
                return true;
            }
            other => {
                state.stage = other;
                return false;
            }
        }
        state.stage = RoundStage::Awaited(Arc::clone(response_queue));
        state.wants = wants;
        state.record = record.clone();
        if let Some(kept) = state.kept.take()
            && let Some(notice) = self.wanted(&state.wants, kept)
        {
            response_queue.notify(notice);
        }
        state.rounds.take(answers);
        drop(state);
        // Ask the unanswered questions again.
        self.put_round();
        true
    }

    /// Ends the call: the waiting exchange gets the outcome now, a parked client on its retry.
    pub(super) fn finish(&self, outcome: ExchangeOutcome) {
        let mut state = self.lock();
        match std::mem::replace(&mut state.stage, RoundStage::Over) {
            RoundStage::Awaited(response_queue) => {
                let place = state.rounds.place.take();
                drop(state);
                drop(place);
                response_queue.end(outcome);
            }
            RoundStage::Waiting => state.stage = RoundStage::Finished(Box::new(outcome)),
            RoundStage::Finished(_) | RoundStage::Over => {
                drop(state);
                self.cancelled().cancel();
            }
        }
    }

    /// The waiting exchange was dropped: ends and cancels the call. Spec: SPEC M-43.
    pub(super) fn abandon(&self) {
        self.end();
        self.cancelled().cancel();
    }

    /// No retry arrived in time: the upstream is told, and the call ends.
    async fn expire(&self, round: u16) {
        {
            // Looked at and ended under one lock: a retry that took the call over in between would wait for ever.
            let state = self.lock();
            let waits = matches!(state.stage, RoundStage::Waiting | RoundStage::Finished(_));
            if state.rounds.round != round || !waits {
                return;
            }
            Self::end_locked(state);
        }
        COUNTERS.calls_park_expired.add(1);
        tokio::select! {
            () = tokio::time::sleep(MOMENT) => self.cancelled().cancel(),
            () = self.cancelled().cancelled() => {}
        }
    }

    fn end(&self) {
        Self::end_locked(self.lock());
    }

    fn end_locked(mut state: MutexGuard<'_, TakeoverState>) {
        state.stage = RoundStage::Over;
        // Dropping the senders tells every waiting asker that no answer will arrive.
        state.rounds.open.clear();
        let place = state.rounds.place.take();
        drop(state);
        drop(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Spec: SPEC M-65. Else one body could have the same question answered thousands of times.
    #[test]
    fn an_answer_counts_under_the_key_alone_that_was_given() {
        let mut rounds = InputRounds::default();
        let question = InputRequest {
            method: "elicitation/create".to_owned(),
            params: Some(r#"{"message":"?","requestedSchema":{}}"#.into()),
        };
        let (number, mut receiver) = rounds.ask(question);
        let answer = |key: &str| {
            (
                key.to_owned(),
                Bytes::from_static(br#"{"action":"decline"}"#),
            )
        };
        let found = rounds.answered(vec![answer("i01"), answer("i+1"), answer("1")]);
        assert!(found.is_empty(), "{found:?}");
        let found = rounds.answered(vec![answer(&format!("i{number}"))]);
        assert!(found.iter().all(AnsweredRequest::fits));
        rounds.take(found);
        assert!(receiver.try_recv().is_ok());
    }
}
