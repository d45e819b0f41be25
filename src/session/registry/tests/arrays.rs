//! What the event store is told of the calls of a stream, such as those of a JSON-RPC array.

use super::*;
use crate::session::ResponseStream;
use crate::store::events::RemoteEvents;

#[tokio::test]
async fn stream_of_an_array_names_each_of_its_calls() {
    let store = RemoteEvents::new();
    let f = fixture_over(Arc::clone(&store) as _, 1, 1);
    let session = f.open("alice").unwrap();
    let begin = |id: &RequestId, onto: &Arc<ResponseStream>| {
        let link = session.begin_call(id.clone(), Arc::clone(onto)).unwrap();
        link.keep_request(Bytes::from_static(b"{}"));
        link
    };
    let [first, second, alone] = [1_i64, 2, 3].map(RequestId::from);
    let onto = Arc::default();
    let _first = begin(&first, &onto);
    let opens = begin(&second, &onto);
    onto.note_array([first.clone(), second.clone()].into());
    drop(opens.stream());
    drop(begin(&alone, &Arc::default()).stream());
    let noted = [(vec![first, second], false), (vec![alone], true)];
    assert_eq!(*lock(&store.noted), noted);
}

#[tokio::test]
async fn stream_of_an_ended_session_is_not_noted() {
    let store = RemoteEvents::new();
    let f = fixture_over(Arc::clone(&store) as _, 1, 1);
    let session = f.open("alice").unwrap();
    let call = session.begin_call(RequestId::from(1), Arc::default());
    f.sessions.close(&session);
    assert!(call.unwrap().stream().is_finished());
    assert!(lock(&store.noted).is_empty(), "the session is forgotten");
}
