use rstest::rstest;

use super::*;

fn policy(rules: &[(&[&str], &[&str], &[&str])]) -> ToolPolicy {
    let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    let rule = |(tools, upstreams, scopes): &(&[&str], &[&str], &[&str])| config::ToolScope {
        tools: owned(tools),
        upstreams: owned(upstreams),
        scopes: owned(scopes),
    };
    ToolPolicy::new(&config::AuthConfig {
        keeps_tokens: false,
        mode: config::AuthMode::OAuth,
        required_scopes: Vec::new(),
        login_scopes: Vec::new(),
        issuers: Vec::new(),
        tool_scopes: rules.iter().map(rule).collect(),
        scope_implies: Vec::new(),
    })
}

fn principal(scopes: &[&str]) -> Principal {
    let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    Principal::new("i", "s", "c", scopes, None)
}

fn endpoint(tools: &[(&str, &str)]) -> Endpoint {
    let owned = |(upstream, tool): &(&str, &str)| ((*upstream).to_owned(), (*tool).to_owned());
    Endpoint {
        name: "dev".into(),
        path: "/mcp/dev".to_owned(),
        resource: "https://gw.test/mcp/dev".to_owned(),
        upstreams: vec!["files".into(), "git".into()],
        pure: false,
        tools: tools.iter().map(owned).collect(),
        ..Endpoint::unreachable(&"files".into())
    }
}

const ADMIN: (&[&str], &[&str], &[&str]) = (&["admin_*"], &[], &["mcp:admin"]);

#[rstest]
#[case::no_rule_concerns_it("tools/call", "read", &[], true)]
#[case::scope_missing("tools/call", "admin_reset", &["mcp:tools"], false)]
#[case::scope_there("tools/call", "admin_reset", &["mcp:admin"], true)]
#[case::longer_scope("tools/call", "admin_reset", &["mcp:administrator"], false)]
#[case::not_a_tool("prompts/get", "admin_reset", &[], true)]
fn a_tool_needs_the_scopes_of_its_rule(
    #[case] method: &str,
    #[case] name: &str,
    #[case] scopes: &[&str],
    #[case] allowed: bool,
) {
    let decision = policy(&[ADMIN]).decide(
        &principal(scopes),
        &endpoint(&[]),
        "files",
        method,
        Some(name),
    );
    assert_eq!(decision.is_ok(), allowed);
}

// SPEC A-11
#[rstest]
#[case("ADMIN_wipe")]
#[case(" admin_wipe")]
#[case("admin_wipe\n")]
#[case("\u{feff}Admin_Wipe\u{a0}")]
fn scope_is_needed_however_the_name_is_spelled(#[case] name: &str) {
    let policy = policy(&[ADMIN]);
    let decide = |scopes: &[&str]| {
        let caller = principal(scopes);
        policy.decide(&caller, &endpoint(&[]), "files", CALL, Some(name))
    };
    assert!(decide(&["mcp:tools"]).is_err());
    assert!(decide(&["mcp:admin"]).is_ok());
}

#[test]
fn rule_holds_however_the_operator_spells_it() {
    let policy = policy(&[(&["Admin_*"], &[], &["mcp:admin"])]);
    let caller = principal(&[]);
    let decide = |name| policy.decide(&caller, &endpoint(&[]), "files", CALL, Some(name));
    assert!(decide("Admin_wipe").is_err() && decide("admin_wipe").is_err());
    // In no list and under no rule: Apps call such tools.
    assert!(decide("unlisted").is_ok());
}

// SPEC A-11
#[test]
fn all_missing_scopes_of_all_rules_are_named_at_once() {
    let policy = policy(&[
        (&["read"], &[], &["x"]),
        ADMIN,
        (&["*_reset"], &["files"], &["danger", "mcp:admin"]),
    ]);
    let denial = policy
        .decide(
            &principal(&["x"]),
            &endpoint(&[]),
            "files",
            CALL,
            Some("admin_reset"),
        )
        .expect_err("two scopes are missing");
    assert_eq!(
        denial,
        Denial {
            rule: "auth.tool_scopes[1]".to_owned(),
            missing_scopes: vec!["mcp:admin".to_owned(), "danger".to_owned()],
            hidden: false,
        }
    );
    assert_eq!(
        denial.public(),
        "this call needs the scope mcp:admin danger"
    );
}

#[test]
fn a_rule_for_one_upstream_leaves_others_alone() {
    let policy = policy(&[(&["*"], &["files"], &["mcp:files"])]);
    let ask = |upstream| {
        policy.decide(
            &principal(&[]),
            &endpoint(&[]),
            upstream,
            CALL,
            Some("read"),
        )
    };
    assert!(ask("files").is_err());
    assert!(ask("git").is_ok());
}

#[test]
fn a_call_without_a_name_is_decided_as_the_empty_name() {
    let policy = policy(&[(&["*"], &[], &["mcp:all"])]);
    let decision = policy.decide(&principal(&[]), &endpoint(&[]), "files", CALL, None);
    assert!(decision.is_err());
}

#[rstest]
#[case::selected("files", "read_file", true)]
#[case::not_selected("files", "write_file", false)]
#[case::selected_elsewhere("git", "read_file", false)]
fn what_the_endpoint_does_not_select_is_neither_shown_nor_callable(
    #[case] upstream: &str,
    #[case] tool: &str,
    #[case] shown: bool,
) {
    let (policy, endpoint) = (policy(&[]), endpoint(&[("files", "read_*")]));
    let caller = principal(&[]);
    assert_eq!(policy.shows_tool(&endpoint, upstream, tool), shown);
    match policy.decide(&caller, &endpoint, upstream, CALL, Some(tool)) {
        Ok(_) => assert!(shown),
        Err(denial) => {
            assert!(!shown && denial.hidden && denial.missing_scopes.is_empty());
            assert_eq!(denial.rule, "endpoints.dev.tools");
            assert_eq!(denial.public(), "there is no such tool");
        }
    }
}

#[test]
fn a_tool_that_needs_more_scopes_is_still_shown() {
    assert!(policy(&[ADMIN]).shows_tool(&endpoint(&[]), "files", "admin_reset"));
}
