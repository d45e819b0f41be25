//! Attacks on the connect pages, by name. Aimed links need a second person: `connect::tests` has them.

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::user_key::{KEY, Page, World, connect, path_in};
use crate::harness::eventually;
use crate::harness::http::initialize;
use crate::harness::session::{Session, text_of};

#[tokio::test]
async fn csrf_on_disconnect_removes_nothing() {
    let world = World::start("").await;
    connect(&world, KEY).await;
    let page = Page::open(&world, "/connect/up").await;
    let form = [("token", &*page.token), ("action", "disconnect")];
    let (own, cookie) = (&*page.origin, &*page.cookie);
    for headers in [
        // Another page, with the victim's cookie or, as SameSite has it, without.
        vec![("origin", "https://evil.example"), ("cookie", cookie)],
        vec![("origin", "https://evil.example")],
        vec![
            ("origin", "null"),
            ("sec-fetch-site", "same-site"),
            ("cookie", cookie),
        ],
        vec![
            ("origin", own),
            ("sec-fetch-site", "cross-site"),
            ("cookie", cookie),
        ],
    ] {
        let (status, text) = page.send(&form, &headers).await;
        assert_eq!(status, 403, "{headers:?}: {text}");
    }
    let (status, _) = page
        .send(&form[1..], &[("origin", own), ("cookie", cookie)])
        .await;
    assert_eq!(status, 403);
    let shown = Page::open(&world, "/connect/up").await.text;
    assert!(!shown.contains("not connected"), "{shown}");
    world.gw.stop().await;
}

// A name of the attacker's that leads to this machine makes pages of the gateway those of the attacker's site.
#[tokio::test]
async fn rebound_name_is_shown_no_page() {
    let world = World::start("").await;
    let client = reqwest::Client::new();
    let status = async |path: &str, host: &str| {
        let request = client.get(format!("{}{path}", world.origin()));
        let answer = request.header("host", host).send().await;
        answer.unwrap().status().as_u16()
    };
    for path in [
        "/connect",
        "/connect/up",
        "/connect/callback",
        "/connect/client.json",
    ] {
        assert_eq!(status(path, "evil.example").await, 421, "{path}");
        assert_ne!(status(path, "localhost").await, 421, "{path}");
    }
    world.gw.stop().await;
}

#[tokio::test]
async fn fixed_cookie_beside_the_own_one_is_no_cookie() {
    let world = World::start("").await;
    let victim = Page::open(&world, "/connect/up").await;
    let attacker = Page::open(&world, "/connect/up").await;
    assert_ne!(victim.cookie, attacker.cookie);
    let own = &*victim.origin;
    for cookies in [
        format!("{}; {}", attacker.cookie, victim.cookie),
        format!("{}; {}", victim.cookie, attacker.cookie),
        // Without the prefix any host next to ours could set it.
        attacker.cookie.replacen("__Host-", "", 1),
    ] {
        let form = [
            ("token", &*attacker.token),
            ("action", "connect"),
            ("key", KEY),
        ];
        let headers = [("origin", own), ("cookie", &*cookies)];
        let (status, text) = victim.send(&form, &headers).await;
        assert_eq!(status, 403, "{cookies}: {text}");
    }
    let shown = Page::open(&world, "/connect/up").await.text;
    assert!(shown.contains("not connected"), "{shown}");
    world.gw.stop().await;
}

#[tokio::test]
async fn program_name_is_text_on_the_page() {
    let world = World::start("").await;
    let script = "<script>alert(1)</script>\"'><img src=x>";
    let mut hello = initialize(1, "2025-06-18", &json!({}));
    hello["params"]["clientInfo"]["name"] = script.into();
    let user = world.gw.anonymous();
    let answer = user.post("/mcp/up", &[], &hello).await;
    let session = Session::begin(user, "/mcp/up", answer).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let page = Page::open(&world, &path_in(text_of(&refused))).await.text;
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    assert!(
        !page.contains("<script") && !page.contains("<img"),
        "{page}"
    );
    world.gw.stop().await;
}

#[tokio::test]
async fn edited_link_is_no_link() {
    let world = World::start("").await;
    let user = world.gw.anonymous();
    let session = user.open_as("/mcp/up", "2025-06-18", json!({})).await;
    let refused = session.call("echo", json!({"text": "x"})).await.unwrap();
    let path = path_in(text_of(&refused));
    assert!(Page::open(&world, &path).await.text.contains("harness"));
    let flipped = if path.ends_with('A') { "B" } else { "A" };
    let edited = format!("{}{flipped}", &path[..path.len() - 1]);
    let page = Page::open(&world, &edited).await.text;
    assert!(!page.contains("harness"), "{page}");
    world.gw.stop().await;
}

/// Pages are open to anybody, and each makes the database work.
#[tokio::test]
async fn flood_of_pages_is_refused_by_the_rate() {
    let world = World::start("[limits]\nrate = \"3/h\"").await;
    let url = format!("{}/connect/up", world.origin());
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(reqwest::get(&url).await.unwrap().status().as_u16());
    }
    // The first six are one allowance at once.
    assert_eq!(answers, [200, 200, 200, 200, 200, 200, 429, 429]);
    world.gw.stop().await;
}

/// A form is read before its visitor is known.
#[tokio::test]
async fn slow_forms_of_one_address_take_a_bounded_memory() {
    let world = World::start("[limits]\nrate = \"1000/s\"").await;
    let url = format!("{}/connect/up", world.origin());
    let address = world.origin().replace("http://", "");
    let head =
        format!("POST /connect/up HTTP/1.1\r\nhost: {address}\r\ncontent-length: 100\r\n\r\n");
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let answers = async |wanted: u16| {
        let status = reqwest::get(&url).await.unwrap().status().as_u16();
        (status == wanted).then_some(())
    };
    eventually("a refused page", async || answers(503).await).await;
    let refused = world
        .gw
        .metric("drawbridge_requests_refused_total", "pages")
        .await;
    assert!(refused >= 1.0, "{refused}");
    drop(slow);
    eventually("a page", async || answers(200).await).await;
    world.gw.stop().await;
}
