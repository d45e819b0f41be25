//! Attacks on memory: notifications to a child that reads nothing, large calls, and bodies sent in part.

use std::fmt::Write as _;
use std::io;
use std::sync::OnceLock;

use super::attacks::Field;
use super::connections::{held, upgrade};
use crate::client::{Client, request_text};

/// Size of the text in a message, bytes: the default of `limits.body` less 1 KiB for the rest of it.
const LARGE: usize = (4 << 20) - 1024;
/// How long the child reads nothing at a time, milliseconds.
const STALL: u64 = 30_000;
/// How long a call lasts, milliseconds.
const CALL: u64 = 600_000;

/// Keeps the child of the hostile caller from reading.
pub(super) async fn stall_the_child(field: &Field<'_>) -> anyhow::Result<()> {
    loop {
        field.began("stall");
        let params = format!(r#"{{"name":"stall","arguments":{{"ms":{STALL}}}}}"#);
        let called = async {
            let mut client = Client::in_session(field.victims.stdio.clone()).await?;
            client.result("tools/call", &params).await
        };
        field.did("stall", word(called.await.map(|_| "ok"))).await?;
    }
}

/// Sends large notifications to the child that does not read.
pub(super) async fn notify(field: &Field<'_>) -> anyhow::Result<()> {
    loop {
        field.began("notify");
        let Ok(mut client) = Client::in_session(field.victims.stdio.clone()).await else {
            field.did("notify_session", "refused").await?;
            continue;
        };
        loop {
            let body = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{{"_meta":{{"x":"{}"}}}}}}"#,
                ballast()
            );
            let head = client.post(&body).await;
            let failed = head.is_err();
            field
                .did("notify", word(head.map(|head| head.status)))
                .await?;
            if failed {
                break;
            }
        }
    }
}

/// Makes long calls with as many members as fit.
pub(super) async fn hold_calls(field: &Field<'_>) -> anyhow::Result<()> {
    loop {
        field.began("call");
        let called = async {
            let mut client = Client::in_session(field.victims.http.clone()).await?;
            let id = client.take_id();
            let params = format!(
                r#"{{"name":"sleep","arguments":{{"ms":{CALL}}}{}}}"#,
                many_members()
            );
            let head = client
                .post(&request_text(id, "tools/call", &params))
                .await?;
            let body = client.wire.rest().await?;
            let is_error = body.windows(7).any(|part| part == b"\"error\"");
            io::Result::Ok(format!(
                "{}_{}",
                head.status,
                if is_error { "error" } else { "ok" }
            ))
        };
        field.did("call", word(called.await)).await?;
    }
}

/// Sends nearly the whole of a body, and waits.
pub(super) async fn half_bodies(field: &Field<'_>) -> anyhow::Result<()> {
    let caller = &field.victims.http;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
        caller.target.path,
        caller.target.host,
        caller.token.as_deref().unwrap_or_default(),
        LARGE + 8,
    );
    loop {
        field.began("half_body");
        let parts = [head.as_bytes(), ballast().as_bytes()];
        let how = held(&caller.target, &parts).await;
        field.did("half_body", how).await?;
    }
}

/// Sends nearly the whole of a WebSocket message, then nothing but signs of life.
pub(super) async fn half_messages(field: &Field<'_>) -> anyhow::Result<()> {
    let caller = &field.victims.http;
    let upgrade = upgrade(caller, "/ws/http");
    // The first fragment of a text, masked with zeros; one byte is missing.
    let mut frame = vec![0x01, 0xff];
    frame.extend_from_slice(&(LARGE as u64 + 1).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    loop {
        field.began("half_message");
        let parts: [&[u8]; 3] = [upgrade.as_bytes(), &frame, ballast().as_bytes()];
        let how = held(&caller.target, &parts).await;
        field.did("half_message", how).await?;
    }
}

fn ballast() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| "x".repeat(LARGE))
}

/// Members to follow others.
fn many_members() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = String::with_capacity(LARGE);
        let mut number = 0_u32;
        while text.len() < LARGE - 32 {
            write!(text, r#","{number:x}":0"#).unwrap_or_default();
            number += 1;
        }
        text
    })
}

/// The outcome as one word, for the name of its counter.
fn word<T: ToString>(came: io::Result<T>) -> String {
    match came {
        Ok(how) => how.to_string(),
        Err(error) => format!("{:?}", error.kind()),
    }
}
