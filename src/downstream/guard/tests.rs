use rstest::rstest;

use super::*;
use crate::downstream::samples;

fn settings(listen: &str, public_url: &str) -> config::HttpServerConfig {
    let mut settings = samples::server(listen, public_url);
    settings.allowed_origins = vec![
        "https://claude.ai/".to_owned(),
        "https://app.example.com:443".to_owned(),
        "vscode-webview://abc".to_owned(),
        "null".to_owned(),
    ];
    settings.allowed_hosts = vec![
        "gateway.internal".to_owned(),
        "other.internal:8443".to_owned(),
    ];
    settings
}

fn public() -> OriginGuard {
    OriginGuard::new(&settings("0.0.0.0:8080", "https://mcp.example.com/base"))
}

fn local() -> OriginGuard {
    OriginGuard::new(&settings("127.0.0.1:8080", "http://127.0.0.1:8080"))
}

fn check(
    guard: &OriginGuard,
    kind: RequestKind,
    host: &str,
    origin: &[&str],
) -> Result<(), GuardFailure> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::from_str(host).unwrap());
    for value in origin {
        headers.append(ORIGIN, HeaderValue::from_str(value).unwrap());
    }
    guard.check(kind, &Uri::from_static("/mcp"), &headers)
}

// SPEC T-04.
#[rstest]
#[case::public_name("mcp.example.com", Ok(()))]
#[case::any_case("MCP.Example.COM", Ok(()))]
#[case::with_port("mcp.example.com:8443", Ok(()))]
#[case::absolute_name("mcp.example.com.", Ok(()))]
#[case::listed("gateway.internal:8080", Ok(()))]
#[case::listed_port("other.internal:8443", Ok(()))]
#[case::another_port("other.internal:1", Err(GuardFailure::Host))]
#[case::empty_port("mcp.example.com:", Ok(()))]
#[case::empty_port_for_a_listed_one("other.internal:", Err(GuardFailure::Host))]
#[case::foreign("evil.example", Err(GuardFailure::Host))]
#[case::suffix("mcp.example.com.evil.example", Err(GuardFailure::Host))]
#[case::prefix("evil-mcp.example.com", Err(GuardFailure::Host))]
#[case::user_info("mcp.example.com@evil.example", Err(GuardFailure::MalformedHost))]
#[case::user_info_in_front("x@mcp.example.com", Err(GuardFailure::MalformedHost))]
#[case::bad_port("mcp.example.com:80x", Err(GuardFailure::MalformedHost))]
#[case::loopback_name_on_a_public_listener("localhost", Err(GuardFailure::Host))]
#[case::empty("", Err(GuardFailure::MalformedHost))]
fn only_our_own_names_are_served(#[case] host: &str, #[case] expected: Result<(), GuardFailure>) {
    assert_eq!(check(&public(), RequestKind::Mcp, host, &[]), expected);
}

#[rstest]
#[case("localhost:9999", true)]
#[case("127.0.0.1", true)]
#[case("[::1]:8080", true)]
#[case("[::1", false)]
#[case("evil.example", false)]
fn a_loopback_listener_answers_to_loopback_names(#[case] host: &str, #[case] allowed: bool) {
    assert_eq!(
        check(&local(), RequestKind::Mcp, host, &[]).is_ok(),
        allowed
    );
}

// SPEC T-02, T-03.
#[rstest]
#[case::own("https://mcp.example.com", true)]
#[case::listed_with_slash("https://claude.ai", true)]
#[case::listed_with_default_port("https://app.example.com", true)]
#[case::program("vscode-webview://abc", true)]
#[case::null("null", false)]
#[case::foreign("https://evil.example", false)]
#[case::other_scheme("http://claude.ai", false)]
#[case::other_port("https://claude.ai:444", false)]
#[case::suffix("https://claude.ai.evil.example", false)]
#[case::loopback("http://localhost:3000", false)]
fn only_allowed_origins_may_ask(#[case] origin: &str, #[case] allowed: bool) {
    let verdict = check(&public(), RequestKind::Mcp, "mcp.example.com", &[origin]);
    assert_eq!(
        verdict,
        if allowed {
            Ok(())
        } else {
            Err(GuardFailure::Origin)
        }
    );
}

#[rstest]
#[case("http://localhost:3000", true)]
#[case("http://127.0.0.1", true)]
#[case("http://[::1]:5173", true)]
#[case("http://localhost.evil.example", false)]
#[case("null", false)]
fn loopback_origins_may_ask_a_loopback_gateway(#[case] origin: &str, #[case] allowed: bool) {
    assert_eq!(
        check(&local(), RequestKind::Mcp, "localhost", &[origin]).is_ok(),
        allowed
    );
}

#[test]
fn loopback_origins_may_not_ask_a_public_gateway_behind_a_loopback_listener() {
    let guard = OriginGuard::new(&settings("127.0.0.1:8080", "https://mcp.example.com"));
    let verdict = check(
        &guard,
        RequestKind::Mcp,
        "localhost",
        &["http://localhost:3000"],
    );
    assert_eq!(verdict, Err(GuardFailure::Origin));
}

#[test]
fn two_origins_are_refused_even_if_each_is_allowed() {
    let origins = ["https://claude.ai", "https://mcp.example.com"];
    let verdict = check(&public(), RequestKind::Mcp, "mcp.example.com", &origins);
    assert_eq!(verdict, Err(GuardFailure::Origin));
}

#[rstest]
#[case(RequestKind::Metadata)]
#[case(RequestKind::Preflight)]
fn metadata_and_preflights_are_exempt_from_origin_but_not_from_host(#[case] kind: RequestKind) {
    let evil = &["https://evil.example"];
    assert_eq!(check(&public(), kind, "mcp.example.com", evil), Ok(()));
    assert_eq!(
        check(&public(), kind, "evil.example", evil),
        Err(GuardFailure::Host)
    );
}

// SPEC T-04; RFC 9112 §3.2, RFC 9113 §8.3.1.
#[rstest]
#[case::authority_alone("https://mcp.example.com/mcp", &[], Ok(()))]
#[case::foreign_authority("https://evil.example/mcp", &[], Err(GuardFailure::Host))]
#[case::both_agree("https://mcp.example.com/mcp", &["mcp.example.com"], Ok(()))]
#[case::they_differ("https://mcp.example.com/mcp", &["gateway.internal"], Err(GuardFailure::MalformedHost))]
#[case::nothing("/mcp", &[], Err(GuardFailure::MalformedHost))]
#[case::two_headers("/mcp", &["mcp.example.com", "mcp.example.com"], Err(GuardFailure::MalformedHost))]
fn the_target_authority_counts_as_host(
    #[case] uri: &str,
    #[case] hosts: &[&str],
    #[case] expected: Result<(), GuardFailure>,
) {
    let mut headers = HeaderMap::new();
    for host in hosts {
        headers.append(HOST, HeaderValue::from_str(host).unwrap());
    }
    let verdict = public().check(RequestKind::Mcp, &uri.parse().unwrap(), &headers);
    assert_eq!(verdict, expected);
}

#[test]
fn operators_may_leave_the_host_out_but_not_repeat_it() {
    let guard = OriginGuard::for_operators(&config::AdminConfig {
        listen: "127.0.0.1:9090".parse().unwrap(),
        allowed_hosts: Vec::new(),
        token: None,
    });
    let mut headers = HeaderMap::new();
    let check =
        |headers: &HeaderMap| guard.check(RequestKind::Page, &Uri::from_static("/ready"), headers);
    assert_eq!(check(&headers), Ok(()));
    headers.append(HOST, HeaderValue::from_static("10.1.2.3"));
    assert_eq!(check(&headers), Ok(()));
    headers.append(HOST, HeaderValue::from_static("10.1.2.3"));
    assert_eq!(check(&headers), Err(GuardFailure::MalformedHost));
}
