//! The table of callers' accounts in the text of `/status`.

use std::fmt;

use super::{TextTable, UpstreamStatus};

/// Writes the table behind an empty line; nothing where no accounts were counted.
pub(super) fn write(f: &mut fmt::Formatter<'_>, upstreams: &[UpstreamStatus]) -> fmt::Result {
    let counted = upstreams.iter().filter_map(|upstream| {
        let account = upstream.account.as_ref()?;
        Some((&upstream.name, &account.kind, account.accounts?))
    });
    let mut table = TextTable::new([
        "ACCOUNTS AT",
        "KIND",
        "CONNECTED",
        "REFUSED",
        "ENDED",
        "UNREADABLE",
    ]);
    let mut is_empty = true;
    for (name, kind, numbers) in counted {
        is_empty = false;
        let cells = [
            name.clone(),
            kind.clone(),
            numbers.connected.to_string(),
            numbers.refused.to_string(),
            numbers.ended.to_string(),
            numbers.unreadable.to_string(),
        ];
        table.row(cells, None);
    }
    if is_empty {
        return Ok(());
    }
    write!(f, "\n{table}")
}

#[cfg(test)]
mod tests {
    use super::super::{AccountNumbers, AccountStatus, UpstreamState};
    use super::*;

    /// Writes the table as text.
    struct Shown(Vec<UpstreamStatus>);

    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write(f, &self.0)
        }
    }

    fn upstream(name: &str, accounts: Option<AccountNumbers>) -> UpstreamStatus {
        let status = serde_json::json!({
            "name": name, "transport": "auto", "state": UpstreamState::Up, "since": "", "since_s": 0,
            "sessions": 0, "children": 0, "calls_in_flight": 0, "calls_per_minute": 0.0,
            "failures_per_minute": 0.0,
            "account": AccountStatus { kind: "user".into(), accounts, cause: None },
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn upstreams_whose_accounts_were_counted_have_a_row() {
        let numbers = AccountNumbers {
            connected: 12,
            refused: 1,
            ended: 2,
            unreadable: 0,
        };
        let all = vec![upstream("files", None), upstream("tracker", Some(numbers))];
        let table = "
ACCOUNTS AT  KIND  CONNECTED  REFUSED  ENDED  UNREADABLE
tracker      user  12         1        2      0
";
        assert_eq!(Shown(all).to_string(), table);
        assert_eq!(Shown(vec![upstream("files", None)]).to_string(), "");
    }
}
