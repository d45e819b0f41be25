use super::*;

/// An output that can be held up.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<Vec<u8>>>);

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn everything_put_before_the_end_is_written_in_order() {
    let gate = Gate::default();
    let (writer, guard) = LogWriter::start(gate.clone()).unwrap();
    for n in 0..1000 {
        writer.put(LineKind::Log, format!("{n}\n").as_bytes());
    }
    drop(guard);
    let written = String::from_utf8(gate.0.lock().unwrap().clone()).unwrap();
    let numbers: Vec<u32> = written.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
}

#[test]
fn an_output_that_blocks_costs_lines_and_nobody_waits() {
    let gate = Gate::default();
    let held = Arc::clone(&gate.0);
    let held = held.lock().unwrap();
    let before = COUNTERS.log_lines_dropped.get();
    let (writer, guard) = LogWriter::start(gate.clone()).unwrap();
    let line = [b'x'; 1024];
    for _ in 0..4096 {
        writer.put(LineKind::Log, &line);
    }
    assert!(COUNTERS.log_lines_dropped.get() > before);
    drop(held);
    drop(guard);
    assert!(gate.0.lock().unwrap().len() <= 3 * MAX_WAITING_BYTES);
}

// SPEC O-04
#[test]
fn other_lines_push_no_audit_line_out() {
    let gate = Gate::default();
    let held = Arc::clone(&gate.0);
    let held = held.lock().unwrap();
    let (writer, guard) = LogWriter::start(gate.clone()).unwrap();
    let line = [b'x'; 1024];
    for _ in 0..4096 {
        writer.put(LineKind::Log, &line);
    }
    for n in 0..1000 {
        writer.put(LineKind::Audit, format!("audit {n}\n").as_bytes());
    }
    drop(held);
    drop(guard);
    let written = String::from_utf8(gate.0.lock().unwrap().clone()).unwrap();
    assert_eq!(written.matches("audit ").count(), 1000);
}

// SPEC O-04
#[test]
fn lost_audit_lines_are_counted_as_such() {
    let gate = Gate::default();
    let held = Arc::clone(&gate.0);
    let held = held.lock().unwrap();
    let before = COUNTERS.audit_dropped.get();
    let (writer, guard) = LogWriter::start(gate.clone()).unwrap();
    let line = format!("audit {}\n", "x".repeat(1024));
    let all = 4 * MAX_AUDIT_BYTES / line.len();
    for _ in 0..all {
        writer.put(LineKind::Audit, line.as_bytes());
    }
    drop(held);
    drop(guard);
    let lost = COUNTERS.audit_dropped.get() - before;
    let written = String::from_utf8(gate.0.lock().unwrap().clone()).unwrap();
    // Tests beside this one may lose audit lines too.
    assert!(lost > 0 && written.lines().count() as u64 + lost >= all as u64);
}

/// An output that takes a part, and then no more.
struct Broken(usize);

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = self.0.min(bytes.len());
        self.0 -= taken;
        match taken {
            0 => Err(ErrorKind::BrokenPipe.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_that_a_closed_output_did_not_take_are_counted() {
    let before = COUNTERS.log_lines_dropped.get();
    let (writer, guard) = LogWriter::start(Broken(8)).unwrap();
    for _ in 0..10 {
        writer.put(LineKind::Log, b"12345\n");
    }
    drop(guard);
    assert!(COUNTERS.log_lines_dropped.get() >= before + 9);
}

/// An output that takes a number of bytes, then fails a number of times, and then takes everything.
struct Interruption {
    written: Vec<u8>,
    room: usize,
    failures: usize,
}

impl Write for Interruption {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut taken = bytes.len();
        if self.failures > 0 {
            taken = taken.min(self.room);
            self.room -= taken;
        }
        if taken == 0 {
            self.failures -= 1;
            return Err(ErrorKind::StorageFull.into());
        }
        self.written.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_after_one_that_was_cut_stands_alone_however_long_the_output_fails() {
    for failures in [1, 3] {
        for (room, expected) in [(8, "12345\n12\nnext\n"), (6, "12345\nnext\n")] {
            let (state, mut is_cut) = (WriterState::default(), false);
            let mut out = Interruption {
                written: Vec::new(),
                room,
                failures,
            };
            let mut all = vec![&b"12345\n12345\n"[..], b""];
            all.resize(failures + 1, b"lost\n");
            all.push(b"next\n");
            for lines in all {
                state.write(LineKind::Log, lines, &mut out, &mut is_cut);
            }
            assert_eq!(String::from_utf8(out.written).unwrap(), expected);
        }
    }
}

/// A buffered output that another process has made non-blocking: it is full at two of three attempts.
#[derive(Default)]
struct NonBlocking {
    written: Gate,
    buffer: Vec<u8>,
    attempts: u8,
}

impl NonBlocking {
    fn attempt(&mut self) -> std::io::Result<()> {
        self.attempts = (self.attempts + 1) % 3;
        if self.attempts > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(())
    }
}

impl Write for NonBlocking {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.attempt()?;
        self.buffer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.attempt()?;
        self.written.write_all(&std::mem::take(&mut self.buffer))
    }
}

#[test]
fn a_full_output_that_does_not_block_loses_no_line() {
    let gate = Gate::default();
    let output = NonBlocking {
        written: gate.clone(),
        ..NonBlocking::default()
    };
    let (writer, guard) = LogWriter::start(output).unwrap();
    for _ in 0..10 {
        writer.put(LineKind::Audit, b"12345\n");
    }
    let expected = b"12345\n".repeat(10);
    // The guard waits for progress half a second alone, which a busy machine may take.
    let deadline = Instant::now() + Duration::from_secs(10);
    while gate.0.lock().unwrap().len() < expected.len() && Instant::now() < deadline {
        thread::yield_now();
    }
    drop(guard);
    assert_eq!(*gate.0.lock().unwrap(), expected);
}

/// An output whose reader takes a chunk every tenth of a second.
struct Slow(Gate);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        thread::sleep(LAST_LINES / 5);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_is_read_slowly_gets_everything() {
    let out = Gate::default();
    let (writer, guard) = LogWriter::start(Slow(out.clone())).unwrap();
    let line = [b'x'; CHUNK];
    for _ in 0..8 {
        writer.put(LineKind::Log, &line);
    }
    drop(guard);
    assert_eq!(out.0.lock().unwrap().len(), 8 * CHUNK);
}

#[test]
fn an_output_that_nobody_reads_does_not_hold_up_the_end() {
    let gate = Gate::default();
    let held = Arc::clone(&gate.0);
    let held = held.lock().unwrap();
    let (writer, guard) = LogWriter::start(gate).unwrap();
    writer.put(LineKind::Log, b"never read\n");
    let ended = thread::spawn(move || drop(guard));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ended.is_finished() && Instant::now() < deadline {
        thread::yield_now();
    }
    assert!(ended.is_finished());
    drop(held);
}
