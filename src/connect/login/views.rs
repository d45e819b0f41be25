//! Contents of the login pages. `maud` escapes names, links and errors.

use maud::{Markup, html};

use super::{LoginOutcome, NextPage};
use crate::connect::layout::{again, layout};

/// The page for a person without a login.
pub(crate) struct LoginForm<'a> {
    /// Issuers where people log in.
    pub(crate) issuers: Vec<&'a str>,
    /// The token of the form.
    pub(crate) token: &'a str,
    /// The upstream of the page.
    pub(crate) upstream: Option<&'a str>,
    /// Host of the upstream and the program that asked, if the page was opened with a link.
    pub(crate) link: Option<(&'a str, &'a str)>,
    /// Whether this browser has just logged in.
    pub(crate) lost_cookie: bool,
}

/// Which browsers lose cookies, for the pages.
const LOSES: &str = "Browsers keep it over https, and most on this machine's own address; Safari does not without https, \
    and windows inside other programs often do not.";

/// The page that asks the person to log in.
pub(crate) fn log_in(form: &LoginForm<'_>) -> Markup {
    let body = html! {
        @if form.lost_cookie {
            p role="alert" {
                "You have logged in, but this browser did not bring the cookie of the login back, or the login of 15 \
                 minutes is over. " (LOSES) " If it happens again, open this page in another browser."
            }
        }
        @if form.upstream.is_some() || form.link.is_some() {
            dl {
                @if let Some(upstream) = form.upstream { dt { "To connect" } dd {
                    (upstream)
                    @if let Some((host, _)) = form.link { " at " code { (host) } }
                } }
                @if let Some((_, program)) = form.link {
                    dt { "Asked by the program that calls itself" } dd { (program) }
                }
            }
        }
        p {
            "Log in with the account that your programs use this gateway with. Go on only if you began this yourself."
        }
        (forms(&form.issuers, form.token))
    };
    layout("Log in", None, &body)
}

/// The buttons that start a login.
pub(crate) fn forms(issuers: &[&str], token: &str) -> Markup {
    html! {
        @for issuer in issuers {
            form method="post" {
                input type="hidden" name="token" value=(token);
                input type="hidden" name="issuer" value=(issuer);
                p { "At " code { (issuer) } }
                button name="action" value="login" { "Log in" }
                button name="action" value="login-again" { "Log in as somebody else" }
            }
        }
    }
}

/// The button that ends a login.
pub(crate) fn log_out(token: &str) -> Markup {
    html! {
        form method="post" {
            input type="hidden" name="token" value=(token);
            button name="action" value="logout" { "Log out" }
        }
    }
}

/// The page that sends the browser to the issuer.
pub(crate) fn departs(url: &str, issuer: &str) -> Markup {
    let body = html! {
        p { "You go on to " code { (issuer) } " to log in." }
        p { a href=(url) rel="noreferrer" { "Go on" } }
    };
    layout("Logging in", Some(&format!("0;url={url}")), &body)
}

/// The page where no login could be started.
pub(crate) fn cannot_begin() -> Markup {
    let text = "The login server cannot be used now. Try again in a moment; the gateway's log says what is wrong.";
    again("Not now", text, "")
}

/// The page after a login.
pub(crate) fn ended(outcome: &LoginOutcome) -> Markup {
    match outcome {
        LoginOutcome::Done(next) => {
            let url = next.url_after_login();
            let body = html! {
                p role="status" { "You are logged in for 15 minutes, on these pages alone." }
                p { a href=(url) { "Go on" } }
            };
            layout("Logged in", Some(&format!("0;url={url}")), &body)
        }
        LoginOutcome::NoCookie => {
            let text = html! {
                "This browser has no cookie of this login, so nobody was logged in. The login was begun in another \
                 browser, took longer than ten minutes, or has been answered already; or this browser does not keep the \
                 cookie. " (LOSES)
                " If somebody sent you this link, do not follow it: you would have acted as them."
            };
            not_logged_in(&text, &NextPage::default())
        }
        LoginOutcome::Refused { error, next } => {
            let text = html! {
                "The login server did not log you in"
                @if let Some(error) = error { ": " code { (error) } }
                "."
            };
            not_logged_in(&text, next)
        }
        LoginOutcome::OfflineRefused { error, next } => {
            let text = html! {
                "The login server refused: " code { (error) } ". Nothing was changed. The gateway had asked it for access \
                 that lasts longer than your login there (offline_access). Open the page again and go on: the gateway asks \
                 without it now."
            };
            not_logged_in(&text, next)
        }
        LoginOutcome::OtherPerson(next) => {
            let text = html! {
                "The login server knows you as another person than the one who is logged in here. Nothing was changed. Log \
                 out there, or log in here as that person."
            };
            not_logged_in(&text, next)
        }
        LoginOutcome::Failed(next) => {
            let text = html! {
                "The login could not be verified, so nobody was logged in. The gateway's log says what is wrong."
            };
            not_logged_in(&text, next)
        }
    }
}

fn not_logged_in(text: &Markup, next: &NextPage) -> Markup {
    again("Not logged in", text, &next.url())
}

/// The page after logging out.
pub(crate) fn logged_out() -> Markup {
    let body = html! {
        p role="status" {
            "You are logged out of these pages. The login server may still know this browser: log out there too where \
             others use it."
        }
        p { a href="connect" { "Log in again" } }
    };
    layout("Logged out", None, &body)
}
