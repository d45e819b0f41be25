//! The frame that all pages share, and the style sheet.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

/// The only style sheet, which the content security policy allows by its digest.
pub(super) const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:1rem/1.5 system-ui,sans-serif;max-width:38rem;margin:0 auto;padding:1rem}\
h1{font-size:1.4rem}\
dt{font-weight:600}dd{margin:0 0 .5rem}\
li{margin:.75rem 0}\
label{display:block;font-weight:600;margin:1rem 0 .25rem}\
input,button{font:inherit;padding:.6rem;box-sizing:border-box}\
input{width:100%}\
button{margin:.75rem .75rem 0 0;min-height:2.75rem}\
a,code{overflow-wrap:anywhere}";

/// A page; `goes_on` is the `refresh` that redirects the browser after some seconds.
pub(super) fn layout(title: &str, goes_on: Option<&str>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                @if let Some(goes_on) = goes_on { meta http-equiv="refresh" content=(goes_on); }
                title { (title) " · Drawbridge" }
                style { (PreEscaped(STYLE)) }
            }
            body { main { h1 { (title) } (body) } }
        }
    }
}

/// A page with an alert, and a link to `page`; an empty one is the page that was open.
pub(super) fn again(title: &str, text: &(impl Render + ?Sized), page: &str) -> Markup {
    let body = html! {
        p role="alert" { (text) }
        p { a href=(page) { "Open the page again" } }
    };
    layout(title, None, &body)
}
