//! Questions of tasks of 2025-11-25 whose client only polls: each question waits here until
//! `tasks/update` brings its answer. Spec: BRIDGING §3.8; SPEC K-14, M-65.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use crate::call::{
    ClientCapabilities, DownstreamLink, InputOutcome, InputRequest, InputRequests, InputResponse,
    Notice, OwnerKey,
};
use crate::lock::lock;
use crate::store::events::SessionKey;
use crate::sync::keyed_counter::KeyedCounter;
use crate::sync::on_drop::OnDrop;
use crate::telemetry::metrics::COUNTERS;
use crate::translate::answer_validation::is_answered_by;

/// Timeout for the first question of a task with status `input_required`.
const FIRST_QUESTION: Duration = Duration::from_secs(1);

/// Numbers keys and rounds over all tasks: a key is never used again.
static NUMBER: AtomicU64 = AtomicU64::new(1);

fn number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Session, upstream and task id.
pub(super) type TaskKey = (SessionKey, Arc<str>, String);

/// The tasks with questions; their number is bounded.
#[derive(Debug)]
pub(super) struct PendingInputs {
    per_principal: usize,
    total: usize,
    table: Mutex<InputTable>,
}

#[derive(Debug, Default)]
struct InputTable {
    open: HashMap<TaskKey, Arc<PendingInput>>,
    owners: KeyedCounter<OwnerKey>,
}

/// The open questions of one task.
#[derive(Debug)]
pub(super) struct PendingInput {
    capabilities: ClientCapabilities,
    questions: Mutex<BTreeMap<String, OpenInput>>,
    asked: Notify,
}

#[derive(Debug)]
struct OpenInput {
    round: u64,
    question: InputRequest,
    answer: oneshot::Sender<InputResponse>,
}

/// Permit of a task to ask its client; released on drop.
pub(super) struct InputPermit {
    pending_inputs: Arc<PendingInputs>,
    owner: OwnerKey,
    key: TaskKey,
    pub(super) pending_input: Arc<PendingInput>,
}

impl PendingInputs {
    /// An empty table with limits on asking tasks per principal and in total.
    pub(super) fn new(per_principal: usize, total: usize) -> Arc<Self> {
        Arc::new(Self {
            per_principal,
            total,
            table: Mutex::default(),
        })
    }

    pub(super) fn find(&self, key: &TaskKey) -> Option<Arc<PendingInput>> {
        lock(&self.table).open.get(key).map(Arc::clone)
    }

    /// A permit for a task to ask; `None` if the task has one already or a limit is reached.
    pub(super) fn open(
        self: &Arc<Self>,
        key: &TaskKey,
        owner: OwnerKey,
        capabilities: &ClientCapabilities,
    ) -> Option<InputPermit> {
        let mut table = lock(&self.table);
        if table.open.contains_key(key) {
            return None;
        }
        if table.open.len() >= self.total || table.owners.of(&owner) >= self.per_principal {
            COUNTERS.calls_park_refused.add(1);
            return None;
        }
        let pending_input = Arc::new(PendingInput {
            capabilities: capabilities.clone(),
            questions: Mutex::default(),
            asked: Notify::new(),
        });
        table.open.insert(key.clone(), Arc::clone(&pending_input));
        table.owners.add(owner);
        Some(InputPermit {
            pending_inputs: Arc::clone(self),
            owner,
            key: key.clone(),
            pending_input,
        })
    }
}

impl PendingInput {
    /// The questions without an answer yet.
    pub(super) fn questions(&self) -> Vec<(String, InputRequest)> {
        let questions = lock(&self.questions);
        let open = questions.iter();
        open.map(|(key, open)| (key.clone(), open.question.clone()))
            .collect()
    }

    /// [`questions`](Self::questions), after waiting up to `FIRST_QUESTION` for the first one.
    pub(super) async fn first_questions(&self) -> Vec<(String, InputRequest)> {
        let asked = self.asked.notified();
        let questions = self.questions();
        if questions.is_empty() {
            drop(tokio::time::timeout(FIRST_QUESTION, asked).await);
            return self.questions();
        }
        questions
    }

    /// Accepts an answer, JSON text; ignored if no question with `key` is open. If the answer is invalid, the
    /// question is asked again under a new key, since clients ignore a key they have seen (SPEC K-14, M-65).
    pub(super) fn answer(&self, key: &str, answer: &str) {
        let Some(question) = self.question(key) else {
            return;
        };
        // The client decides how long that takes: not under the lock.
        let fits = is_answered_by(&question, answer);
        let mut questions = lock(&self.questions);
        let Some(open) = questions.remove(key) else {
            return;
        };
        if fits {
            let answer = Bytes::copy_from_slice(answer.as_bytes());
            // The asking future may have been dropped just now: then the answer is dropped too.
            drop(open.answer.send(InputResponse::Result(answer)));
        } else {
            COUNTERS.questions_asked.add(1);
            questions.insert(fresh_key(), open);
        }
    }

    fn question(&self, key: &str) -> Option<InputRequest> {
        let questions = lock(&self.questions);
        questions.get(key).map(|open| open.question.clone())
    }
}

fn fresh_key() -> String {
    format!("t{}", number())
}

impl DownstreamLink for PendingInput {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    /// Spec: SPEC K-16.
    fn notify(&self, _notice: Notice) {}

    fn ask(&self, round: InputRequests) -> BoxFuture<'_, InputOutcome> {
        Box::pin(async move {
            COUNTERS.questions_asked.add(round.entries.len() as u64);
            let own = number();
            let _withdraw =
                OnDrop::new(|| lock(&self.questions).retain(|_, open| open.round != own));
            let mut waiting = Vec::with_capacity(round.entries.len());
            for (key, question) in round.entries {
                let (answer, receiver) = oneshot::channel();
                let open = OpenInput {
                    round: own,
                    question,
                    answer,
                };
                lock(&self.questions).insert(fresh_key(), open);
                waiting.push((key, receiver));
            }
            self.asked.notify_waiters();
            let mut answers = Vec::with_capacity(waiting.len());
            for (key, receiver) in waiting {
                let Ok(answer) = receiver.await else {
                    return InputOutcome::Unanswered;
                };
                answers.push((key, answer));
            }
            InputOutcome::Answered(answers)
        })
    }
}

impl Drop for InputPermit {
    fn drop(&mut self) {
        let mut table = lock(&self.pending_inputs.table);
        table.open.remove(&self.key);
        table.owners.remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Principal;

    fn key(task: &str) -> TaskKey {
        ([0; 16], "up".into(), task.to_owned())
    }

    fn open(pending_inputs: &Arc<PendingInputs>, task: &str, subject: &str) -> Option<InputPermit> {
        let principal = Principal::new("https://issuer", subject, "client", Vec::new(), None);
        pending_inputs.open(&key(task), principal.owner(), &ClientCapabilities::none())
    }

    // Spec: SPEC O-01; BRIDGING §3.1 step 12.
    #[test]
    fn principal_with_many_tasks_that_ask_leaves_places_to_others() {
        let pending_inputs = PendingInputs::new(2, 3);
        let first = open(&pending_inputs, "a", "alice").unwrap();
        let _second = open(&pending_inputs, "b", "alice").unwrap();
        assert!(open(&pending_inputs, "c", "alice").is_none());
        let _other = open(&pending_inputs, "d", "bob").unwrap();
        drop(first);
        assert!(open(&pending_inputs, "c", "alice").is_some());
    }

    fn round() -> InputRequests {
        let question = InputRequest {
            method: "roots/list".to_owned(),
            params: None,
        };
        InputRequests {
            entries: vec![(String::new(), question)],
            limit: None,
            carry: None,
        }
    }

    // SPEC K-14.
    #[tokio::test]
    async fn a_question_lies_there_until_its_own_answer_comes() {
        let pending_inputs = PendingInputs::new(1, 1);
        let client = open(&pending_inputs, "a", "alice").unwrap();
        assert!(open(&pending_inputs, "a", "alice").is_none());
        assert!(open(&pending_inputs, "b", "bob").is_none());
        let answers = async {
            let asked = client.pending_input.first_questions().await;
            let answer = r#"{"roots":[]}"#;
            client.pending_input.answer("unknown", answer);
            assert_eq!(client.pending_input.questions().len(), 1);
            client.pending_input.answer(&asked[0].0, answer);
        };
        let (asked, ()) = tokio::join!(client.pending_input.ask(round()), answers);
        assert!(matches!(asked, InputOutcome::Answered(answers) if answers.len() == 1));
        assert!(client.pending_input.questions().is_empty());
        drop(client);
        assert!(pending_inputs.find(&key("a")).is_none());
    }

    // SPEC M-65, K-14.
    #[tokio::test]
    async fn a_question_whose_answer_does_not_fit_is_put_under_another_key() {
        let pending_inputs = PendingInputs::new(1, 1);
        let client = open(&pending_inputs, "a", "alice").unwrap();
        let answers = async {
            let asked = client.pending_input.first_questions().await;
            client.pending_input.answer(&asked[0].0, "5");
            let again = client.pending_input.questions();
            assert_eq!(again.len(), 1);
            assert_ne!(again[0].0, asked[0].0);
            client.pending_input.answer(&asked[0].0, r#"{"roots":[]}"#);
            assert_eq!(client.pending_input.questions().len(), 1);
            client.pending_input.answer(&again[0].0, r#"{"roots":[]}"#);
        };
        let (asked, ()) = tokio::join!(client.pending_input.ask(round()), answers);
        let InputOutcome::Answered(answers) = asked else {
            panic!("{asked:?}");
        };
        let fitting = InputResponse::Result(Bytes::from_static(br#"{"roots":[]}"#));
        assert_eq!(answers, [(String::new(), fitting)]);
    }

    #[tokio::test]
    async fn a_question_that_nobody_waits_for_is_taken_back() {
        let pending_inputs = PendingInputs::new(1, 1);
        let client = open(&pending_inputs, "a", "alice").unwrap();
        {
            let mut asking = client.pending_input.ask(round());
            assert!(futures_util::poll!(&mut asking).is_pending());
            let asked = client.pending_input.questions();
            client.pending_input.answer(&asked[0].0, "5");
            assert_eq!(client.pending_input.questions().len(), 1);
        }
        assert!(client.pending_input.questions().is_empty());
    }
}
