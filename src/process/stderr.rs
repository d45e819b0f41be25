//! Standard error and stray output of children: always drained, logged at a bounded rate without secrets, and the end
//! of it kept for the error a caller gets (SPEC D-03).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::time::Instant;

use super::start_limiter::StartLimiter;
use crate::lock::lock;
use crate::telemetry::metrics::COUNTERS;
use crate::telemetry::redact::{redact, shown};

/// Kept for the caller's error, bytes.
const TAIL_BYTES: usize = 2 * 1024;

/// Longest line looked at; the rest of a longer one is thrown away, bytes.
const LINE_BYTES: usize = 4 * 1024;

/// Characters of a stray line of standard output that reach the log.
const STRAY_CHARS: usize = 200;

/// Bytes of such a line that the log shows.
const STRAY_BYTES: usize = 256;

/// Stray lines kept for the error of a call.
const STRAYS: usize = 5;

/// Room for one read, bytes.
const READ: usize = 4 * 1024;

/// Reads in a row before a flooding child has to wait for [`PAUSE`].
const READS: usize = 16;

/// Pause that bounds the cost of a flood: 64 KiB per pause.
const PAUSE: Duration = Duration::from_millis(5);

/// Lines logged at once after a quiet time, per child.
const BURST: f64 = 50.0;

/// Lines logged per second, per child.
const RATE: f64 = 10.0;

/// Shorter values are no secrets worth hiding, and hiding them would garble everything.
const MIN_SECRET: usize = 4;

/// The log of one child.
#[derive(Debug)]
pub(super) struct StderrLog {
    redactor: StderrRedactor,
    /// Hides paths that the log may show and callers may not.
    private: StderrRedactor,
    shared: Mutex<StderrState>,
    /// Where other children of the upstream are known.
    starts: Option<Arc<StartLimiter>>,
}

#[derive(Debug)]
struct StderrState {
    tail: StderrTail,
    /// The last lines of standard output that are no messages.
    strays: VecDeque<(Instant, String)>,
    /// Lines that may be logged now.
    tokens: f64,
    filled: Instant,
    /// Lines that were not logged since the last that was.
    muted: u64,
}

impl StderrLog {
    /// A log that hides `secrets` everywhere, and `paths` of this machine from callers.
    pub(super) fn new<S: AsRef<str>, P: AsRef<str>>(
        secrets: impl IntoIterator<Item = S>,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let shared = StderrState {
            tail: StderrTail::default(),
            strays: VecDeque::new(),
            tokens: BURST,
            filled: Instant::now(),
            muted: 0,
        };
        Self {
            redactor: StderrRedactor::new(secrets),
            private: StderrRedactor::new(paths),
            shared: Mutex::new(shared),
            starts: None,
        }
    }

    /// Shares `starts` with other children: a text that another child wrote lately is not logged again.
    pub(super) fn among(mut self, starts: Arc<StartLimiter>) -> Self {
        self.starts = Some(starts);
        self
    }

    /// Keeps one line of standard error for the errors of calls; returns its text for the log.
    fn line(&self, line: &[u8]) -> Option<String> {
        let text = self.redactor.clean(line);
        if text.is_empty() {
            return None;
        }
        // The log masks presumed secrets itself; the tail goes to callers.
        let shown = redact(&self.private.clean(text.as_bytes())).into_owned();
        self.shared().tail.push(&shown);
        Some(text)
    }

    /// Logs lines of standard error that belong together.
    fn tell(&self, upstream: &str, pid: u32, text: &str) {
        let Some(muted) = self.shared().admit(Instant::now()) else {
            return;
        };
        let is_repeated = |lines: &Arc<StartLimiter>| lines.lines.is_repeated(upstream, pid, text);
        if self.starts.as_ref().is_some_and(is_repeated) {
            return COUNTERS.stderr_dropped.add(1);
        }
        tracing::info!(upstream, pid, muted, "upstream stderr: {text}");
    }

    /// Keeps a line of standard output that is no message, masked and cut, for the errors of calls.
    pub(super) fn keep_stray(&self, line: &[u8]) {
        let seen = line.get(..self.redactor.window()).unwrap_or(line);
        let text = self.redactor.clean(seen);
        let text = self.private.clean(text.as_bytes());
        let text: String = redact(&text).chars().take(STRAY_CHARS).collect();
        let mut shared = self.shared();
        if shared.strays.len() >= STRAYS {
            shared.strays.pop_front();
        }
        shared.strays.push_back((Instant::now(), text));
    }

    /// The last of those lines that came at `since` or later.
    pub(super) fn strays(&self, since: Instant) -> Option<String> {
        let shared = self.shared();
        let late = shared.strays.iter().filter(|(at, _)| *at >= since);
        let lines: Vec<&str> = late.map(|(_, line)| line.as_str()).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Logs a line of standard output that is no message.
    pub(super) fn tell_stray(&self, upstream: &str, pid: u32, line: &[u8], muted: u64) {
        let seen = line.get(..self.redactor.window()).unwrap_or(line);
        let text = self.redactor.clean(seen);
        let text = shown(&text, STRAY_BYTES);
        tracing::warn!(
            upstream,
            pid,
            remedy = "standard output is for messages alone: let the program write this to standard error",
            muted,
            "upstream wrote a line that is no message: {text}"
        );
    }

    /// The end of standard error.
    pub(super) fn tail(&self) -> Option<String> {
        self.shared().tail.text()
    }

    fn shared(&self) -> MutexGuard<'_, StderrState> {
        lock(&self.shared)
    }
}

impl StderrState {
    /// Whether one more line may be logged now: the number of lines muted before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.filled).as_secs_f64() * RATE;
        self.tokens = (self.tokens + earned).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            self.muted += 1;
            COUNTERS.stderr_dropped.add(1);
            return None;
        }
        self.tokens -= 1.0;
        Some(std::mem::take(&mut self.muted))
    }
}

/// The last bytes of a text, cut at a line where possible.
#[derive(Debug, Default)]
struct StderrTail(String);

impl StderrTail {
    fn push(&mut self, line: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(line);
        if self.0.len() > TAIL_BYTES {
            let mut cut = self.0.len() - TAIL_BYTES;
            while !self.0.is_char_boundary(cut) {
                cut += 1;
            }
            self.0.drain(..cut);
        }
    }

    fn text(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.clone())
    }
}

/// Replaces secrets, and characters that could trick a terminal or a log.
struct StderrRedactor {
    /// Longest first, so that a secret within a secret does not leave a rest.
    secrets: Vec<String>,
}

impl fmt::Debug for StderrRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl StderrRedactor {
    fn new<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Self {
        let mut secrets: Vec<String> = Vec::new();
        for value in values {
            // We see single lines, so each line of a secret (a PEM key) is one.
            let lines = value.as_ref().lines().map(str::trim);
            let hidden = lines.filter(|line| line.len() >= MIN_SECRET);
            secrets.extend(hidden.map(str::to_owned));
        }
        secrets.sort_by_key(|value| std::cmp::Reverse(value.len()));
        secrets.dedup();
        Self { secrets }
    }

    /// The part of `line` that may be shown.
    fn clean(&self, line: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(line).into_owned();
        for secret in &self.secrets {
            if text.contains(secret) {
                text = text.replace(secret, "…");
            }
        }
        text.retain(|c| !c.is_control() || c == '\t');
        let mut end = text.len().min(LINE_BYTES);
        if line.len() >= self.window() {
            // The line was cut: a possible beginning of a secret is removed too.
            end = end.min(text.len().saturating_sub(self.longest()));
        }
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.truncate(text.trim_end().len());
        text
    }

    /// Bytes of a line that must be seen whole, so that no secret is cut.
    fn window(&self) -> usize {
        LINE_BYTES + self.longest()
    }

    fn longest(&self) -> usize {
        self.secrets.first().map_or(0, String::len)
    }
}

/// The reader of one child's standard error.
#[derive(Debug)]
pub(super) struct StderrReader {
    pipe: Option<Receiver>,
    line: Vec<u8>,
    pid: u32,
}

impl StderrReader {
    pub(super) fn new(pipe: Receiver, pid: u32) -> Self {
        Self {
            pipe: Some(pipe),
            line: Vec::new(),
            pid,
        }
    }

    /// Reads for ever; pending after the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn run(&mut self, upstream: &str, log: &StderrLog) {
        while let Some(pipe) = &self.pipe {
            if pipe.readable().await.is_err() {
                self.pipe = None;
            }
            if self.read_ready(upstream, log) {
                tokio::time::sleep(PAUSE).await;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Reads the rest of standard error after the process has ended.
    pub(super) fn finish(mut self, upstream: &str, log: &StderrLog) {
        self.read_ready(upstream, log);
        // The last line may lack its end.
        self.take_lines(b"\n", upstream, log);
    }

    /// Reads available bytes, within a bound; returns whether there may be more.
    fn read_ready(&mut self, upstream: &str, log: &StderrLog) -> bool {
        let mut buffer = [0; READ];
        for _ in 0..READS {
            let Some(pipe) = &self.pipe else { return false };
            match pipe.try_read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(read) => {
                    let fresh = buffer.get(..read).unwrap_or_default();
                    self.take_lines(fresh, upstream, log);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(_) => self.pipe = None,
            }
        }
        true
    }

    /// Lines that are indented belong to the line before: a stack trace makes few records.
    fn take_lines(&mut self, fresh: &[u8], upstream: &str, log: &StderrLog) {
        let mut record = String::new();
        for piece in fresh.split_inclusive(|byte| *byte == b'\n') {
            let room = log.redactor.window().saturating_sub(self.line.len());
            self.line
                .extend_from_slice(piece.get(..piece.len().min(room)).unwrap_or_default());
            if !piece.ends_with(b"\n") {
                continue;
            }
            if let Some(text) = log.line(&self.line) {
                let belongs = text.starts_with([' ', '\t']) && !record.is_empty();
                if belongs && record.len() + text.len() < LINE_BYTES {
                    record.push('\n');
                } else if !record.is_empty() {
                    log.tell(upstream, self.pid, &record);
                    record.clear();
                }
                record.push_str(&text);
            }
            self.line.clear();
        }
        if !record.is_empty() {
            log.tell(upstream, self.pid, &record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::captured::LogCapture;

    fn redactor(secrets: &[&'static str]) -> StderrRedactor {
        StderrRedactor::new(secrets)
    }

    #[test]
    fn secrets_are_replaced_wherever_they_stand() {
        let redactor = redactor(&[
            "hunter2",
            "hunter2-long",
            "-----KEY\nMIIEabc\n-----END",
            "1",
        ]);
        let clean = |line: &str| redactor.clean(line.as_bytes());
        assert_eq!(clean("key=hunter2&x=hunter2-long."), "key=…&x=….");
        assert_eq!(clean("line MIIEabc of a key"), "line … of a key");
        assert_eq!(clean("1 is no secret"), "1 is no secret");
    }

    #[test]
    fn control_characters_do_not_pass() {
        assert_eq!(redactor(&[]).clean(b"\x1b[31mred\x07\r"), "[31mred");
        assert_eq!(redactor(&[]).clean(b"\xffbroken"), "\u{fffd}broken");
    }

    #[test]
    fn a_cut_line_shows_no_part_of_a_secret() {
        let secret = "s3cr3t-value";
        let redactor = redactor(&[secret]);
        for before in LINE_BYTES - 20..LINE_BYTES + 20 {
            let line = format!("{}{secret}{}", "x".repeat(before), "y".repeat(100));
            let seen = &line.as_bytes()[..redactor.window()];
            let text = redactor.clean(seen);
            assert!(
                !text.contains("s3"),
                "{before}: {}",
                &text[text.len() - 30..]
            );
            assert!(text.len() <= LINE_BYTES);
        }
        // Replacing shortens the text: cut bytes must not slide into view.
        let line = secret.repeat(LINE_BYTES);
        let text = redactor.clean(&line.as_bytes()[..redactor.window()]);
        assert!(!text.contains("s3"), "{text}");
    }

    #[test]
    fn the_tail_keeps_the_end() {
        let mut tail = StderrTail::default();
        assert_eq!(tail.text(), None);
        for number in 0..1000 {
            tail.push(&format!("línea {number}"));
        }
        let text = tail.text().unwrap();
        assert!(text.len() <= TAIL_BYTES && text.ends_with("línea 998\nlínea 999"));
    }

    // Spec: SPEC D-03
    #[test]
    fn what_looks_like_a_secret_stands_in_no_last_words() {
        let log = StderrLog::new(["inherited-value"], [""; 0]);
        log.line(b"password=hunter2hunter2 and inherited-value");
        assert_eq!(log.tail().unwrap(), "password=[redacted] and …");
    }

    // Spec: SPEC D-02
    #[test]
    fn last_stray_lines_are_kept_masked_and_cut() {
        let log = StderrLog::new(["inherited-value"], ["/opt/inner"]);
        let since = Instant::now();
        log.keep_stray(b"the first of too many");
        for _ in 1..STRAYS {
            log.keep_stray(b"token=hunter2hunter2 inherited-value /opt/inner/x");
        }
        log.keep_stray("y".repeat(STRAY_CHARS + 1).as_bytes());
        let kept = log.strays(since).unwrap();
        let lines: Vec<&str> = kept.lines().collect();
        assert_eq!(lines.len(), STRAYS);
        assert_eq!(lines[0], "token=[redacted] … …/x");
        assert_eq!(lines[STRAYS - 1].len(), STRAY_CHARS);
        assert_eq!(log.strays(Instant::now() + Duration::from_secs(1)), None);
    }

    #[test]
    fn callers_do_not_learn_where_a_program_lies() {
        let log = StderrLog::new([""; 0], ["/opt/inner/server", "/srv/data"]);
        log.line(b"cannot run /opt/inner/server: Exec format error");
        log.line(b"/srv/data/db: locked");
        assert_eq!(
            log.tail().unwrap(),
            "cannot run …: Exec format error\n…/db: locked"
        );
    }

    #[tokio::test]
    async fn a_stack_trace_is_one_record() {
        let (log, caught) = (StderrLog::new([""; 0], [""; 0]), LogCapture::begin());
        let (reader, _writer) = tokio::net::unix::pipe::pipe().map(|(w, r)| (r, w)).unwrap();
        let mut drain = StderrReader::new(reader, 1);
        let trace = b"Error: connect {\n  code: 'ECONNREFUSED'\n}\n    at a (x.js:1)\n    at b (x.js:2)\nnext\n";
        drain.take_lines(trace, "up", &log);
        let lines = caught.of_level("INFO");
        let said: Vec<&str> = lines
            .iter()
            .filter_map(|line| line["message"].as_str())
            .collect();
        assert_eq!(
            said,
            [
                "upstream stderr: Error: connect {\n  code: 'ECONNREFUSED'",
                "upstream stderr: }\n    at a (x.js:1)\n    at b (x.js:2)",
                "upstream stderr: next",
            ]
        );
    }

    #[test]
    fn a_flood_is_muted_and_counted() {
        let now = Instant::now();
        let tail = StderrTail::default();
        let mut shared = StderrState {
            tail,
            strays: VecDeque::new(),
            tokens: 2.0,
            filled: now,
            muted: 0,
        };
        assert_eq!(
            [0; 5].map(|_| shared.admit(now)),
            [Some(0), Some(0), None, None, None]
        );
        assert_eq!(shared.admit(now + Duration::from_secs(1)), Some(3));
    }
}
