use tokio::io::{DuplexStream, duplex};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::cluster::fixtures::record;
use crate::config::ReplicaTrust;
use crate::secret::Secret;

type Asking = client::TlsStream<DuplexStream>;
type Answering = server::TlsStream<DuplexStream>;

/// A replica of the cluster with this secret.
struct Replica {
    identity: ReplicaIdentity,
    own: ReplicaRecord,
    records: RecordSealer,
}

impl Replica {
    fn new(secret: &str, node: u32) -> Self {
        let secret = Secret::new(secret);
        let identity = ReplicaIdentity::new(&ReplicaTrust::Secret(secret.clone())).unwrap();
        let own = ReplicaRecord {
            address: address(node),
            fingerprint: identity.fingerprint(),
            ..record(node)
        };
        let records = RecordSealer::new(Some(&secret), "a");
        Self {
            identity,
            own,
            records,
        }
    }

    fn proof(&self) -> ReplicaProof<'_> {
        ReplicaProof {
            own: &self.own,
            records: &self.records,
        }
    }

    async fn answer(&self, stream: &mut Answering) -> Option<ReplicaRecord> {
        self.proof().answer(stream, greeting(self.own.node)).await
    }

    /// The text that it sends as `side` of a connection.
    fn text<D>(&self, connection: &ConnectionCommon<D>, side: &[u8]) -> String {
        let binding = binding(connection, side).unwrap();
        let (record, greeting) = (self.own.clone(), greeting(self.own.node));
        let sealed = if side == ASKS {
            self.records.seal_bound(&record, &binding)
        } else {
            let said = ProvedGreeting { record, greeting };
            self.records.seal_bound(&said, &binding)
        };
        sealed.unwrap()
    }
}

fn address(node: u32) -> String {
    format!("10.0.0.{node}:8090")
}

fn greeting(node: u32) -> ReplicaGreeting {
    ReplicaGreeting {
        node,
        version: "1".to_owned(),
        lease_ms: 0,
        adopts_after_ms: 5_000,
        serves_ms: 700,
        leaves: false,
    }
}

/// A connection between two processes, both ends of it.
async fn connect(asks: &Replica, answers: &Replica) -> (Asking, Answering) {
    let (near, far) = duplex(64 * 1024);
    let (config, name) = asks.identity.asker().unwrap();
    let server = answers.identity.server().unwrap();
    let accepted = TlsAcceptor::from(server).accept(far);
    let connected = TlsConnector::from(config).connect(name, near);
    let (accepted, connected) = tokio::join!(accepted, connected);
    (connected.unwrap(), accepted.unwrap())
}

#[tokio::test]
async fn replicas_of_one_secret_believe_each_other() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let (mut near, mut far) = connect(&one, &two).await;
    assert!(is_wanted(far.get_ref().1));
    let at = address(2);
    let (said, asker) = tokio::join!(one.proof().ask_over(&mut near, &at), two.answer(&mut far));
    let said = said.unwrap();
    assert_eq!((said.record, said.greeting), (two.own.clone(), greeting(2)));
    assert_eq!(asker, Some(one.own.clone()));
}

#[tokio::test]
async fn holder_of_another_secret_gets_not_a_byte() {
    let (stranger, two) = (Replica::new("other", 1), Replica::new("s", 2));
    let (mut near, mut far) = connect(&stranger, &two).await;
    let question = stranger.text(near.get_ref().1, ASKS);
    say(&mut near, question).await.unwrap();
    assert_eq!(two.answer(&mut far).await, None);
    drop(far);
    let mut answer = Vec::new();
    // The connection ends without a word of TLS.
    drop(near.read_to_end(&mut answer).await);
    assert!(answer.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn recorded_question_is_not_believed_on_another_connection() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let (near, _far) = connect(&one, &two).await;
    let recorded = one.text(near.get_ref().1, ASKS);
    // The certificate is the right one.
    let (mut near, mut far) = connect(&one, &two).await;
    say(&mut near, recorded).await.unwrap();
    assert_eq!(two.answer(&mut far).await, None);
}

#[tokio::test]
async fn recorded_answer_is_not_believed_on_another_connection() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let (_near, far) = connect(&one, &two).await;
    let recorded = two.text(far.get_ref().1, ANSWERS);
    let (mut near, mut far) = connect(&one, &two).await;
    let at = address(2);
    let (said, sent) = tokio::join!(
        one.proof().ask_over(&mut near, &at),
        say(&mut far, recorded)
    );
    sent.unwrap();
    assert_eq!(said, None);
}

#[tokio::test]
async fn third_party_between_two_replicas_gains_nothing() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let between = Replica::new("unknown", 3);
    let (mut near, mut before) = connect(&one, &between).await;
    let (mut behind, mut far) = connect(&between, &two).await;
    let relayed = async {
        let question = hear(&mut before).await.unwrap();
        say(&mut behind, question).await.unwrap();
        let answer = hear(&mut behind).await;
        if let Ok(answer) = answer {
            say(&mut before, answer).await.unwrap();
        }
        drop(before);
    };
    let answered = async {
        let asker = two.answer(&mut far).await;
        drop(far);
        asker
    };
    let at = address(2);
    let (said, (), asker) = tokio::join!(one.proof().ask_over(&mut near, &at), relayed, answered);
    assert_eq!((said, asker), (None, None));
}

#[tokio::test]
async fn proof_for_another_certificate_is_not_believed() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let mut other = Replica::new("s", 4);
    other.own.fingerprint = one.own.fingerprint.clone();
    let (mut near, mut far) = connect(&other, &two).await;
    let question = other.text(near.get_ref().1, ASKS);
    say(&mut near, question).await.unwrap();
    assert_eq!(two.answer(&mut far).await, None);
    let (mut near, mut far) = connect(&one, &other).await;
    let at = address(4);
    let answer = other.text(far.get_ref().1, ANSWERS);
    let (said, sent) = tokio::join!(one.proof().ask_over(&mut near, &at), say(&mut far, answer));
    sent.unwrap();
    assert_eq!(said, None);
}

#[tokio::test]
async fn replica_of_another_address_is_not_believed() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let (mut near, mut far) = connect(&one, &two).await;
    // Where the network leads to it in place of the replica that is asked.
    let at = address(3);
    let (said, asker) = tokio::join!(one.proof().ask_over(&mut near, &at), two.answer(&mut far));
    assert_eq!(said, None);
    assert!(asker.is_some());
}

#[tokio::test]
async fn question_is_not_believed_as_an_answer() {
    let (one, two) = (Replica::new("s", 1), Replica::new("s", 2));
    let (near, _far) = connect(&one, &two).await;
    let connection = near.get_ref().1;
    let (asks, answers) = (binding(connection, ASKS), binding(connection, ANSWERS));
    assert_ne!(asks, answers);
    let question = one.text(connection, ASKS);
    let opened: Option<ReplicaRecord> = one.records.open_bound(&question, &answers.unwrap());
    assert_eq!(opened, None);
    // Nor is a record from Redis.
    let record = one.records.seal(&one.own).unwrap();
    let opened: Option<ReplicaRecord> = one.records.open_bound(&record, &asks.unwrap());
    assert_eq!(opened, None);
}
