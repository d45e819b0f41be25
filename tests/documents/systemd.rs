//! `deploy/systemd/drawbridge.service` lets the gateway do what it does.

use crate::{read, root};

/// The values of all lines `key=`.
fn values(key: &str) -> Vec<String> {
    let unit = read(&root().join("deploy/systemd/drawbridge.service"));
    let lines = unit.lines().filter_map(|line| line.strip_prefix(key));
    lines
        .filter_map(|rest| rest.strip_prefix('='))
        .map(str::to_owned)
        .collect()
}

/// No set of systemd before 254 has the calls of Landlock, and none that the unit names has them later.
#[test]
fn landlock_is_allowed_and_no_call_kills() {
    let filters = values("SystemCallFilter");
    let allowed: Vec<&str> = filters.iter().flat_map(|one| one.split(' ')).collect();
    for call in [
        "@system-service",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
    ] {
        assert!(allowed.contains(&call), "{call} is missing: {allowed:?}");
    }
    assert_eq!(values("SystemCallErrorNumber"), ["EPERM"]);
}

#[test]
fn the_state_directory_is_the_one_of_the_gateway() {
    let directory = values("StateDirectory").concat();
    let home = values("Environment").concat();
    // The gateway adds its own name.
    assert_eq!(directory, "drawbridge");
    assert_eq!(home, "XDG_STATE_HOME=/var/lib");
    // With a dynamic user it would be a symbolic link, which is no directory of ours.
    assert_eq!(values("User"), ["drawbridge"]);
    assert!(values("DynamicUser").is_empty());
}

#[test]
fn a_wrong_configuration_is_not_tried_again() {
    assert_eq!(values("RestartPreventExitStatus"), ["78"]);
    let start = values("ExecStart").concat();
    assert!(
        start.ends_with("serve --config /etc/drawbridge/gateway.toml"),
        "{start}"
    );
}
