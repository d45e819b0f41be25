//! The operator's view of grants, without secrets.

use std::time::Duration;

use super::grants::key_in;
use super::records::OpenedGrant;
use super::{ConnectionState, GrantKey, Vault, time_of};
use crate::database::{Database, DatabaseError};

/// Rows read at once.
const PAGE: i64 = 500;
/// A page of grants. The comparison of rows is a range of the primary key; written with `OR` it is none, and every page
/// reads the grants of the pages before.
const PAGE_AFTER: &str = "SELECT owner, upstream, version, key_id, sealed, made, used FROM grants \
     WHERE (owner, upstream) > ($1, $2) ORDER BY owner, upstream LIMIT $3";

/// One grant, as operators see it.
#[derive(Debug)]
pub struct GrantListing {
    /// The principal and the upstream.
    pub key: GrantKey,
    /// Configured name of the key that seals the record; its fingerprint where that key is missing.
    pub sealed_by: String,
    /// When the account was connected, since the Unix epoch.
    pub made: Duration,
    /// When a call last used the grant, since the Unix epoch.
    pub used: Duration,
    /// The contents of the record.
    pub state: GrantState,
}

/// Whether the vault can open a grant's record.
#[derive(Debug)]
pub enum GrantState {
    /// The record opens.
    Readable {
        /// The authorization server.
        issuer: String,
        /// The scopes.
        scopes: Vec<String>,
        /// Name of the account, if known.
        account: Option<String>,
        /// The connection, and whether the upstream refused it.
        state: ConnectionState,
        /// When what is sent ends and nothing gets the next token, milliseconds since the Unix epoch.
        ends: Option<u64>,
    },
    /// The record's key is missing, or the row was edited.
    Unreadable,
}

/// All grants, as operators see them.
#[derive(Debug, Clone, Copy)]
pub struct GrantList<'a>(pub(super) &'a Vault);

impl GrantList<'_> {
    /// A page of grants after `after`, ordered by owner and upstream; empty at the end.
    ///
    /// # Errors
    /// The database fails.
    pub async fn page(self, after: Option<&GrantKey>) -> Result<Vec<GrantListing>, DatabaseError> {
        let (owner, upstream) = match after {
            Some(key) => (&key.owner.bytes()[..], &*key.upstream),
            None => (&[][..], ""),
        };
        let values = [owner.into(), upstream.into(), PAGE.into()];
        let rows = self.0.database().fetch(PAGE_AFTER, &values).await?;
        let mut page = Vec::with_capacity(rows.len());
        for row in rows {
            let (key, key_id) = (key_in(&row)?, row.text(3)?);
            let sealed = (&*key_id, &*row.bytes(4)?);
            let opened = self.0.open_grant(&key, row.int(2)?, sealed);
            page.push(GrantListing {
                key,
                sealed_by: self.0.0.keys.name_of(&key_id).unwrap_or(&key_id).to_owned(),
                made: time_of(row.int(5)?),
                used: time_of(row.int(6)?),
                state: opened.map_or(GrantState::Unreadable, GrantState::from),
            });
        }
        Ok(page)
    }

    /// Logs one ERROR per missing key of a grant. These grants count as not connected.
    ///
    /// # Errors
    /// The database fails.
    pub async fn report_missing_keys(self) -> Result<(), DatabaseError> {
        let text = "SELECT key_id, COUNT(*) FROM grants GROUP BY key_id";
        for row in self.0.database().fetch(text, &[]).await? {
            let key_id = row.text(0)?;
            if !self.0.0.keys.ids().any(|id| id == key_id) {
                self.0.report_missing_key(&key_id, row.int(1)?);
            }
        }
        Ok(())
    }
}

/// Whether `database` has grants, which open only under the keys that sealed them.
///
/// # Errors
/// The database fails.
pub async fn has_grants(database: &Database) -> Result<bool, DatabaseError> {
    let rows = database.fetch("SELECT 1 FROM grants LIMIT 1", &[]).await?;
    Ok(!rows.is_empty())
}

impl From<OpenedGrant> for GrantState {
    fn from(OpenedGrant { record, state }: OpenedGrant) -> Self {
        let lasts = record.refresh_token.is_some() && record.token_endpoint.is_some();
        let ends = match &record.access_token {
            Some(_) => record.access_ends,
            None => Some(0),
        };
        Self::Readable {
            issuer: record.issuer,
            scopes: record.scopes,
            account: record.account,
            state,
            ends: ends.filter(|_| !lasts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabasePlace;

    #[tokio::test]
    async fn page_is_a_range_of_the_primary_key() {
        let dir = tempfile::tempdir().unwrap();
        let place = DatabasePlace::Sqlite(dir.path().join("test.db"));
        let database = Database::open(&place).await.unwrap();
        let plan: &'static str = format!("EXPLAIN QUERY PLAN {PAGE_AFTER}").leak();
        let values = [(&[1_u8; 32]).into(), "up".into(), PAGE.into()];
        let steps = database.fetch(plan, &values).await.unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.text(3).unwrap()).collect();
        assert_eq!(steps.len(), 1, "{steps:?}");
        let range = "(owner,upstream)>(?,?)";
        assert!(
            steps[0].starts_with("SEARCH") && steps[0].contains(range),
            "{steps:?}"
        );
    }
}
