//! What the process takes of the machine, under the names that Prometheus' own libraries give it.

use std::path::Path;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rustix::process::{Resource, getrlimit};

use crate::telemetry::names::{attribute, metric};

/// Reads one number of the process, where the system tells it.
type ProcessReading = fn() -> Option<u64>;

/// Has exporters read these numbers when they collect. `started` is when the process began, since the Unix
/// epoch. Linux's `/proc` is read; a number that cannot be had is left out.
pub(in crate::telemetry) fn observe(meter: &Meter, started: Duration) {
    meter
        .f64_observable_counter(metric::PROCESS_CPU)
        .with_unit("s")
        .with_description("Processor time that the gateway has used, without its children.")
        .with_callback(|observer| {
            if let Some(seconds) = cpu(Path::new("/proc/self/stat")) {
                observer.observe(seconds, &[]);
            }
        })
        .build();
    let numbers: [(_, _, _, ProcessReading); 3] = [
        (
            metric::PROCESS_RESIDENT_MEMORY,
            "By",
            "Memory of the gateway that is resident, without its children.",
            || resident(Path::new("/proc/self/status")),
        ),
        (
            metric::PROCESS_OPEN_FDS,
            "{descriptor}",
            "File descriptors that are open.",
            open_descriptors,
        ),
        (
            metric::PROCESS_MAX_FDS,
            "{descriptor}",
            "File descriptors that may be open.",
            || getrlimit(Resource::Nofile).current,
        ),
    ];
    for (name, unit, help, read) in numbers {
        meter
            .u64_observable_gauge(name)
            .with_unit(unit)
            .with_description(help)
            .with_callback(move |observer| {
                if let Some(number) = read() {
                    observer.observe(number, &[]);
                }
            })
            .build();
    }
    meter
        .f64_observable_gauge(metric::PROCESS_START_TIME)
        .with_unit("s")
        .with_description("When the process began, seconds since the Unix epoch.")
        .with_callback(move |observer| observer.observe(started.as_secs_f64(), &[]))
        .build();
    meter
        .u64_observable_gauge(metric::BUILD_INFO)
        .with_description("Always 1; the label names the version of the program.")
        .with_callback(|observer| {
            let version = env!("CARGO_PKG_VERSION");
            observer.observe(1, &[KeyValue::new(attribute::BUILD_VERSION, version)]);
        })
        .build();
}

/// In user and in kernel mode.
fn cpu(stat: &Path) -> Option<f64> {
    /// What Linux shows of a second, on every machine that it runs on today.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(stat).ok()?;
    // The name of the program stands in parentheses, and may hold anything.
    let (_, numbers) = text.rsplit_once(')')?;
    let mut numbers = numbers.split_ascii_whitespace().skip(11);
    let mut next = || numbers.next()?.parse::<u32>().ok();
    Some((f64::from(next()?) + f64::from(next()?)) / TICKS)
}

/// Bytes.
fn resident(status: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Without the one that counts them.
fn open_descriptors() -> Option<u64> {
    let all = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(all.saturating_sub(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 4 0 12345 0 0\n";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(cpu(file.path()), Some(3.0));
    }

    #[test]
    fn the_numbers_are_those_of_this_process() {
        let seconds = |path: &str| cpu(Path::new(path));
        assert!((0.0..1e6).contains(&seconds("/proc/self/stat").unwrap()));
        assert_eq!(seconds("/proc/none"), None);
        let bytes = |path: &str| resident(Path::new(path));
        let now = bytes("/proc/self/status").unwrap();
        assert!((1024 * 1024..1 << 40).contains(&now), "{now}");
        assert_eq!(bytes("/proc/none"), None);
        let files: Vec<_> = (0..100)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        // `>=`: other tests open and close files meanwhile.
        assert!(open_descriptors().unwrap() >= 100);
        drop(files);
    }
}
