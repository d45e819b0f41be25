//! `initialize` toward an HTTP upstream whose era is not known yet: the session is opened first and
//! taken into use once the era is decided. Spec: SPEC U-05; `docs/adr/0008`.

use std::sync::Arc;

use super::connection::LegacyConnection;
use super::handshake;
use super::opening::ConnectionOpening;
use crate::call::ServerDeclaration;
use crate::upstream::carrier::{Carrier, LinkSettings};
use crate::upstream::error::LinkError;
use crate::upstream::not_reached::NotReached;

/// A session that no link uses yet. Dropping it ends the session (DELETE).
#[derive(Debug)]
pub(in crate::upstream) struct SpareSession {
    settings: Arc<LinkSettings>,
    connection: Option<Arc<LegacyConnection>>,
    declared: Arc<ServerDeclaration>,
    has_session: bool,
    is_older: bool,
}

/// An `initialize` that failed.
#[derive(Debug)]
pub(in crate::upstream) struct InitializeRefusal {
    error: LinkError,
    /// The words of a refusal that names no request.
    said: Option<String>,
}

impl SpareSession {
    /// POSTs `initialize`; opens HTTP+SSE instead where that has worked before.
    ///
    /// # Errors
    /// [`InitializeRefusal`] when there is no session.
    ///
    /// # Cancel safety
    /// A session that the upstream has opened by then is ended.
    pub(in crate::upstream) async fn open(
        settings: &Arc<LinkSettings>,
    ) -> Result<SpareSession, InitializeRefusal> {
        let (opening, mut said) = (ConnectionOpening::new(settings), None);
        let opened = match &settings.carrier {
            Carrier::Http(client, bounds, older) => {
                let known = match older {
                    Some(older) => opening.open_known_older(client, *bounds, older).await,
                    None => None,
                };
                match known {
                    Some(outcome) => outcome,
                    None => opening.over_http(client, *bounds, &mut said).await,
                }
            }
            Carrier::Duplex(_) => Err(LinkError::Unreachable(NotReached::new(
                "it has no URL to POST to",
            ))),
        };
        match opened {
            Ok(connection) => Ok(SpareSession::new(settings, connection)),
            Err(error) => Err(InitializeRefusal { error, said }),
        }
    }

    /// Opens HTTP+SSE where `refusal` is one that a server of 2024-11-05 may give. Spec: SPEC U-05.
    ///
    /// # Errors
    /// The error to tell when there is no session either way.
    ///
    /// # Cancel safety
    /// A stream that was opened by then is closed.
    pub(in crate::upstream) async fn open_older(
        settings: &Arc<LinkSettings>,
        refusal: InitializeRefusal,
    ) -> Result<SpareSession, LinkError> {
        let Carrier::Http(client, bounds, Some(older)) = &settings.carrier else {
            return Err(refusal.into_error());
        };
        let InitializeRefusal { error, said } = refusal;
        let said = said.as_deref();
        let opened = ConnectionOpening::new(settings)
            .open_older_after(error, said, client, *bounds, older)
            .await?;
        Ok(SpareSession::new(settings, opened))
    }

    fn new(settings: &Arc<LinkSettings>, connection: Arc<LegacyConnection>) -> Self {
        Self {
            settings: Arc::clone(settings),
            declared: Arc::clone(connection.declared()),
            has_session: connection.has_session(),
            is_older: connection.is_pipe(),
            connection: Some(connection),
        }
    }

    /// Takes the connection out, which a link makes its own.
    pub(super) fn take(mut self) -> Option<Arc<LegacyConnection>> {
        self.connection.take()
    }

    /// The declaration of the upstream in its answer.
    pub(in crate::upstream) fn declared(&self) -> &ServerDeclaration {
        &self.declared
    }

    /// Whether the answer had an `Mcp-Session-Id`.
    pub(in crate::upstream) fn has_session(&self) -> bool {
        self.has_session
    }

    /// Whether the answer came over HTTP+SSE of 2024-11-05.
    pub(in crate::upstream) fn is_older(&self) -> bool {
        self.is_older
    }
}

impl Drop for SpareSession {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let tasks = self.settings.tasks.clone();
            tasks.spawn_service(async move { connection.close().await });
        }
    }
}

impl InitializeRefusal {
    /// An `initialize` without any answer in time.
    pub(in crate::upstream) fn silence() -> Self {
        Self {
            error: LinkError::Timeout,
            said: None,
        }
    }

    pub(in crate::upstream) fn error(&self) -> &LinkError {
        &self.error
    }

    /// Whether the upstream itself said no, so that the next `initialize` would get the same answer.
    pub(in crate::upstream) fn is_final(&self) -> bool {
        match &self.error {
            LinkError::Handshake(_) | LinkError::Invalid(_) => true,
            LinkError::Status(status) => handshake::is_refusal(*status),
            _ => false,
        }
    }

    /// The error to tell.
    pub(in crate::upstream) fn into_error(self) -> LinkError {
        handshake::refused(self.error, self.said.as_deref())
    }
}
