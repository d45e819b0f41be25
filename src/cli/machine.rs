//! Warnings of `check` about this machine: missing programs, missing or unwritable directories, too few file descriptors,
//! no isolation of children.

use std::path::Path;

use rustix::fs::{Access, access};

use crate::config::{CarrierConfig, Config, ConfigDoubt, DatabaseUrl};
use crate::descriptors::{self, DescriptorFit};
use crate::process::{ChildIsolation, HostEnvironment, missing, refused_state_dirs};

/// Warnings about `config` on this machine.
pub(super) fn doubts(config: &Config) -> Vec<ConfigDoubt> {
    let mut doubts = missing_paths(config);
    doubts.extend(database_file(config));
    doubts.extend(state_directory(config));
    doubts.extend(shortage(config, descriptors::attainable()));
    doubts.extend(exposed_children(config));
    doubts
}

/// Programs and directories of stdio upstreams that are not there.
fn missing_paths(config: &Config) -> Vec<ConfigDoubt> {
    let host = HostEnvironment::current();
    let mut doubts = Vec::new();
    for upstream in &config.upstreams {
        if let CarrierConfig::Stdio(carrier) = &upstream.carrier {
            for one in missing(&host.environment, carrier) {
                doubts.push(ConfigDoubt {
                    key: format!("upstreams.{}.{}", upstream.name, one.key),
                    what: one.what,
                    hint: one.remedy.to_owned(),
                });
            }
        }
    }
    doubts
}

/// The `SQLite` file of accounts, or its directory, which must be there, if this user cannot write it.
fn database_file(config: &Config) -> Option<ConfigDoubt> {
    let DatabaseUrl::Sqlite(file) = &config.database.url else {
        return None;
    };
    let directory = file.parent().filter(|path| *path != Path::new(""))?;
    if !config.has_user_accounts() {
        return None;
    }
    let (what, hint) = if directory.is_dir() {
        let error = unwritable(directory, Access::EXEC_OK)
            .or_else(|| unwritable(file, Access::READ_OK).filter(|_| file.exists()))?;
        let hint = "run this as the user of the gateway, who must own the file and be able to write in its directory";
        (error, hint)
    } else {
        let what = format!("there is no directory {}", directory.display());
        let hint = "create it, for the user of the gateway alone: the start makes the file, and no directory";
        (what, hint)
    };
    Some(ConfigDoubt {
        key: "database.url".to_owned(),
        what,
        hint: hint.to_owned(),
    })
}

/// Why this user cannot write `path`, or lacks the right `other` there.
fn unwritable(path: &Path, other: Access) -> Option<String> {
    let error = access(path, Access::WRITE_OK | other).err()?;
    Some(format!("{} cannot be written: {error}", path.display()))
}

/// Warns of state directories that cannot be used, if the configuration keeps something there: homes of children, the
/// database or its key.
fn state_directory(config: &Config) -> Option<ConfigDoubt> {
    let has_children = config.upstreams.iter().any(|one| one.carrier.is_stdio());
    let is_default = matches!(config.database.url, DatabaseUrl::Default);
    let has_data = config.has_user_accounts() && (is_default || config.keys.vault.is_empty());
    if !has_children && !has_data {
        return None;
    }
    let host = HostEnvironment::current();
    let refused = refused_state_dirs(&host);
    if refused.is_empty() {
        return None;
    }
    let causes = refused.join("; ");
    let what = match host.state_dirs.get(refused.len()..)? {
        [] => format!("no state directory can be used: {causes}"),
        [used] => format!(
            "{causes}; state is kept in {}, which may be emptied at any time",
            used.display()
        ),
        [used, ..] => format!("{causes}; state is kept in {}", used.display()),
    };
    Some(ConfigDoubt {
        key: "XDG_STATE_HOME".to_owned(),
        what,
        hint: "set it to a directory that the user of the gateway may write in, and run this as that user".to_owned(),
    })
}

/// Fewer file descriptors than the configuration may use.
fn shortage(config: &Config, limit: usize) -> Option<ConfigDoubt> {
    let complaint = DescriptorFit::new(config, limit).complaint()?;
    Some(ConfigDoubt {
        key: "server.max_connections".to_owned(),
        what: format!("started like this, {complaint}"),
        hint: String::new(),
    })
}

/// Warnings that children of stdio upstreams can read each other's environment and memory.
fn exposed_children(config: &Config) -> Vec<ConfigDoubt> {
    if !config.upstreams.iter().any(|one| one.carrier.is_stdio()) {
        return Vec::new();
    }
    let isolation = ChildIsolation::available(config.stdio.trust_children);
    let of_accounts = config.has_child_accounts();
    let of_accounts = of_accounts.then(|| isolation.account_complaint()).flatten();
    let complaints = isolation.complaint().into_iter().chain(of_accounts);
    let doubt = |complaint: &str| ConfigDoubt {
        key: "stdio.trust_children".to_owned(),
        what: format!("on this machine, {complaint}"),
        hint: String::new(),
    };
    complaints.map(doubt).collect()
}
