//! `ProgramTable`: the programs that used a grant since it was connected, as they name themselves.
//!
//! Names are shown to the owner of the grant alone, and not sealed: no secret is sent by them.

use std::time::Duration;

use super::grants::find;
use super::{GrantKey, Vault, millis, time_of};
use crate::database::{Database, DatabaseError, SqlRow, SqlTransaction};

/// Programs of one grant by their names; all further ones are one row. Clients choose names: were programs evicted for
/// others, one client could make every name look new, and the programs of all others disappear.
pub const MAX_PROGRAMS: i64 = 32;
/// A program that has not been used for so long makes room for another.
const STALE: Duration = Duration::from_hours(90 * 24);
/// The row of all further programs. No name has a control character.
const OTHERS: &str = "\u{1}";
/// Characters of the name of a program that are kept.
pub const MAX_NAME: usize = 80;

/// A program that used a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramRecord {
    /// As it names itself; empty for one that does not. `None` stands for all programs above [`MAX_PROGRAMS`].
    pub name: Option<String>,
    /// When it used the grant first, since the Unix epoch.
    pub first: Duration,
    /// When it used the grant last, since the Unix epoch, exact to ten minutes.
    pub used: Duration,
}

/// The programs of all grants.
#[derive(Debug, Clone, Copy)]
pub struct ProgramTable<'a>(pub(super) &'a Vault);

impl ProgramTable<'_> {
    /// Notes that `program` uses the grant of `key` now. Returns whether this is its first use since the grant was
    /// connected; `false` without a grant. Of the programs above [`MAX_PROGRAMS`] only the first is told of.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Noted whole or not at all.
    pub async fn note(&self, key: &GrantKey, program: &str) -> Result<bool, DatabaseError> {
        let name: String = program.chars().take(MAX_NAME).collect();
        // PostgreSQL takes no NUL, and no page has a use for the others.
        let name = name.replace(char::is_control, " ");
        let mut tx = self.0.database().begin().await?;
        if self.used(&mut tx, key, &name).await? {
            tx.commit().await?;
            return Ok(false);
        }
        let text = "SELECT COUNT(*) FROM grants WHERE owner = $1 AND upstream = $2";
        if tx.number(text, &find(key)).await? == 0 {
            return Ok(false);
        }
        let has_room = self.has_room(&mut tx, key).await?;
        let row = if has_room { &*name } else { OTHERS };
        if !has_room && self.used(&mut tx, key, row).await? {
            tx.commit().await?;
            return Ok(false);
        }
        let [owner, upstream] = find(key);
        let text = "INSERT INTO grant_programs (used, owner, upstream, program, made) VALUES ($1, $2, $3, $4, $1) \
                    ON CONFLICT (owner, upstream, program) DO NOTHING";
        let values = [self.0.now().into(), owner, upstream, row.into()];
        let is_first = tx.execute(text, &values).await? > 0;
        tx.commit().await?;
        Ok(is_first)
    }

    /// Stamps the row of `program`; `false` where there is none.
    async fn used(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
        program: &str,
    ) -> Result<bool, DatabaseError> {
        let [owner, upstream] = find(key);
        let text = "UPDATE grant_programs SET used = $1 WHERE owner = $2 AND upstream = $3 AND program = $4";
        let values = [self.0.now().into(), owner, upstream, program.into()];
        Ok(tx.execute(text, &values).await? > 0)
    }

    /// Whether the grant has room for one more program, if need be in place of one that is [`STALE`].
    async fn has_room(
        &self,
        tx: &mut SqlTransaction,
        key: &GrantKey,
    ) -> Result<bool, DatabaseError> {
        let [owner, upstream] = find(key);
        let text = "SELECT COUNT(*) FROM grant_programs WHERE owner = $1 AND upstream = $2 AND program <> $3";
        let count = tx.number(text, &[owner, upstream, OTHERS.into()]).await?;
        if count < MAX_PROGRAMS {
            return Ok(true);
        }
        let stale = self.0.now().saturating_sub(millis(STALE));
        let [owner, upstream] = find(key);
        let text = "DELETE FROM grant_programs WHERE owner = $1 AND upstream = $2 AND used < $3 AND program <> $4";
        let values = [owner, upstream, stale.into(), OTHERS.into()];
        Ok(tx.execute(text, &values).await? > 0)
    }

    /// The programs that used the grant of `key`, the one of the last use first: [`MAX_PROGRAMS`] and, in one, all
    /// others.
    ///
    /// # Errors
    /// The database fails.
    pub async fn list(&self, key: &GrantKey) -> Result<Vec<ProgramRecord>, DatabaseError> {
        let text = "SELECT program, made, used FROM grant_programs WHERE owner = $1 AND upstream = $2 \
                    ORDER BY used DESC, program";
        let rows = self.0.database().fetch(text, &find(key)).await?;
        let record = |row: &SqlRow| -> Result<ProgramRecord, DatabaseError> {
            let name = row.text(0)?;
            Ok(ProgramRecord {
                name: (name != OTHERS).then_some(name),
                first: time_of(row.int(1)?),
                used: time_of(row.int(2)?),
            })
        };
        rows.iter().map(record).collect()
    }
}

/// Forgets the programs of a grant, which has ended or is connected again.
pub(super) async fn remove(tx: &mut SqlTransaction, key: &GrantKey) -> Result<(), DatabaseError> {
    let text = "DELETE FROM grant_programs WHERE owner = $1 AND upstream = $2";
    tx.execute(text, &find(key)).await.map(drop)
}

/// Removes the rows that a program of the schema before has left behind when it ended a grant.
pub(super) async fn sweep(database: &Database, unused: i64) -> Result<(), DatabaseError> {
    let text = "DELETE FROM grant_programs WHERE used < $1 AND NOT EXISTS (SELECT 1 FROM grants \
         WHERE grants.owner = grant_programs.owner AND grants.upstream = grant_programs.upstream)";
    database.execute(text, &[unused.into()]).await.map(drop)
}
