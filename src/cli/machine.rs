//! Warnings of `check` about this machine: missing programs and directories, too few file descriptors, no isolation of
//! children.

use std::path::Path;

use crate::config::{CarrierConfig, Config, ConfigDoubt, DatabaseUrl};
use crate::descriptors::{self, DescriptorFit};
use crate::process::{ChildIsolation, HostEnvironment, missing};

/// Warnings about `config` on this machine.
pub(super) fn doubts(config: &Config) -> Vec<ConfigDoubt> {
    let mut doubts = missing_paths(config);
    doubts.extend(database_directory(config));
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

/// The directory of an `SQLite` file that has to be made at the start, if it is not there.
fn database_directory(config: &Config) -> Option<ConfigDoubt> {
    let DatabaseUrl::Sqlite(file) = &config.database.url else {
        return None;
    };
    let directory = file.parent().filter(|path| *path != Path::new(""))?;
    if !config.has_user_accounts() || directory.is_dir() {
        return None;
    }
    Some(ConfigDoubt {
        key: "database.url".to_owned(),
        what: format!("there is no directory {}", directory.display()),
        hint: "create it, for the user of the gateway alone: the start makes the file, and no directory".to_owned(),
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
