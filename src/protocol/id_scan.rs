//! `IdScan`: extracts ids from a text that is not kept, in constant memory: those of its requests, or that of a reply.

use super::RequestId;
use super::json;

/// Bytes of a name or value that is examined: a longer one is no id and no method.
const TOKEN: usize = 1 << 10;
/// All ids together, bytes.
const IDS: usize = 3 << 10;

/// Reads JSON-RPC text chunk by chunk and collects the ids of requests. Everything else is skipped by
/// counting brackets. For a text with a single message it also tells which request the message answers.
#[derive(Debug, Default)]
pub struct IdScan {
    stage: ScanStage,
    /// Open containers.
    depth: usize,
    is_array: bool,
    string: ScanString,
    place: ScanPosition,
    /// The name or value being read, if it is examined.
    token: Vec<u8>,
    is_long: bool,
    message: ScannedRequest,
    found: Vec<String>,
    /// Bytes of `found`.
    size: usize,
    /// What the newest message is for the client that has called.
    newest: Option<ScannedMessage>,
    /// JSON text of the id of a single message, if it is a request.
    asked: Option<String>,
}

/// Whether a message answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScannedMessage {
    /// It has a method: a notification or a request.
    NoReply,
    /// The reply to this request.
    Reply(RequestId),
    /// It has no method, and no id that could be read.
    Unclear,
}

/// How far the whole text is.
#[derive(Debug, Default, PartialEq, Eq)]
enum ScanStage {
    #[default]
    Open,
    Over,
    /// Malformed text, or more ids than [`IDS`] bytes.
    Failed,
}

/// Whether a string is read now.
#[derive(Debug, Default, PartialEq, Eq)]
enum ScanString {
    #[default]
    No,
    Yes,
    /// Behind a backslash.
    Escaped,
}

/// What comes next among the members of a message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ScanPosition {
    /// No message is open.
    #[default]
    Outside,
    Name,
    Value(PendingMember),
}

/// Whose value comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingMember {
    Other,
    Id,
    /// A name that some parsers take for `id`: they ignore case.
    IdInOtherCase,
    Method,
}

/// What is known of a message.
#[derive(Debug, Default)]
struct ScannedRequest {
    id: Option<String>,
    ids: usize,
    has_method: bool,
    methods: usize,
}

impl ScannedRequest {
    fn kind(&self) -> ScannedMessage {
        if self.methods > 0 {
            return ScannedMessage::NoReply;
        }
        let id = self.id.as_deref().filter(|_| self.ids == 1);
        id.and_then(RequestId::parse)
            .map_or(ScannedMessage::Unclear, ScannedMessage::Reply)
    }

    /// The id of a request, whatever its method: the only member that any parser takes for `id`.
    fn asked(&self) -> Option<&String> {
        self.id
            .as_ref()
            .filter(|_| self.ids == 1 && self.methods > 0)
    }

    /// Its id, where it is a request that may be answered by an error.
    fn id(self) -> Option<String> {
        let is_clear = self.ids == 1 && self.methods == 1 && self.has_method;
        self.id.filter(|_| is_clear)
    }
}

impl IdScan {
    /// Reads on.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((byte, after)) = rest.split_first() {
            if self.stage == ScanStage::Failed {
                return;
            }
            // Skip strings that are not examined with `memchr`: most of a large body is inside them.
            if self.string == ScanString::Yes && !self.is_wanted() {
                let Some(stop) = memchr::memchr2(b'"', b'\\', rest) else {
                    return;
                };
                let (_, at) = rest.split_at(stop);
                if let Some((byte, after)) = at.split_first() {
                    self.take_of_string(*byte);
                    rest = after;
                }
                continue;
            }
            // Below the members of messages the brackets alone count.
            if self.string == ScanString::No && self.depth > self.level() {
                let counts = |byte: &u8| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']');
                let Some(stop) = rest.iter().position(counts) else {
                    return;
                };
                let (_, at) = rest.split_at(stop);
                if let Some((byte, after)) = at.split_first() {
                    self.take(*byte);
                    rest = after;
                }
                continue;
            }
            if self.string == ScanString::No {
                self.take(*byte);
            } else {
                self.take_of_string(*byte);
            }
            rest = after;
        }
    }

    /// Whether the whole is one array.
    #[must_use]
    pub fn is_array(&self) -> bool {
        self.is_array
    }

    /// JSON texts of the ids of the requests so far, in their order; none where the text is not clear.
    #[must_use]
    pub fn ids(mut self) -> Vec<String> {
        if self.place != ScanPosition::Outside {
            self.end_message();
        }
        if self.stage == ScanStage::Failed {
            return Vec::new();
        }
        self.found
    }

    /// Which request the message answers. `Unclear` if the text was not one whole message.
    #[must_use]
    pub fn message(self) -> ScannedMessage {
        let is_one = self.stage == ScanStage::Over && !self.is_array;
        let newest = self.newest.filter(|_| is_one);
        newest.unwrap_or(ScannedMessage::Unclear)
    }

    /// JSON text of the id of the request, if the text was one whole request; its members may be repeated, but for
    /// `id`.
    #[must_use]
    pub fn request(self) -> Option<String> {
        self.asked.filter(|_| self.stage == ScanStage::Over)
    }

    fn take_of_string(&mut self, byte: u8) {
        self.push(byte);
        self.string = match (&self.string, byte) {
            (ScanString::Escaped, _) => ScanString::Yes,
            (_, b'\\') => ScanString::Escaped,
            (_, b'"') => {
                self.end_token();
                ScanString::No
            }
            _ => ScanString::Yes,
        };
    }

    fn take(&mut self, byte: u8) {
        // A byte order mark counts as space.
        if self.depth == 0 && !b" \t\r\n{[}]\xef\xbb\xbf".contains(&byte) {
            return self.fail();
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b':' => self.end_token(),
            b',' => {
                self.end_token();
                if self.is_at_message() {
                    self.place = ScanPosition::Name;
                }
            }
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => {
                self.end_token();
                self.close(byte);
            }
            b'"' => {
                self.string = ScanString::Yes;
                self.push(byte);
            }
            _ => self.push(byte),
        }
    }

    fn fail(&mut self) {
        self.stage = ScanStage::Failed;
    }

    /// Whether the members of a message are read, not what they hold.
    fn is_at_message(&self) -> bool {
        self.place != ScanPosition::Outside && self.depth == self.level()
    }

    /// How deep the members of messages lie.
    fn level(&self) -> usize {
        1 + usize::from(self.is_array)
    }

    /// Whether the text that is read now may be a name, an id or a method.
    fn is_wanted(&self) -> bool {
        self.is_at_message() && self.place != ScanPosition::Value(PendingMember::Other)
    }

    fn push(&mut self, byte: u8) {
        if !self.is_wanted() {
            return;
        }
        if self.token.len() < TOKEN {
            self.token.push(byte);
        } else {
            self.is_long = true;
        }
    }

    fn end_token(&mut self) {
        if self.token.is_empty() || !self.is_wanted() {
            return;
        }
        let is_long = std::mem::take(&mut self.is_long);
        let token = std::mem::take(&mut self.token);
        let text = std::str::from_utf8(&token).ok().filter(|_| !is_long);
        if self.place != ScanPosition::Name {
            return self.value(text);
        }
        self.place = ScanPosition::Value(match text.and_then(json::string).as_deref() {
            Some("id") => PendingMember::Id,
            Some(name) if name.eq_ignore_ascii_case("id") => PendingMember::IdInOtherCase,
            Some("method") => PendingMember::Method,
            _ => PendingMember::Other,
        });
    }

    /// The value of an id or a method; nothing where it is no scalar, or too long.
    fn value(&mut self, text: Option<&str>) {
        let message = &mut self.message;
        match std::mem::replace(&mut self.place, ScanPosition::Value(PendingMember::Other)) {
            ScanPosition::Value(PendingMember::Id) => {
                message.ids += 1;
                let id = text.filter(|text| RequestId::parse(text).is_some());
                message.id = id.map(str::to_owned);
            }
            ScanPosition::Value(PendingMember::IdInOtherCase) => message.ids += 1,
            ScanPosition::Value(PendingMember::Method) => {
                message.methods += 1;
                // `initialize` has no session that could go on.
                let method = text.and_then(json::string);
                message.has_method = method.is_some_and(|method| method != "initialize");
            }
            ScanPosition::Value(PendingMember::Other) => {}
            ScanPosition::Name | ScanPosition::Outside => self.fail(),
        }
    }

    fn open(&mut self, bracket: u8) {
        if self.stage == ScanStage::Over {
            return self.fail();
        }
        if self.is_at_message() {
            self.value(None);
        }
        if self.depth == 0 {
            self.is_array = bracket == b'[';
        }
        self.depth += 1;
        if bracket == b'{' && self.depth == self.level() {
            self.place = ScanPosition::Name;
        }
    }

    fn close(&mut self, bracket: u8) {
        if self.is_at_message() {
            if bracket != b'}' {
                return self.fail();
            }
            self.end_message();
        }
        match self.depth.checked_sub(1) {
            None => self.fail(),
            Some(depth) => self.depth = depth,
        }
        if self.depth == 0 && self.stage == ScanStage::Open {
            self.stage = ScanStage::Over;
        }
    }

    fn end_message(&mut self) {
        self.place = ScanPosition::Outside;
        let message = std::mem::take(&mut self.message);
        self.newest = Some(message.kind());
        if !self.is_array {
            self.asked = message.asked().cloned();
        }
        let Some(id) = message.id() else {
            return;
        };
        self.size += id.len() + size_of::<String>();
        self.found.push(id);
        if self.size > IDS {
            self.fail();
        }
    }
}

#[cfg(test)]
mod tests;
