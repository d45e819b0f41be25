//! The gauges of a gateway, read from its admin listener.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

/// Every gauge with its value; those with labels are added up.
pub(crate) fn gauges(admin: SocketAddr) -> anyhow::Result<Vec<(String, f64)>> {
    let mut socket = TcpStream::connect(admin).context("no admin listener")?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        socket,
        "GET /metrics HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<(String, f64)> {
    let names = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        (kind.trim() == "gauge").then_some(name)
    });
    names
        .map(|name| {
            let values = text.lines().filter_map(|line| {
                let rest = line.strip_prefix(name)?;
                let starts_value = rest.starts_with(' ') || rest.starts_with('{');
                starts_value.then(|| rest.rsplit(' ').next()?.trim().parse::<f64>().ok())?
            });
            (name.to_owned(), values.sum())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_summed_over_their_labels_and_counters_left_out() {
        let text = "# TYPE a_open gauge\na_open{x=\"1\"} 2\na_open{x=\"2\"} 3\n\
                    # TYPE a_open_total counter\na_open_total 9\n";
        assert_eq!(parse(text), vec![("a_open".to_owned(), 5.0)]);
    }
}
