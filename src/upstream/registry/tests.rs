//! Links of sessions, own and shared.

use rstest::rstest;

use super::accounts::AccountFactory;
use super::*;
use crate::audit::AuditSink;
use crate::call::samples::owner;
use crate::call::{NullIntake, Principal};
use crate::clock::SystemClock;
use crate::fault::FaultKind;
use crate::process::holders::SessionHolders;
use crate::upstream::carrier::Carrier;
use crate::upstream::credentials::{Credential, Credentials, Requester};
use crate::upstream::link::negotiated::EraLink;
use crate::vault::samples::vault;
use crate::vault::{GrantCensus, GrantCounts, GrantKey};

fn upstreams(keys: &str) -> Upstreams {
    let text = "[auth]\nmode = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let config = config::parse(&format!("{text}{keys}"), "test.toml", &|_| None).unwrap();
    Upstreams::new(
        &config,
        HostEnvironment::current(),
        None,
        TaskSpawner::new(),
    )
    .unwrap()
}

fn client(intake: Arc<dyn NoticeIntake>) -> ClientContext {
    ClientContext {
        owner: Principal::anonymous().owner(),
        caller: None,
        session: [0; 16],
        capabilities: ClientCapabilities::none(),
        client_info: Bytes::from_static(b"{}"),
        offer: Revision::LATEST_LEGACY,
        intake,
        adopted: None,
    }
}

/// A link to an upstream that is not there.
pub(in crate::upstream) fn era_link() -> Arc<EraLink> {
    let upstreams = upstreams("");
    let (name, entry) = upstreams.entries.get_key_value("up").unwrap();
    let holders = (SessionHolders::of([0; 16]), true);
    let maker = LinkMaker {
        upstreams: &upstreams,
        name,
        entry,
    };
    maker.make(client(Arc::new(NullIntake)), holders)
}

#[tokio::test]
async fn a_link_whose_session_is_over_opens_nothing() {
    let link = upstreams("")
        .link("up", client(Arc::new(NullIntake)))
        .unwrap();
    let before = link.open().await.unwrap_err();
    assert_eq!(before.kind, FaultKind::UpstreamUnavailable);
    link.close().await;
    let after = link.open().await.unwrap_err();
    assert_eq!(after.kind, FaultKind::Cancelled);
}

// Else the link could be ended between being found and being joined.
#[tokio::test]
async fn a_shared_link_is_joined_under_its_entry() {
    let upstreams = upstreams("isolation = \"shared\"\n");
    let _first = upstreams.link("up", client(Arc::new(NullIntake))).unwrap();
    let join = || drop(upstreams.link("up", client(Arc::new(NullIntake))));
    assert!(upstreams.shared.is_entry_held_by(join));
}

#[rstest]
#[tokio::test]
async fn who_drops_a_shared_link_is_forgotten_there(
    #[values("principal", "shared")] isolation: &str,
) {
    let upstreams = upstreams(&format!("isolation = {isolation:?}\n"));
    let intake: Arc<dyn NoticeIntake> = Arc::new(NullIntake);
    let link = upstreams.link("up", client(Arc::clone(&intake))).unwrap();
    assert_eq!(Arc::strong_count(&intake), 2);
    drop(link);
    // Polls the task that the drop has spawned, which does not wait.
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&intake), 1);
}

/// Credentials of persons.
#[derive(Debug)]
struct Personal(http::HeaderMap);

impl Credentials for Personal {
    fn account_of(&self, owner: OwnerKey) -> Account {
        Account::Principal(owner)
    }

    fn for_request(&self, _requester: &Requester) -> Credential<'_> {
        Credential::Ready(&self.0)
    }
}

#[rstest]
#[case::session("session", false)]
#[case::principal("principal", true)]
#[case::shared("shared", false)]
#[tokio::test]
async fn configured_headers_are_the_account_of_all(#[case] isolation: &str, #[case] is_own: bool) {
    let upstreams = upstreams(&format!("isolation = {isolation:?}\n"));
    let alice = owner("alice");
    let account = if is_own {
        Account::Principal(alice)
    } else {
        Account::Common
    };
    assert_eq!(upstreams.account("up", alice), account);
    let entry = &upstreams.entries["up"];
    assert_eq!(entry.carrier.account_of(alice), Account::Common);
}

#[rstest]
#[tokio::test]
async fn personal_credential_keeps_principals_apart_in_all_that_is_remembered(
    #[values("session", "principal", "shared")] isolation: &str,
) {
    let mut upstreams = upstreams(&format!("isolation = {isolation:?}\n"));
    let entry = upstreams.entries.get_mut("up").unwrap();
    if let Carrier::Http(client, ..) = &mut entry.carrier {
        **client = client.with_credentials(Arc::new(Personal(http::HeaderMap::new())));
    }
    let [alice, bob] = ["alice", "bob"].map(owner);
    assert_eq!(upstreams.account("up", alice), Account::Principal(alice));
    let link = |owner| {
        let client = ClientContext {
            owner,
            ..client(Arc::new(NullIntake))
        };
        upstreams.link("up", client).unwrap()
    };
    let (_first, _second) = (link(alice), link(bob));
    if isolation != "session" {
        assert_eq!(upstreams.shared.len(), 2, "a session upstream for each");
    }
    let entry = &upstreams.entries["up"];
    let era = |owner| {
        let unknown = || panic!("its link has made it");
        entry.eras.of(Account::Principal(owner), unknown)
    };
    assert!(!Arc::ptr_eq(&era(alice), &era(bob)));
}

#[rstest]
#[case::key("kind = \"user_key\"")]
#[case::gateway(
    "kind = \"client_credentials\"\nissuer = \"https://as.test\"\nresource = \"https://api.test\"\nclient_id = \"g\"\n\
     client_secret = \"hunter2\""
)]
#[tokio::test]
async fn children_that_are_not_isolated_get_no_credential(#[case] account: &str) {
    let text = format!(
        "[auth]\nmode = \"none\"\n[upstreams.up]\ncommand = \"server\"\n[upstreams.up.auth]\nenv = \"T\"\n{account}\n"
    );
    let config = config::parse(&text, "test.toml", &|_| None).unwrap();
    let mut factory = AccountFactory::new(&config, TaskSpawner::new());
    let mut made = |isolation| {
        let made = factory.children(&config.upstreams[0], isolation, None);
        made.unwrap().unwrap()
    };
    let (credentials, accounts) = made(ChildIsolation::Unsupported);
    assert!(accounts.users.is_none() && accounts.account.is_none());
    assert!(accounts.withheld.is_some());
    let requester = Requester {
        account: Account::Connected(owner("alice"), 0),
        caller: None,
    };
    let Credential::Awaited(awaited) = credentials.for_request(&requester) else {
        panic!("a credential");
    };
    let refused = awaited.await.unwrap_err();
    let said = refused.account().unwrap();
    assert!(said.remedy().contains("stdio.trust_children"), "{said}");
    for isolation in [ChildIsolation::Isolated, ChildIsolation::Trusted] {
        assert!(made(isolation).1.withheld.is_none());
    }
}

/// Two upstreams whose accounts are kept logins, and one with keys.
const ASSERTED: &str = "[auth]\nmode = \"oauth\"\n[[auth.issuers]]\nissuer = \"https://as.test\"\n\
    [connect.login]\nissuer = \"https://as.test\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"\n\
    [upstreams.one]\nurl = \"https://one.test/mcp\"\n[upstreams.one.auth]\nkind = \"id_jag\"\n\
    issuer = \"https://one.test\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"\n\
    [upstreams.two]\nurl = \"https://two.test/mcp\"\n[upstreams.two.auth]\nkind = \"id_jag\"\n\
    issuer = \"https://two.test\"\nclient_id = \"g\"\nclient_secret = \"hunter2\"\n\
    [upstreams.key]\nurl = \"https://key.test/mcp\"\n[upstreams.key.auth]\nkind = \"user_key\"\n";

#[tokio::test]
async fn kept_login_is_the_account_at_all_upstreams_that_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let vault = vault(&dir).await;
    let audit = AuditSink::idle(Arc::new(SystemClock));
    let config = config::parse(ASSERTED, "test.toml", &|_| None).unwrap();
    let upstreams = Upstreams::new(
        &config,
        HostEnvironment::current(),
        Some(AccountKeeping::new(&vault, &audit)),
        TaskSpawner::new(),
    )
    .unwrap();
    let connected = |connected| GrantCounts {
        connected,
        ..GrantCounts::default()
    };
    let login = "login:https://as.test";
    let census = GrantCensus::from([
        (login.to_owned(), connected(7)),
        ("key".to_owned(), connected(2)),
    ]);
    let status = upstreams.status(Duration::ZERO, Some(&census));
    let counted = status.into_iter().map(|one| {
        let accounts = one.account.and_then(|account| account.accounts);
        (one.name, accounts.map(|accounts| accounts.connected))
    });
    let expected = [("key", Some(2)), ("one", Some(7)), ("two", Some(7))];
    assert_eq!(
        counted.collect::<Vec<_>>(),
        expected.map(|(name, count)| (name.to_owned(), count))
    );

    let key = GrantKey::new(owner("alice"), login);
    let mut users = upstreams.caller_accounts().upstreams_of(&key);
    users.sort();
    assert_eq!(users, [Arc::from("one"), Arc::from("two")]);
    for (name, found) in [("one", key), ("key", GrantKey::new(owner("alice"), "key"))] {
        assert_eq!(
            upstreams.caller_accounts().grant_keys(name, owner("alice")),
            [found]
        );
    }
}
