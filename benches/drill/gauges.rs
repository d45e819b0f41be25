//! What a gateway and a stub upstream say of themselves.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::client::Target;
use crate::place::Stub;

/// Every gauge of a gateway with its value, from its admin listener; those with labels are added
/// up.
pub(crate) fn gauges(admin: SocketAddr) -> anyhow::Result<Vec<(String, f64)>> {
    Ok(parse_gauges(&get(admin, "/metrics")?))
}

/// One gauge or counter of a gateway, or the `_count` of a histogram, its series added up; zero until it was first set.
pub(crate) fn metric(admin: SocketAddr, name: &str) -> anyhow::Result<f64> {
    Ok(sum_of(&get(admin, "/metrics")?, name))
}

/// Counters of the requests received by a stub (`/stats`).
pub(crate) fn stats(stub: &Stub) -> anyhow::Result<Value> {
    let response = get(Target::parse(&stub.url)?.addr, "/stats")?;
    let (_, body) = response.split_once("\r\n\r\n").context("no body")?;
    serde_json::from_str(body).context("the stub's statistics are no JSON")
}

/// How often a stub has counted `what`.
pub(crate) fn count(stats: &Value, what: &str) -> u64 {
    stats.get("counts").map_or(0, |counts| now(counts, what))
}

/// How many of `what` a stub has now: `running` calls, `sessions`.
pub(crate) fn now(stats: &Value, what: &str) -> u64 {
    let number = stats.get(what).and_then(Value::as_u64);
    number.unwrap_or_default()
}

/// The whole response to a GET.
fn get(addr: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut socket = TcpStream::connect(addr).context("nobody listens")?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(text)
}

fn parse_gauges(text: &str) -> Vec<(String, f64)> {
    let names = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        (kind.trim() == "gauge").then_some(name)
    });
    names
        .map(|name| (name.to_owned(), sum_of(text, name)))
        .collect()
}

/// The sum of the series `name`.
fn sum_of(text: &str, name: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let starts_value = rest.starts_with(' ') || rest.starts_with('{');
        starts_value.then(|| rest.rsplit(' ').next()?.trim().parse::<f64>().ok())?
    });
    // Not `sum`, which is -0 without a series.
    values.fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_summed_over_their_labels_and_counters_left_out() {
        let text = "# TYPE a_open gauge\na_open{x=\"1\"} 2\na_open{x=\"2\"} 3\n\
                    # TYPE a_open_total counter\na_open_total 9\n";
        assert_eq!(parse_gauges(text), vec![("a_open".to_owned(), 5.0)]);
        assert!((sum_of(text, "a_open_total") - 9.0).abs() < f64::EPSILON);
    }

    #[test]
    fn counts_of_a_histogram_are_added_up() {
        let text = "# TYPE a histogram\na_bucket{x=\"1\",le=\"1\"} 2\na_count{x=\"1\"} 2\na_count{x=\"2\"} 3\na_sum 1\n";
        assert!((sum_of(text, "a_count") - 5.0).abs() < f64::EPSILON);
    }
}
