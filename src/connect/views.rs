//! Contents of the pages. `maud` escapes names of upstreams and programs, labels and keys.

use std::time::Duration;

use maud::{Markup, html};

use super::ShownAccount;
use super::browser::FormRefusal;
use super::callback_fault::CallbackFault;
use super::form::FormParts;
use super::layout::{again, layout};
use super::login::views as login_views;
use super::person::Person;
use super::upstream::ConnectedUpstream;
use crate::grants::authorization::{CallbackRefusal, FinishedAuthorization, StartedAuthorization};
use crate::vault::{ProgramRecord, StoredGrant};

/// Redirects a page after five seconds.
const GOES_ON: &str = "5;url=../connect";

/// The list of a person's accounts.
pub(super) fn all(person: &Person, accounts: &[ShownAccount<'_>], token: &str) -> Markup {
    let body = html! {
        p { "Gateway account: " (person.name()) }
        ul {
            @for account in accounts {
                li {
                    a href={ "connect/" (account.upstream.name) } { (account.upstream.name) }
                    " at " code { (account.upstream.host()) } ": " (state_of(account.grant.as_deref()))
                    @if let Some(grant) = &account.grant {
                        dl { (details(grant, &account.programs)) }
                    }
                }
            }
        }
    };
    let body = html! {
        (body)
        @if person.issuer().is_some() { (login_views::log_out(token)) }
    };
    layout("Accounts", None, &body)
}

/// The parts of a connected account that a page shows.
fn details(grant: &StoredGrant, programs: &[ProgramRecord]) -> Markup {
    let (made, used) = grant.times();
    html! {
        @if let Some(name) = &grant.record.account { dt { "Account" } dd { (name) } }
        @if !grant.record.scopes.is_empty() {
            dt { "Scopes" } dd { code { (grant.record.scopes.join(" ")) } }
        }
        dt { "Connected" } dd { (day(made)) }
        dt { "Last used" } dd { (day(used)) }
        dt { "Used by the programs that call themselves" }
        dd {
            @if programs.is_empty() {
                "none yet"
            } @else {
                ul { @for program in programs { li { (name_of(program)) ", last on " (day(program.used)) } } }
            }
        }
    }
}

fn name_of(program: &ProgramRecord) -> &str {
    match program.name.as_deref() {
        None => "(other programs)",
        Some(name) if name.trim().is_empty() => "(without a name)",
        Some(name) => name,
    }
}

/// The state of an account, in one or two words.
fn state_of(grant: Option<&StoredGrant>) -> &'static str {
    match grant {
        None => "not connected",
        Some(grant) if grant.state.refused.is_some() => "refused by the server",
        Some(_) => "connected",
    }
}

/// The day of a time since the Unix epoch, in UTC. The hour would reveal more about a person than the page needs.
fn day(time: Duration) -> String {
    let second = i64::try_from(time.as_secs()).unwrap_or_default();
    let time = jiff::Timestamp::from_second(second).unwrap_or_default();
    time.strftime("%Y-%m-%d").to_string()
}

/// The page of one upstream.
pub(super) fn one(
    person: &Person,
    account: &ShownAccount<'_>,
    program: Option<&str>,
    (form, token): (&FormParts, &str),
) -> Markup {
    let (upstream, grant) = (account.upstream, account.grant.as_deref());
    let verb = if grant.is_some() {
        "Replace"
    } else {
        "Connect"
    };
    let body = html! {
        dl {
            dt { "Gateway account" } dd { (person.name()) }
            dt { "Server" } dd { (upstream.name) " at " code { (upstream.host()) } }
            @if let Some(program) = program {
                dt { "Asked by the program that calls itself" } dd { (program) }
            }
            dt { "State" } dd { (state_of(grant)) }
            @if let Some(grant) = grant { (details(grant, &account.programs)) }
        }
        @if grant.is_some_and(|grant| grant.state.refused.is_some()) {
            p role="alert" { "The server refused this key. Calls do not work until you replace it, or the server takes it again." }
        }
        @if let Some(fields) = &form.fields {
            p { (form.promise) }
            form method="post" {
                input type="hidden" name="token" value=(token);
                (fields)
                button name="action" value="connect" { (verb) }
            }
        } @else {
            p role="alert" { "No account can be connected now: " (form.promise) ". The log of the gateway says more." }
        }
        @if grant.is_some() {
            form method="post" {
                input type="hidden" name="token" value=(token);
                button name="action" value="disconnect" { "Disconnect" }
            }
        }
        p { a href="../connect" { "All accounts" } }
    };
    layout(&format!("Connect {}", upstream.name), None, &body)
}

/// The page after a key was stored.
pub(super) fn connected(upstream: &ConnectedUpstream) -> Markup {
    done(
        "Connected",
        &format!(
            "{} is connected. You can go back to your program; a call that waits goes on by itself.",
            upstream.name
        ),
    )
}

/// The page after an account was removed.
pub(super) fn disconnected(upstream: &ConnectedUpstream) -> Markup {
    done(
        "Disconnected",
        &format!(
            "What the gateway had for {} was removed here. If it should be good for nothing any more, revoke it there too.",
            upstream.name
        ),
    )
}

fn done(title: &str, text: &str) -> Markup {
    let body = html! {
        p role="status" { (text) }
        p { a href="../connect" { "All accounts" } }
    };
    layout(title, Some(GOES_ON), &body)
}

/// The page that sends the browser to an authorization server: by a link and by a refresh, since browsers apply
/// `form-action` to redirects.
pub(super) fn go_on(upstream: &str, started: &StartedAuthorization) -> Markup {
    let url = started.url.as_str();
    let body = html! {
        p role="status" {
            "You are sent to " code { (started.host) } ", which asks you about " (upstream) ". It sends you back here."
        }
        @if let Some(note) = started.note { p { (note) } }
        p { a href=(url) rel="noreferrer" { "Go on to " (started.host) } }
    };
    layout("One moment", Some(&format!("1;url={url}")), &body)
}

/// The page after a person agreed and the grant was stored.
pub(super) fn authorized(upstream: &str, finished: &FinishedAuthorization) -> Markup {
    let ends = finished
        .asks_again_after
        .map(|lasts| match lasts.as_secs().div_ceil(60) {
            0 | 1 => "in a minute".to_owned(),
            minutes @ 2..120 => format!("in {minutes} minutes"),
            minutes => format!("in {} hours", minutes / 60),
        });
    let body = html! {
        p role="status" {
            (upstream) " is connected. You can go back to your program; a call that waits goes on by itself."
        }
        @if let Some(ends) = ends {
            p {
                "Its server gave nothing to go on with when this ends (no refresh token): you will be asked again "
                (ends) "."
            }
        }
        p { a href="../../connect" { "All accounts" } }
    };
    layout("Connected", None, &body)
}

/// The page for a callback that is refused before its answer is read.
pub(super) fn callback_refused(fault: CallbackFault) -> Markup {
    let text = match fault {
        CallbackFault::State => {
            "Nothing waits for this answer: it was used already, is older than ten minutes, or was not begun here. Nothing was \
             changed. Begin again from the page of all accounts."
        }
        CallbackFault::Browser => {
            "This was begun in another browser, or this one did not bring back the cookie of these pages. Nothing was \
             changed. Browsers keep it over https, and most on this machine's own address; Safari does not without \
             https, and windows inside other programs often do not. If somebody sent you this link, do not follow it."
        }
        CallbackFault::Login => {
            "You are not logged in here any more: a login lasts 15 minutes. Nothing was changed. Log in on the page of all \
             accounts, then load this page again within ten minutes of the beginning, or begin again."
        }
        CallbackFault::Person => {
            "This was begun by another person. Nothing was changed. If somebody sent you this link, do not follow it: \
             their account would have become yours."
        }
        CallbackFault::Address => {
            "Another server may have answered than the one that was asked, so the answer was thrown away. The log of the \
             gateway says more."
        }
    };
    let body = html! {
        p role="alert" { (text) }
        p { a href="../../connect" { "All accounts" } }
    };
    layout("Not connected", None, &body)
}

/// The page for an answer that is not turned into a grant.
pub(super) fn not_authorized(upstream: &str, refusal: &CallbackRefusal) -> Markup {
    let text = match refusal {
        CallbackRefusal::OtherIssuer | CallbackRefusal::NoIssuer => {
            "Another server may have answered than the one that was asked, so the answer was thrown away. The log of the \
             gateway says more."
                .to_owned()
        }
        CallbackRefusal::Denied("access_denied") => {
            "You, or its server, said no. Nothing was changed.".to_owned()
        }
        CallbackRefusal::Denied(code) => {
            format!("Its server refused ({code}). Nothing was changed.")
        }
        CallbackRefusal::Offline(code) => format!(
            "Its server refused ({code}). Nothing was changed. The gateway had asked it for access that lasts longer than \
             your login there (offline_access). Open the page again and go on: the gateway asks without it now."
        ),
        CallbackRefusal::Scopes(code) => format!(
            "Its server refused ({code}). Nothing was changed. The gateway had not said beforehand which scopes it would ask \
             for. Open the page again and go on: the gateway says so now."
        ),
        CallbackRefusal::NoCode => "The answer of its server holds nothing to go on with.".to_owned(),
        CallbackRefusal::Failed(failure) => {
            format!("It failed: {}. The log of the gateway says more.", failure.public())
        }
    };
    let page = format!("../../connect/{upstream}");
    again("Not connected", &text, &page)
}

/// The page where no account can be connected now.
pub(super) fn failed(upstream: &str, why: &str) -> Markup {
    let text = format!("No account can be connected now: {why}. The log of the gateway says more.");
    refused(upstream, &text)
}

/// The page after a form whose fields cannot be stored.
pub(super) fn refused(upstream: &str, why: &str) -> Markup {
    again("Not connected", why, &format!("../connect/{upstream}"))
}

/// The page after a refused form.
pub(super) fn form_refused(upstream: Option<&str>, refusal: FormRefusal) -> Markup {
    let text = match refusal {
        FormRefusal::Origin => {
            "This form was sent by another page. Nothing was changed. If you meant to, open the page here."
        }
        FormRefusal::Cookie => {
            "This browser did not bring back the cookie of this page, so nothing was changed. Browsers keep it over \
             https, and most on this machine's own address; Safari does not without https, and windows inside other \
             programs often do not. Open the page in another browser."
        }
        FormRefusal::Token => "This form is too old, or of another browser. Nothing was changed.",
    };
    let page = upstream.map(|upstream| format!("../connect/{upstream}"));
    again("Not accepted", text, &page.unwrap_or_default())
}

/// The page for another person's link. `login`: the issuers, and the token of the form that logs in as another person.
pub(super) fn foreign(person: &Person, login: Option<(&[&str], &str)>) -> Markup {
    let body = html! {
        p role="alert" {
            "A program of another person asked for this. Nothing was changed. If somebody sent you this link, do not \
             follow it: your account would have become theirs."
        }
        p { "Gateway account: " (person.name()) }
        @if let Some((issuers, token)) = login {
            p { "If it was your own program, log in here as it does." }
            (login_views::forms(issuers, token))
        }
    };
    layout("This link is somebody else's", None, &body)
}

/// The page of a path where there is nothing.
pub(super) fn unknown() -> Markup {
    layout(
        "Nothing is here",
        None,
        &html! { p { "There is no such page." } },
    )
}

/// The page while the database fails.
pub(super) fn no_database() -> Markup {
    let body =
        html! { p role="alert" { "Accounts cannot be read or kept now. Try again in a moment." } };
    layout("Not now", None, &body)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn programs_without_a_name_and_all_others_have_names_of_the_page() {
        let name = |name: Option<&str>| {
            let program = ProgramRecord {
                name: name.map(str::to_owned),
                first: Duration::ZERO,
                used: Duration::ZERO,
            };
            name_of(&program).to_owned()
        };
        assert_eq!(name(None), "(other programs)");
        assert_eq!(name(Some(" ")), "(without a name)");
        assert_eq!(name(Some("editor")), "editor");
    }
}
