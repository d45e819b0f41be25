//! Answers on their way to a socket, and the access lines that end when they are written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::access_log::{AccessLine, AccessRecord};
use crate::lock::lock;

/// Answers of one socket that are not written yet. Access lines left when the socket ends note `client_gone`.
#[derive(Debug, Default)]
pub(super) struct UnwrittenAnswers(Mutex<HashMap<BytesAddress, UnwrittenAnswer>>);

/// The address of an answer's bytes.
type BytesAddress = usize;

#[derive(Debug)]
struct UnwrittenAnswer {
    /// Keeps the address taken until the answer is written.
    bytes: Bytes,
    line: Arc<AccessLine>,
}

impl UnwrittenAnswers {
    /// Notes an answer that is about to be sent. Without a line, the answer of an HTTP request, nothing
    /// waits.
    pub(super) fn expect(
        &self,
        answer: &Bytes,
        record: &AccessRecord,
        line: Option<&Arc<AccessLine>>,
    ) {
        if let Some(line) = line.filter(|_| record.is_wanted()) {
            let waiting = UnwrittenAnswer {
                bytes: answer.clone(),
                line: Arc::clone(line),
            };
            lock(&self.0).insert(place(answer), waiting);
        } else {
            record.sent(answer.len());
            record.answered();
        }
    }

    /// The answers among `messages`, for [`written`](Self::written).
    pub(super) fn among(&self, messages: &[Bytes]) -> Vec<BytesAddress> {
        let waiting = lock(&self.0);
        let places = messages.iter().map(place);
        places.filter(|at| waiting.contains_key(at)).collect()
    }

    /// Ends the lines of answers that are written.
    pub(super) fn written(&self, answers: &[BytesAddress]) {
        for answer in answers {
            let waiting = lock(&self.0).remove(answer);
            if let Some(UnwrittenAnswer { bytes, line }) = waiting {
                line.record().sent(bytes.len());
                line.record().answered();
            }
        }
    }
}

fn place(answer: &Bytes) -> BytesAddress {
    answer.as_ptr().addr()
}
