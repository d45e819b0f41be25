//! `kill -9` at every step of an authorization and of a refresh. After the restart the user is connected, or is asked once
//! more and then connected: never stuck.
//!
//! The gateway kills itself at a named place (`runtime::fault_point`).

use drawbridge::database::{Database, DatabasePlace};
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;

use super::server::ConsentServer;
use super::world::{Browser, echo, path_in, setup, upstream_of};
use crate::accounts::world::GuardedUpstream;
use crate::harness::{Gateway, Session, Setup, within};

/// The servers around a gateway, and its files, which outlast it.
struct World {
    server: ConsentServer,
    upstream: GuardedUpstream,
    state: TempDir,
}

impl World {
    async fn new() -> Self {
        let server = ConsentServer::start().await;
        Self {
            upstream: upstream_of(&server).await,
            server,
            state: tempfile::tempdir().unwrap(),
        }
    }

    /// A gateway that kills itself at `point`.
    async fn doomed(&self, point: &str) -> Gateway {
        self.setup().start_doomed(point).await
    }

    fn setup(&self) -> Setup {
        setup(&self.upstream, self.state.path(), "")
    }

    /// The next gateway at the address of `dead`, which has killed itself.
    async fn restarted(&self, mut dead: Gateway) -> Gateway {
        assert_eq!(dead.exit().await, None, "it was killed by a signal");
        self.setup().listen(dead.address()).start().await
    }

    /// The time of the lease of a refresh is over: the clock of tests cannot be set.
    async fn lease_ends(&self) {
        let place = DatabasePlace::Sqlite(self.state.path().join("test.db"));
        let database = Database::connect(&place).await.unwrap();
        let text = "UPDATE grants SET lease_ends = 1 WHERE lease_ends > 0";
        assert_eq!(database.execute(text, &[]).await.unwrap(), 1);
        database.close().await;
    }
}

/// A session of a client that cannot show URLs.
async fn plain(gw: &Gateway) -> Session {
    let user = gw.anonymous();
    user.open_as("/mcp/up", "2025-06-18", json!({})).await
}

/// Fails unless the next call of the user works, after one more consent where `is_asked`.
async fn assert_connected(gw: &Gateway, is_asked: bool) {
    let session = plain(gw).await;
    let said = echo(&session, "after").await;
    assert_eq!(said.contains("/connect/up?for="), is_asked, "{said}");
    if is_asked {
        let page = Browser::of(gw).connect(&path_in(&said)).await;
        assert!(page.contains("is connected"), "{page}");
        assert_eq!(echo(&session, "again").await, "again");
    } else {
        assert_eq!(said, "after");
    }
}

/// `registrations`: how many the server has made in the end.
#[rstest]
#[case::registered("registered", 2)]
#[case::registration_stored("registration_stored", 1)]
#[case::pending("authorization_pending", 1)]
#[tokio::test]
async fn authorization_is_begun_again_after_a_kill(
    #[case] point: &str,
    #[case] registrations: usize,
) {
    let world = World::new().await;
    let gw = world.doomed(point).await;
    let mut browser = Browser::of(&gw);
    let begun = tokio::spawn(async move { browser.submit("/connect/up", "connect").await });
    assert!(begun.await.is_err(), "the gateway has answered");
    let gw = world.restarted(gw).await;
    assert_connected(&gw, true).await;
    assert_eq!(world.server.registered().len(), registrations);
    gw.stop().await;
}

#[rstest]
#[case::brought("code_brought", true)]
#[case::redeemed("code_redeemed", true)]
#[case::stored("grant_stored", false)]
#[tokio::test]
async fn killed_authorization_is_asked_again_or_done(#[case] point: &str, #[case] is_asked: bool) {
    let world = World::new().await;
    let gw = world.doomed(point).await;
    let mut browser = Browser::of(&gw);
    let url = browser.begin("/connect/up").await;
    let callback = browser.agree(url).await;
    let brought = callback.clone();
    let ended = tokio::spawn(async move { browser.open(&brought).await });
    assert!(ended.await.is_err(), "the gateway has answered");
    let gw = world.restarted(gw).await;
    // The page that the user reloads.
    let page = Browser::of(&gw).open(&callback).await;
    assert_eq!(page.status, 403, "{}", page.text);
    assert_connected(&gw, is_asked).await;
    assert_eq!(world.server.registered().len(), 1);
    assert_eq!(world.server.asked().len(), 1 + usize::from(is_asked));
    gw.stop().await;
}

/// What a refresh leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Refreshes,
    HasEndedTheGrant,
}

#[rstest]
#[case::leased("refresh_leased", Server::Refreshes, true, false)]
// The server has rotated the refresh token, and the only copy was lost.
#[case::refreshed("token_refreshed", Server::Refreshes, true, true)]
#[case::stored("refresh_stored", Server::Refreshes, false, false)]
#[case::refused("refresh_refused", Server::HasEndedTheGrant, false, true)]
#[case::ended("grant_ended", Server::HasEndedTheGrant, false, true)]
#[tokio::test]
async fn killed_refresh_is_made_again_or_its_user_is_asked(
    #[case] point: &str,
    #[case] server: Server,
    #[case] is_leased: bool,
    #[case] is_asked: bool,
) {
    let world = World::new().await;
    let gw = world.doomed(point).await;
    let page = Browser::of(&gw).connect("/connect/up").await;
    assert!(page.contains("is connected"), "{page}");
    let session = plain(&gw).await;
    assert_eq!(echo(&session, "before").await, "before");
    match server {
        Server::Refreshes => world.server.forgets_access_tokens(),
        Server::HasEndedTheGrant => world.server.forgets_all(),
    }
    let call = tokio::spawn(async move { echo(&session, "during").await });
    let gw = world.restarted(gw).await;
    drop(within("the end of the call", call).await);
    if is_leased {
        world.lease_ends().await;
    }
    assert_connected(&gw, is_asked).await;
    assert_eq!(world.server.asked().len(), 1 + usize::from(is_asked));
    gw.stop().await;
}
