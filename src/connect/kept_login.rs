//! Kind `id_jag`: the person's login is kept, and asserted to the upstream's authorization server.

use maud::html;

use super::form::{FormParts, refused_button};
use super::login::KeptLoginPreview;

/// The text of the page before a person goes on.
const PROMISE: &str = "The gateway keeps this login encrypted. With it that server tells the authorization servers of this \
     upstream, and of the others that are connected by a login, who you are, with the calls of this gateway account. Go on \
     only if you began this yourself. Disconnecting one of these upstreams disconnects all.";

/// The request that a person is going to see at `issuer`.
pub(super) fn parts(issuer: &str, preview: Option<&KeptLoginPreview>) -> FormParts {
    let kept = preview.map(|preview| &preview.kept);
    FormParts {
        promise: PROMISE,
        fields: Some(html! {
            dl {
                dt { "You will be asked by" } dd { code { (issuer) } }
                dt { "For" }
                dd { ul {
                    @for scope in kept.map_or(&[][..], |kept| &kept.scopes) { li { code { (scope) } } }
                } }
            }
            @if kept.is_some_and(|kept| !kept.is_certain) {
                p role="alert" {
                    "The gateway cannot ask that server now. Going on may fail: try again in a moment then."
                }
            }
            @if preview.is_some_and(|preview| preview.may_be_refused) { (refused_button()) }
        }),
    }
}
