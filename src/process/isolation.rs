//! Isolation of children from each other: each runs in a Landlock domain of its own, so that none reads the
//! environment or the memory of another, or sends it signals. Spec: Linux `Documentation/userspace-api/landlock.rst`.

use landlock::{
    AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Whether a child can read what is in its siblings' environment and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildIsolation {
    /// No: each is in a Landlock domain of its own.
    Isolated,
    /// Yes: `stdio.trust_children` says that it may.
    Trusted,
    /// Yes: the kernel cannot keep them apart, or a filter of system calls forbids it.
    Unsupported,
}

impl ChildIsolation {
    /// What children get on this machine, where `trusted` is `stdio.trust_children`. Makes a ruleset, and drops it.
    #[must_use]
    pub fn available(trusted: bool) -> Self {
        if trusted {
            Self::Trusted
        } else if ruleset().is_ok() {
            Self::Isolated
        } else {
            Self::Unsupported
        }
    }

    /// One word for `/status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Trusted => "trusted",
            Self::Unsupported => "unsupported",
        }
    }

    /// A warning for the operator; `None` where children are isolated, or trusted.
    #[must_use]
    pub fn complaint(self) -> Option<&'static str> {
        (self == Self::Unsupported).then_some(
            "children of stdio upstreams can read each other's environment and memory: Landlock cannot be used. \
             Linux 5.19 and later have it, where `landlock` stands in the boot option `lsm=`, unless a filter of system \
             calls forbids it (`SystemCallFilter=` of systemd, seccomp of a container); `stdio.trust_children = true` \
             accepts that",
        )
    }

    /// A warning for the operator where callers' accounts are in the environment of children; `None` where these are
    /// isolated.
    #[must_use]
    pub fn account_complaint(self) -> Option<&'static str> {
        match self {
            Self::Isolated => None,
            Self::Trusted => Some(
                "children of stdio upstreams can read the tokens and keys of other callers in each other's environment, as \
                 `stdio.trust_children` is true",
            ),
            Self::Unsupported => Some(
                "accounts of stdio upstreams are not used: Landlock cannot be used (the kernel, or a filter of \
                 system calls), and children could read each other's tokens and keys; `stdio.trust_children = true` \
                 accepts that",
            ),
        }
    }
}

/// Capabilities, of root for instance, with which the kernel shows the environment of others without asking Landlock.
const READ_OTHERS: CapabilitySet = CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN);

/// Puts this process, which must have one thread, into a Landlock domain of its own, without `CAP_PERFMON` and
/// `CAP_SYS_ADMIN`. From then on it and its descendants gain no privileges (`no_new_privs`, required by Landlock), so that
/// an exec by root does not give the capabilities back.
///
/// # Errors
/// The kernel cannot do it.
pub(super) fn enter_own_domain() -> anyhow::Result<()> {
    ruleset()?.restrict_self()?;
    let mut sets = capabilities(None)?;
    for set in [
        &mut sets.effective,
        &mut sets.permitted,
        &mut sets.inheritable,
    ] {
        set.remove(READ_OTHERS);
    }
    Ok(set_capabilities(None, sets)?)
}

/// Makes the environment and the memory of this process unreadable for other processes of its user, and core dumps
/// impossible: they hold the configuration's secrets and callers' tokens.
///
/// # Errors
/// The kernel refuses, which it has no reason for.
pub fn hide_memory() -> std::io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// A ruleset that takes nothing else from a child than access to processes outside: any domain does that. From Linux
/// 6.12 on it holds signals, and no rule about files; before, a rule about files that allows everything, with which a
/// child cannot mount. Landlock of Linux 5.13 to 5.18 would refuse every rename between directories: it is not used.
fn ruleset() -> anyhow::Result<RulesetCreated> {
    let required = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if let Ok(signals) = required().scope(Scope::Signal) {
        return Ok(signals.create()?);
    }
    let renames = required().handle_access(AccessFs::Refer)?.create()?;
    let everywhere = PathBeneath::new(PathFd::new("/")?, AccessFs::Refer);
    Ok(renames.add_rule(everywhere)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A filter of system calls looks to this process like a kernel without Landlock.
    #[test]
    fn operator_is_told_of_both_reasons() {
        let said = ChildIsolation::Unsupported.complaint().unwrap_or_default();
        assert!(
            said.contains("lsm=") && said.contains("SystemCallFilter="),
            "{said}"
        );
        assert_eq!(ChildIsolation::Trusted.complaint(), None);
    }

    #[test]
    fn exposed_accounts_of_children_are_warned_of() {
        let said = |isolation: ChildIsolation| isolation.account_complaint().unwrap_or_default();
        assert_eq!(said(ChildIsolation::Isolated), "");
        assert!(said(ChildIsolation::Trusted).contains("can read the tokens and keys"));
        let unused = said(ChildIsolation::Unsupported);
        assert!(unused.contains("are not used") && unused.contains("stdio.trust_children = true"));
    }
}
