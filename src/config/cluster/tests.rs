use rstest::rstest;

use super::*;
use crate::config::{ConfigErrors, parse};

const REST: &str = "[auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"x\"\n";
const SEAL: &str = "[keys]\nseal = [{ id = \"k1\", key = \"${KEY}\" }]\n";
const ACCOUNT: &str = "[upstreams.b]\nurl = \"https://b.test/mcp\"\n[upstreams.b.auth]\nkind = \
    \"client_credentials\"\nissuer = \"https://i.test\"\nclient_id = \"c\"\nclient_secret = \"hunter2\"\n";

fn parsed(text: &str) -> Result<Config, ConfigErrors> {
    let env = |name: &str| (name == "KEY").then(|| "k".repeat(32));
    parse(text, "/etc/drawbridge/gateway.toml", &env)
}

/// A file with these lines in `[cluster]`.
fn with(lines: &str) -> Result<Config, ConfigErrors> {
    parsed(&format!("{REST}{SEAL}[cluster]\n{lines}"))
}

fn refusal(lines: &str) -> String {
    with(lines).unwrap_err().to_string()
}

const SECRET: &str = "secret = \"${KEY}\"\n";
const REDIS: &str = "redis = \"redis://127.0.0.1:6379\"\n";

#[test]
fn no_table_is_no_cluster() {
    assert!(parsed(REST).unwrap().cluster.is_none());
}

#[test]
fn smallest_table_gets_every_default() {
    let cluster = with(&format!("{REDIS}{SECRET}")).unwrap().cluster.unwrap();
    assert_eq!(cluster.listen.to_string(), "127.0.0.1:8090");
    assert_eq!(cluster.advertise, None);
    assert_eq!(cluster.prefix, "drawbridge");
    assert_eq!(cluster.lease, Duration::from_secs(5));
    assert!(matches!(cluster.trust, ReplicaTrust::Secret(_)));
    assert_eq!(cluster.redis.nodes, [("127.0.0.1".to_owned(), 6379)]);
}

#[test]
fn redis_may_be_a_table() {
    let redis = "redis = { url = \"redis+sentinel://u@a,b/main\", password = \"${KEY}\", sentinel_password = \"${KEY}\" }\n";
    let redis = with(&format!("{redis}{SECRET}"))
        .unwrap()
        .cluster
        .unwrap()
        .redis;
    assert_eq!(redis.user.as_deref(), Some("u"));
    assert!(redis.password.is_some());
    let RedisTopology::Sentinel { password, .. } = redis.topology else {
        panic!("sentinels");
    };
    assert!(password.is_some());
}

#[test]
fn empty_passwords_of_redis_count_as_missing() {
    let redis = "redis = { url = \"redis+sentinel://u:hunter2@a,b/main\", password = \"\", sentinel_password = \"\" }\n";
    let redis = with(&format!("{redis}{SECRET}"))
        .unwrap()
        .cluster
        .unwrap()
        .redis;
    assert_eq!(redis.password.unwrap().expose(), "hunter2");
    let RedisTopology::Sentinel { password, .. } = redis.topology else {
        panic!("sentinels");
    };
    assert!(password.is_none());
}

#[rstest]
#[case::no_redis(SECRET.to_owned(), "cluster.redis: is required")]
#[case::no_url(format!("redis = {{ password = \"hunter2\" }}\n{SECRET}"), "cluster.redis.url: is required")]
#[case::other_scheme(format!("redis = \"http://hunter2@h\"\n{SECRET}"), "cluster.redis: expected redis://")]
#[case::plain_with_ca(format!("redis = {{ url = \"redis://h\", ca = \"gone.pem\" }}\n{SECRET}"), "begin `url` with rediss")]
#[case::half_identity(format!("redis = {{ url = \"rediss://h\", key = \"gone.pem\" }}\n{SECRET}"), "name both files")]
#[case::sentinel_password(format!("redis = {{ url = \"redis://h\", sentinel_password = \"hunter2\" }}\n{SECRET}"), "is for redis+sentinel:// only")]
#[case::no_trust(REDIS.to_owned(), "cluster: needs `secret` or `tls`")]
#[case::short_secret(format!("{REDIS}secret = \"hunter2\"\n"), "is shorter than 32 bytes")]
#[case::two_trusts(format!("{REDIS}{SECRET}tls = {{ ca = \"a\", cert = \"b\", key = \"c\" }}\n"), "stands beside `secret`")]
#[case::no_files(format!("{REDIS}tls = {{ ca = \"gone.pem\" }}\n"), "cluster.tls.cert: is required")]
#[case::prefix(format!("{REDIS}{SECRET}prefix = \"a{{b}}\"\n"), "cluster.prefix: must be 1 to 64")]
#[case::lease(format!("{REDIS}{SECRET}lease = \"900ms\"\n"), "cluster.lease: must be from 1s to 5m")]
#[case::advertise(format!("{REDIS}{SECRET}advertise = \"10.0.0.7\"\n"), "expected a host and a port")]
#[case::same_port(format!("{REDIS}{SECRET}listen = \"0.0.0.0:8080\"\n"), "is the address of server.listen")]
fn mistake_is_refused_without_its_secrets(#[case] lines: String, #[case] said: &str) {
    let text = refusal(&lines);
    assert!(text.contains(said), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn variable_that_is_not_set_is_the_only_mistake_of_its_key() {
    let tls = "tls = { ca = \"gone.pem\", cert = \"${GONE}\", key = \"gone.pem\" }\n";
    let text = refusal(&format!("{REDIS}{tls}"));
    let said = "cluster.tls.cert: environment variable GONE is not set";
    assert!(text.contains(said), "{text}");
    assert!(!text.contains("is required"), "{text}");
    let pair = "cert = \"${GONE}\", key = \"gone.pem\"";
    let redis = format!("redis = {{ url = \"rediss://h\", {pair} }}\n");
    let text = refusal(&format!("{redis}{SECRET}"));
    let said = "cluster.redis.cert: environment variable GONE is not set";
    assert!(text.contains(said), "{text}");
    assert!(!text.contains("belong together"), "{text}");
}

#[test]
fn cluster_needs_sealing_keys() {
    let refused = parsed(&format!("{REST}[cluster]\n{REDIS}{SECRET}")).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("keys.seal: is required with [cluster]"),
        "{text}"
    );
}

#[test]
fn cluster_with_accounts_needs_vault_and_server() {
    let cluster = format!("[cluster]\n{REDIS}{SECRET}");
    let text = parsed(&format!("{REST}{ACCOUNT}{SEAL}{cluster}"))
        .unwrap_err()
        .to_string();
    for said in [
        "keys.vault: is required with [cluster]",
        "database.url: PostgreSQL is required",
    ] {
        assert!(text.contains(said), "{text}");
    }
    let whole =
        "vault = [{ id = \"k1\", key = \"${KEY}\" }]\n[database]\nurl = \"postgres://h/a\"\n";
    let config = parsed(&format!("{REST}{ACCOUNT}{SEAL}{whole}{cluster}")).unwrap();
    assert!(config.cluster.is_some());
}
