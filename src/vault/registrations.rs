//! Client registrations, keyed by issuer: credentials of one authorization server never reach another (SPEC B-10).

use super::keys::RecordKind;
use super::{RegistrationRecord, Vault};
use crate::database::{DatabaseError, SqlRow};

/// Registrations kept per issuer: a grant keeps using its registration.
const MAX_PER_ISSUER: i64 = 8;
/// Registrations kept in all; bounded, since upstreams name the issuers.
const MAX_REGISTRATIONS: i64 = 1000;
/// Subtracted from the time of a registration that is set aside: times below zero, in the same order.
const SET_ASIDE: i64 = 1 << 60;

/// Registrations of the gateway at authorization servers.
#[derive(Debug, Clone, Copy)]
pub struct RegistrationTable<'a>(pub(super) &'a Vault);

impl RegistrationTable<'_> {
    /// Stores a registration, which new grants of its issuer use from now on. Of the older ones the last seven stay,
    /// and of all issuers together the newest 1000.
    ///
    /// # Errors
    /// The database fails.
    ///
    /// # Cancel safety
    /// Stored whole or not at all.
    pub async fn put(self, record: &RegistrationRecord) -> Result<(), DatabaseError> {
        let (issuer, client_id) = (&*record.issuer, &*record.client_id);
        let place = [issuer.as_bytes(), client_id.as_bytes()];
        let sealed = self.0.seal(RecordKind::Registration, &place, record);
        let mut tx = self.0.database().begin().await?;
        tx.execute(
            "INSERT INTO registrations (issuer, client_id, key_id, sealed, made) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (issuer, client_id) DO UPDATE SET key_id = excluded.key_id, sealed = excluded.sealed, \
             made = excluded.made",
            &[
                issuer.into(),
                client_id.into(),
                (&*sealed.key_id).into(),
                (&*sealed.bytes).into(),
                self.0.now().into(),
            ],
        )
        .await?;
        tx.execute(
            "DELETE FROM registrations WHERE issuer = $1 AND client_id IN (SELECT client_id FROM registrations \
             WHERE issuer = $1 ORDER BY made DESC, client_id LIMIT $2 OFFSET $2)",
            &[issuer.into(), MAX_PER_ISSUER.into()],
        )
        .await?;
        tx.execute(
            "DELETE FROM registrations WHERE made < (SELECT made FROM registrations \
             ORDER BY made DESC LIMIT 1 OFFSET $1)",
            &[(MAX_REGISTRATIONS - 1).into()],
        )
        .await?;
        tx.commit().await
    }

    /// The registrations at `issuer` that are not [set aside](Self::set_aside), the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn current(self, issuer: &str) -> Result<Vec<RegistrationRecord>, DatabaseError> {
        let text = "SELECT client_id, key_id, sealed FROM registrations WHERE issuer = $1 \
             AND made > 0 ORDER BY made DESC, client_id";
        let rows = self.0.database().fetch(text, &[issuer.into()]).await?;
        rows.iter()
            .filter_map(|row| self.opened(issuer, Some(row)).transpose())
            .collect()
    }

    /// The registration at `issuer` that a grant was obtained with.
    ///
    /// # Errors
    /// The database fails.
    pub async fn get(
        self,
        issuer: &str,
        client_id: &str,
    ) -> Result<Option<RegistrationRecord>, DatabaseError> {
        let text = "SELECT client_id, key_id, sealed FROM registrations WHERE issuer = $1 AND client_id = $2";
        let values = [issuer.into(), client_id.into()];
        let rows = self.0.database().fetch(text, &values).await?;
        self.opened(issuer, rows.first())
    }

    /// Sets aside a registration that its server has refused, and the older ones of the issuer: new grants do not use
    /// them. Grants that were obtained with them still do, since the refusal may be a passing fault of the server.
    ///
    /// # Errors
    /// The database fails.
    pub async fn set_aside(self, issuer: &str, client_id: &str) -> Result<(), DatabaseError> {
        let text = "UPDATE registrations SET made = made - $3 WHERE issuer = $1 AND made > 0 AND made <= \
             (SELECT made FROM registrations WHERE issuer = $1 AND client_id = $2)";
        let values = [issuer.into(), client_id.into(), SET_ASIDE.into()];
        self.0.database().execute(text, &values).await.map(drop)
    }

    fn opened(
        self,
        issuer: &str,
        row: Option<&SqlRow>,
    ) -> Result<Option<RegistrationRecord>, DatabaseError> {
        let Some(row) = row else { return Ok(None) };
        let client_id = row.text(0)?;
        let place = [issuer.as_bytes(), client_id.as_bytes()];
        let sealed = (&*row.text(1)?, &*row.bytes(2)?);
        Ok(self.0.open(RecordKind::Registration, &place, sealed))
    }
}
