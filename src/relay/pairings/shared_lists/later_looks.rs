//! Pages that a session was given and that are looked at again: whether they have changed, and what ends them.

use super::*;

// It may be a fault of this session's link, and the page of the others may be good.
#[tokio::test(start_paused = true)]
async fn page_that_cannot_be_looked_at_again_ends_for_its_session_alone() {
    let lists = SharedLists::new(true);
    let session = lists.open();
    lists.list(&session).await;
    let mut reader = session.standalone().attach();
    lists.upstream.fails.store(true, Relaxed);
    // Changes are heard from now on: one may have been missed.
    let pages = &lists.f.relay.parts.catalog.pages;
    pages.heard(&session, &up(), &["tools"], false);
    within(told(&mut reader)).await;
    assert_eq!(lists.upstream.asked(), 2);
    lists.upstream.fails.store(false, Relaxed);
    let other = lists.open();
    lists.list(&other).await;
    assert_eq!(lists.upstream.asked(), 2, "the page is good for others");
    lists.list(&session).await;
    assert_eq!(lists.upstream.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn aged_page_that_cannot_be_looked_at_again_stays() {
    let lists = SharedLists::new(true);
    let session = lists.open();
    lists.list(&session).await;
    let mut reader = session.standalone().attach();
    lists.upstream.fails.store(true, Relaxed);
    let given = SharedLists::page(&session);
    lists.look_again(&session, &given).await;
    assert_eq!(lists.upstream.asked(), 2);
    assert!(!is_told(&mut reader));
    assert_eq!(SharedLists::page(&session).number, given.number);
}

// What another session was given since is looked at in place of a request.
#[tokio::test(start_paused = true)]
async fn page_is_compared_with_a_later_one_of_another_session() {
    for (tool, differs) in [("first", false), ("second", true)] {
        let lists = SharedLists::new(true);
        let session = lists.open();
        lists.list(&session).await;
        let given = SharedLists::page(&session);
        let mut reader = session.standalone().attach();
        session.list_validity().heard(&up());
        lists.change(tool);
        let other = lists.open();
        // It may not begin with the page of another session.
        other.list_validity().called(&up());
        lists.list(&other).await;
        assert_eq!(lists.upstream.asked(), 2);
        lists.look_again(&session, &given).await;
        assert_eq!(is_told(&mut reader), differs);
        assert!(lists.list(&session).await.contains(tool));
        let later = SharedLists::page(&other).number;
        assert_eq!(SharedLists::page(&session).number, later);
        assert_eq!(
            lists.upstream.asked(),
            2,
            "the later page stays good for all"
        );
    }
}
