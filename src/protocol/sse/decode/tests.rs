use proptest::prelude::*;

use super::super::NumberedEvents;
use super::*;

fn decode(text: &[u8], chunk: usize) -> Vec<SseEvent> {
    let mut decoder = SseDecoder::new(1 << 20);
    let mut events = Vec::new();
    for part in text.chunks(chunk.max(1)) {
        decoder.feed(Bytes::copy_from_slice(part));
        while let Some(event) = decoder.next().unwrap() {
            events.push(event);
        }
    }
    events
}

fn data(text: &str) -> Vec<String> {
    let all = decode(text.as_bytes(), usize::MAX);
    all.iter()
        .map(|event| String::from_utf8(event.data.to_vec()).unwrap())
        .collect()
}

// SPEC T-16.
#[test]
fn data_of_several_lines_is_joined() {
    assert_eq!(
        data("data: {\"a\":\ndata: 1}\ndata:\n\n"),
        ["{\"a\":\n1}\n"]
    );
    assert_eq!(data("data:  two spaces\n\n"), [" two spaces"]);
    assert_eq!(data("data\n\n"), [""]);
}

#[test]
fn all_line_ends_and_a_leading_mark_are_understood() {
    let plain = "\u{feff}id: 7\nevent: x\nretry: 20\ndata: 1\n\ndata: 2\n\n";
    let expected = decode(plain.as_bytes(), usize::MAX);
    assert_eq!(expected.len(), 2);
    let first = &expected[0];
    assert_eq!(
        (first.id.as_deref(), first.event.as_deref()),
        (Some("7"), Some(&b"x"[..]))
    );
    assert_eq!((first.retry, &first.data[..]), (Some(20), &b"1"[..]));
    for end in ["\r\n", "\r"] {
        let text = plain.replace('\n', end);
        for chunk in 1..text.len() {
            assert_eq!(
                decode(text.as_bytes(), chunk),
                expected,
                "{end:?} by {chunk}"
            );
        }
    }
}

#[test]
fn comments_and_unknown_fields_are_no_events_but_activity() {
    let mut decoder = SseDecoder::new(100);
    assert!(!decoder.saw_bytes());
    decoder.feed(Bytes::from_static(b": keep-alive\n\nfoo: bar\n\n"));
    assert_eq!(decoder.next(), Ok(None));
    assert!(decoder.saw_bytes());
    assert!(!decoder.saw_bytes());
}

#[test]
fn a_priming_event_has_an_id_and_empty_data() {
    let events = decode(b"id: a.1\nretry: 100\ndata: \n\n", 5);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].id.as_deref(), Some("a.1"));
    assert!(events[0].has_data && events[0].data.is_empty());
}

#[test]
fn odd_ids_and_retries_are_ignored() {
    let long = format!("id: {}\ndata: 1\n\n", "x".repeat(5000));
    assert_eq!(decode(long.as_bytes(), 100)[0].id, None);
    assert_eq!(decode(b"id: a\0b\ndata: 1\n\n", 9)[0].id, None);
    assert_eq!(decode(b"retry: -1\ndata: 1\n\n", 9)[0].retry, None);
    assert_eq!(decode(b"retry:\ndata: 1\n\n", 9)[0].retry, None);
    assert_eq!(decode(b"id: \xff\ndata: 1\n\n", 9)[0].id, None);
}

#[test]
fn an_empty_type_is_none() {
    for text in ["event:\ndata: 1\n\n", "event: x\nevent\ndata: 1\n\n"] {
        let events = decode(text.as_bytes(), usize::MAX);
        assert_eq!((events.len(), &events[0].event), (1, &None), "{text:?}");
    }
    let mut decoder = SseDecoder::new(100);
    for _ in 0..100 {
        for part in ["event:\n", "data: 1\n\n"] {
            decoder.feed(Bytes::from_static(part.as_bytes()));
            assert!(
                decoder
                    .next()
                    .is_ok_and(|event| event.is_none() == part.starts_with('e'))
            );
        }
    }
}

#[test]
fn an_unfinished_event_is_not_given_out() {
    assert!(data("data: 1\n").is_empty());
    assert_eq!(data("data: 1\n\ndata: 2"), ["1"]);
}

#[test]
fn one_line_in_one_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"event: message\ndata: {\"a\":1}\n\n");
    let mut decoder = SseDecoder::new(100);
    decoder.feed(chunk.clone());
    let event = decoder.next().unwrap().unwrap();
    assert_eq!(event.data.as_ptr(), chunk[21..].as_ptr());
}

#[test]
fn an_event_that_is_taken_is_not_given_and_one_that_is_left_is() {
    let mut decoder = SseDecoder::new(100);
    decoder.feed(Bytes::from_static(b":\n\ndata: 1\n\ndata: 2\n\n"));
    assert!(
        !decoder.take_usual(|_| true),
        "at the start a mark may come"
    );
    assert_eq!(decoder.next().unwrap().unwrap().data, "1");
    assert!(!decoder.take_usual(|data| data == b"1"));
    assert!(decoder.take_usual(|data| data == b"2"));
    assert!(!decoder.take_usual(|_| true));
    assert_eq!(decoder.next(), Ok(None));
    decoder.feed(Bytes::from_static(b"id: 1\ndata: 3\n\n"));
    assert!(!decoder.take_usual(|_| true), "its id would be lost");
    assert_eq!(decoder.next().unwrap().unwrap().id.unwrap(), "1");
}

#[test]
fn what_outgrows_the_bound_ends_the_stream() {
    let endless_line = "data: ".to_owned() + &"x".repeat(200);
    let endless_event = "data: 12345678\n".repeat(20);
    let endless_comment = ":".repeat(200);
    for text in [endless_line, endless_event, endless_comment] {
        for chunk in [1, 7, 1000] {
            let mut decoder = SseDecoder::new(100);
            let mut failed = false;
            for part in text.as_bytes().chunks(chunk) {
                decoder.feed(Bytes::copy_from_slice(part));
                failed |= decoder.next().is_err();
            }
            assert!(failed, "{text} by {chunk}");
            assert_eq!(decoder.next(), Err(SseError::TooLarge));
        }
    }
    let fits = format!("data: {}\n\n", "x".repeat(100)).repeat(3) + &": c\n".repeat(100);
    let mut decoder = SseDecoder::new(100);
    decoder.feed(fits.into());
    for _ in 0..3 {
        assert!(decoder.next().unwrap().is_some());
    }
    assert_eq!(decoder.next(), Ok(None));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        messages in prop::collection::vec((any::<u64>(), any::<String>()), 0..5),
        chunk in 1usize..50,
    ) {
        let mut out = BytesMut::new();
        let written = NumberedEvents::new("t.1.");
        for (number, text) in &messages {
            let data = serde_json::to_string(text).unwrap();
            written.encode(&mut out, *number, data.as_bytes());
        }
        let events = decode(&out, chunk);
        let read: Vec<_> = events
            .iter()
            .map(|e| (e.id.clone().unwrap(), serde_json::from_slice(&e.data).unwrap()))
            .collect();
        let expected: Vec<_> = messages
            .into_iter()
            .map(|(number, data)| (format!("t.1.{number}"), data))
            .collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn what_is_taken_is_what_would_be_given(
        text in "(data: [0-9]\n\n|event: message\n|event: x\n|data: |id: |x|\n|\r|:){0,20}",
        chunk in 1usize..99,
        which in any::<u64>(),
    ) {
        let mut decoder = SseDecoder::new(1 << 20);
        let mut seen = Vec::new();
        for part in text.as_bytes().chunks(chunk) {
            decoder.feed(Bytes::copy_from_slice(part));
            loop {
                let wanted = which >> (seen.len() % 64) & 1 == 1;
                let mut data = Vec::new();
                if decoder.take_usual(|shown| { data = shown.to_vec(); wanted }) {
                    seen.push(data);
                    continue;
                }
                let Some(event) = decoder.next().unwrap() else { break };
                prop_assert!(data.is_empty() || event.data == data);
                seen.push(event.data.to_vec());
            }
        }
        let given: Vec<_> = decode(text.as_bytes(), chunk).iter().map(|e| e.data.to_vec()).collect();
        prop_assert_eq!(seen, given);
    }

    #[test]
    fn chunk_borders_change_nothing(text in "(data:|id: |x|\n|\r|\r\n| |:|event: |retry: 1){0,20}", chunk in 1usize..9) {
        prop_assert_eq!(decode(text.as_bytes(), chunk), decode(text.as_bytes(), usize::MAX));
    }
}
