//! Kind `id_jag`: the person's login is kept, and asserted to the upstream's authorization server.

use maud::html;

use super::form::FormParts;

/// The text of the page before a person goes on.
const PROMISE: &str = "The gateway keeps this login encrypted. With it that server tells the authorization servers of this \
     upstream, and of the others that are connected by a login, who you are, with the calls of this gateway account. Go on \
     only if you began this yourself. Disconnecting one of these upstreams disconnects all.";

/// The request that a person is going to see at `issuer`, for `scopes`.
pub(super) fn parts(issuer: &str, scopes: &[String]) -> FormParts {
    FormParts {
        promise: PROMISE,
        fields: Some(html! {
            dl {
                dt { "You will be asked by" } dd { code { (issuer) } }
                dt { "For" }
                dd { ul {
                    @for scope in scopes { li { code { (scope) } } }
                } }
            }
        }),
    }
}
