//! URLs of Redis: one server, sentinels or a Cluster, with several hosts in one URL.

use super::cluster_types::{RedisConfig, RedisTopology};
use crate::secret::Secret;

/// Default port of a server.
const SERVER_PORT: u16 = 6379;
/// Default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;
/// Most hosts of one URL.
const MAX_HOSTS: usize = 64;
/// A password with characters that end the part of a URL in which it stands.
const UNESCAPED: &str = "has a `/`, `?` or `#` before its `@`: in a password they are written %2F, %3F and %23, and an \
    `@` in the name of a master %40";

/// Parses a URL such as `rediss://user:password@host:6379/0`. Certificates and the password of sentinels are separate
/// keys.
///
/// # Errors
/// The error, without quoting the URL, which may hold a password.
pub(crate) fn parse(url: &str) -> Result<RedisConfig, String> {
    let wanted = "expected redis://host:6379, rediss:// for TLS, redis+sentinel://host:26379/name or \
        redis+cluster://host:6379";
    // A variable may end with the line break of the file that it was made from.
    let (scheme, rest) = url.trim_end().split_once("://").ok_or(wanted)?;
    let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
        ("redis", kind) => (false, kind),
        ("rediss", kind) => (true, kind),
        _ => return Err(wanted.to_owned()),
    };
    if let Some((_, after)) = rest.split_once(['?', '#']) {
        let what = if after.contains('@') {
            UNESCAPED
        } else {
            "may not have a query or a fragment"
        };
        return Err(what.to_owned());
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // An `@` in the name of a master is written %40.
    if path.contains('@') {
        return Err(UNESCAPED.to_owned());
    }
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let port = if kind == "sentinel" {
        SENTINEL_PORT
    } else {
        SERVER_PORT
    };
    let nodes = hosts
        .split(',')
        .map(|host| node(host, port))
        .collect::<Result<Vec<_>, _>>()?;
    if nodes.len() > MAX_HOSTS {
        return Err(format!("names more than {MAX_HOSTS} hosts"));
    }
    let (topology, database) = match kind {
        "" if nodes.len() > 1 => {
            return Err("names several hosts: redis+sentinel:// or redis+cluster://".to_owned());
        }
        "" => (RedisTopology::Single, path),
        "cluster" => (RedisTopology::Cluster, path),
        "sentinel" => {
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            if master.is_empty() {
                return Err("names no master: redis+sentinel://host:26379/name".to_owned());
            }
            let topology = RedisTopology::Sentinel {
                master: decode(master)?,
                password: None,
            };
            (topology, database)
        }
        _ => return Err(wanted.to_owned()),
    };
    let database = match database {
        "" => 0,
        text => text
            .parse()
            .ok()
            .filter(|number| (0..=65_535).contains(number))
            .ok_or("the path is no number of a database")?,
    };
    if matches!(topology, RedisTopology::Cluster) && database != 0 {
        return Err("a Cluster has database 0 only".to_owned());
    }
    let (user, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        Some((user, password)) => (decode(user)?, decode(password)?),
        None => (String::new(), String::new()),
    };
    Ok(RedisConfig {
        topology,
        nodes,
        database,
        user: (!user.is_empty()).then_some(user),
        password: (!password.is_empty()).then(|| Secret::new(password)),
        tls,
        ca: None,
        identity: None,
    })
}

/// `host`, `host:port` or `[v6]:port`.
fn node(text: &str, default: u16) -> Result<(String, u16), String> {
    let wanted = "a host is missing, or its port is no number";
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']').ok_or(wanted)?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or(wanted)?,
        None => default,
    };
    if host.is_empty() {
        return Err(wanted.to_owned());
    }
    Ok((host.to_owned(), port))
}

/// Decodes percent escapes such as `%41`. Spec: RFC 3986 §2.1.
fn decode(text: &str) -> Result<String, String> {
    let wrong = || "holds a % that begins no escape: write %25".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or_else(wrong)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn host(name: &str, port: u16) -> (String, u16) {
        (name.to_owned(), port)
    }

    #[test]
    fn server_has_defaults() {
        let one = parse("redis://redis.test").unwrap();
        assert!(matches!(one.topology, RedisTopology::Single));
        assert_eq!(one.nodes, [host("redis.test", 6379)]);
        assert_eq!(
            (one.database, one.tls, one.user.is_none()),
            (0, false, true)
        );
    }

    #[test]
    fn user_password_and_database_are_read() {
        let one = parse("rediss://gate:p%40ss@[::1]:7000/3").unwrap();
        assert_eq!(one.nodes, [host("::1", 7000)]);
        assert_eq!((one.database, one.tls), (3, true));
        assert_eq!(one.user.as_deref(), Some("gate"));
        assert_eq!(one.password.unwrap().expose(), "p@ss");
    }

    #[test]
    fn line_break_at_the_end_is_no_part_of_the_url() {
        let one = parse("redis://h:7000\n").unwrap();
        assert_eq!(one.nodes, [host("h", 7000)]);
    }

    #[test]
    fn password_may_stand_without_a_user() {
        let one = parse("redis://:word@h").unwrap();
        assert_eq!(one.user, None);
        assert_eq!(one.password.unwrap().expose(), "word");
    }

    #[test]
    fn sentinels_name_their_master() {
        let one = parse("redis+sentinel://u:p@a:1,b/mymaster/2").unwrap();
        assert_eq!(one.nodes, [host("a", 1), host("b", 26379)]);
        assert_eq!(one.database, 2);
        let RedisTopology::Sentinel { master, password } = one.topology else {
            panic!("sentinels");
        };
        assert_eq!(master, "mymaster");
        assert!(password.is_none());
    }

    #[test]
    fn name_of_a_master_may_have_an_escaped_at() {
        let one = parse("redis+sentinel://h/main%40home").unwrap();
        let RedisTopology::Sentinel { master, .. } = one.topology else {
            panic!("sentinels");
        };
        assert_eq!(master, "main@home");
    }

    #[test]
    fn cluster_has_several_hosts() {
        let one = parse("rediss+cluster://a:1,b:2").unwrap();
        assert!(one.tls && matches!(one.topology, RedisTopology::Cluster));
        assert_eq!(one.nodes, [host("a", 1), host("b", 2)]);
    }

    #[rstest]
    #[case("redis://gate:hunter2/b@h:6379")]
    #[case("redis://gate:7/hunter2@h:6379")]
    #[case("rediss+cluster://:hunter2?b@h")]
    #[case("redis+sentinel://:hunter2#b@h/main")]
    #[case("redis+sentinel://:hunter2/b@h/main")]
    #[case("redis+sentinel://gate:7/hunter2@h:26379/main")]
    #[case("redis+sentinel://gate:7/hunter2@h:26379")]
    fn password_that_is_not_escaped_is_named(#[case] url: &str) {
        let said = parse(url).unwrap_err();
        assert!(said.contains("%2F") && !said.contains("hunter2"), "{said}");
    }

    #[rstest]
    #[case("http://hunter2@h")]
    #[case("redis:hunter2")]
    #[case("redis+other://hunter2@h")]
    #[case("redis://hunter2@a,b")]
    #[case("redis://hunter2@h/x")]
    #[case("redis://hunter2@h?a=b")]
    #[case("redis://hunter2@h:0")]
    #[case("redis://hunter2@")]
    #[case("redis://hunter2%@h")]
    #[case("redis+sentinel://hunter2@h")]
    #[case("redis+cluster://hunter2@h/1")]
    fn other_urls_are_refused_unquoted(#[case] url: &str) {
        let said = parse(url).unwrap_err();
        assert!(!said.contains("hunter2"), "{said}");
    }
}
