//! The envelope: whatever is accepted is JSON for everybody else too, and survives an edit.
#![no_main]

use bytes::Bytes;
use drawbridge::protocol::Message;
use libfuzzer_sys::fuzz_target;

const DEPTH: usize = 64;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let _ = Message::is_batch(data);
    let _ = Message::parse_batch(bytes.clone(), DEPTH, 8);
    let Ok(message) = Message::parse(bytes.clone(), DEPTH) else {
        return;
    };
    // What was remembered of it does not change how it is read.
    let again = Message::parse(bytes, DEPTH).expect("accepted before");
    assert!(again.metas(|_| true).eq(message.metas(|_| true)));
    assert_eq!(again.params(), message.params());
    assert_eq!(again.result(), message.result());
    let value: serde_json::Value = serde_json::from_slice(data).expect("accepted here, so JSON");
    assert!(value.is_object());
    if let Some(method) = message.method() {
        assert_eq!(value["method"], method);
    }
    let other = message.with_id("\"other\"");
    let reread = Message::parse(other, DEPTH).expect("still a message");
    assert_eq!(reread.method(), message.method());
    assert_eq!(reread.params(), message.params());
    assert_eq!(reread.result(), message.result());
    if message
        .params()
        .is_some_and(|params| params.starts_with('{'))
    {
        let edited = message
            .edit()
            .param("name", "\"n\"")
            .meta("k", "1")
            .finish();
        let edited = Message::parse(edited, DEPTH + 2).expect("still a message");
        assert_eq!(edited.param("name"), Some("\"n\""));
        assert_eq!(edited.meta("k"), Some("1"));
    }
});
