//! Calls of a JSON-RPC array, which share one stream.

use std::sync::Mutex;

use super::*;
use crate::session::ResponseStream;
use crate::store::events::LoggedEvent;

/// Calls of a stream, and whether their request was given.
type NotedStream = (Vec<RequestId>, bool);

#[derive(Debug)]
struct NotedCalls {
    local: MemoryEvents,
    noted: Mutex<Vec<NotedStream>>,
}

impl EventStore for NotedCalls {
    fn append(&self, at: StreamKey, events: &mut [LoggedEvent]) {
        self.local.append(at, events);
    }

    fn note_calls(&self, _at: StreamKey, ids: &[RequestId], request: Option<&Bytes>) {
        lock(&self.noted).push((ids.to_vec(), request.is_some()));
    }

    fn replace(&self, at: StreamKey, seq: u64, payload: Bytes) -> bool {
        self.local.replace(at, seq, payload)
    }

    fn after(&self, at: StreamKey, seq: u64, limit: usize) -> ReplayResult {
        self.local.after(at, seq, limit)
    }

    fn forget(&self, session: SessionKey) {
        self.local.forget(session);
    }

    fn sweep(&self) {}

    fn size(&self) -> (usize, usize) {
        self.local.size()
    }
}

#[tokio::test]
async fn stream_of_an_array_names_each_of_its_calls() {
    let store = Arc::new(NotedCalls {
        local: MemoryEvents::new(BOUNDS),
        noted: Mutex::default(),
    });
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
