//! Kind `user`: a person authorizes the gateway at the upstream's authorization server. The form starts the
//! authorization, the callback finishes it.

use std::sync::Arc;

use maud::{Markup, html};

use super::browser::Browser;
use super::form::{Form, FormParts, Submitted, refused_button};
use crate::call::Principal;
use crate::consent::ConsentLink;
use crate::grants::UserTokens;
use crate::grants::authorization::{
    Authorizer, CallbackAnswer, CallbackRefusal, ConsentPreview, ConsentRequest,
    FinishedAuthorization, GatewayClient,
};
use crate::vault::{GrantKey, PendingRecord};

/// The text of the page before a person goes on.
const PROMISE: &str = "The gateway keeps what that server gives it encrypted, and sends it to this upstream alone, with the calls of \
     this gateway account. Go on only if you began this yourself.";

/// Authorizations at one upstream, as started and finished by the pages.
#[derive(Debug)]
pub(super) struct AuthorizeForm {
    tokens: Arc<UserTokens>,
    authorizer: Arc<Authorizer>,
}

impl AuthorizeForm {
    /// The form for the accounts of `tokens`, with the clients of `gateway`.
    pub(super) fn new(tokens: &Arc<UserTokens>, gateway: &Arc<GatewayClient>) -> Self {
        let account = Arc::clone(tokens.account());
        Self {
            tokens: Arc::clone(tokens),
            authorizer: Authorizer::new(account, Arc::clone(gateway)),
        }
    }

    /// What the person will be asked, and by which server.
    pub(super) async fn parts(&self, key: &GrantKey, link: Option<&ConsentLink>) -> FormParts {
        let wider = self.wider(key, link).await;
        match self.authorizer.preview(key, &wider).await {
            Ok(preview) => FormParts {
                promise: PROMISE,
                fields: Some(fields(&preview)),
            },
            Err(failure) => FormParts {
                promise: failure.public(),
                fields: None,
            },
        }
    }

    /// Starts an authorization.
    pub(super) async fn submitted(
        &self,
        form: &Form,
        key: &GrantKey,
        (browser, link): (&Browser<'_>, Option<&ConsentLink>),
    ) -> Submitted {
        let request = ConsentRequest {
            key,
            cookie_digest: browser.digest(),
            program: link.map(|link| link.program.clone()),
            wider: &self.wider(key, link).await,
            is_refused: form.says_refused(),
        };
        match self.authorizer.begin(request).await {
            Ok(started) => Submitted::GoOn(Box::new(started)),
            Err(failure) => Submitted::Failed(failure.public()),
        }
    }

    /// Scopes that the upstream has asked for, here or at the replica that made `link`; none once the user has connected
    /// again.
    async fn wider(&self, key: &GrantKey, link: Option<&ConsentLink>) -> Vec<String> {
        let mut scopes = self.tokens.wider(key);
        if let Some(lacking) = link.and_then(|link| link.lacking.as_ref())
            && let Ok((_, connection)) = self.tokens.kept(key).await
            && connection == lacking.connection
        {
            scopes.extend_from_slice(&lacking.scopes);
        }
        scopes
    }

    /// Finishes the authorization `pending` with the answer that a person's browser brought.
    ///
    /// # Errors
    /// No grant was stored.
    ///
    /// # Cancel safety
    /// The code is redeemed even if the future is dropped.
    pub(super) async fn finish(
        &self,
        key: GrantKey,
        pending: PendingRecord,
        brought: (&CallbackAnswer<'_>, &Arc<Principal>),
    ) -> Result<FinishedAuthorization, CallbackRefusal> {
        self.tokens.forget_wider(&key);
        self.authorizer.finish(key, pending, brought).await
    }
}

fn fields(preview: &ConsentPreview) -> Markup {
    html! {
        dl {
            dt { "You will be asked by" } dd { code { (preview.host) } }
            dt { "For" }
            dd {
                @if preview.scopes.is_empty() {
                    "whatever that server takes for this"
                } @else {
                    ul { @for scope in &preview.scopes { li { code { (scope) } } } }
                }
            }
        }
        @if preview.may_be_refused { (refused_button()) }
    }
}
