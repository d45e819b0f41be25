use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{BoxFuture, ready};
use tokio::time::sleep;

use super::*;
use crate::store::scripts::ScriptResult;

/// Arguments of an exchange without a notice.
const BARE: usize = 3;

/// A store without notices of others, which counts those that it is told.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl ScriptRunner for Counting {
    fn run(&self, calls: Vec<ScriptCall>) -> BoxFuture<'_, Vec<ScriptResult>> {
        let told = calls.iter().map(|call| call.args.len() - BARE);
        self.0.fetch_add(told.sum(), Ordering::Relaxed);
        let reply = |_| {
            let position = Value::BulkString(b"0-0".to_vec());
            let nothing = Value::Array(Vec::new());
            Ok(Value::Array(vec![position, Value::Int(0), nothing]))
        };
        Box::pin(ready(calls.into_iter().map(reply).collect()))
    }
}

#[derive(Debug)]
struct Deaf;

impl ListChangeReceiver for Deaf {
    fn changed(&self, _change: &ListChange) {}

    fn changed_again(&self, _change: &ListChange) {}

    fn missed(&self) {}
}

fn change(what: &str) -> ListChange {
    ListChange {
        upstream: "files".to_owned(),
        what: what.to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn change_that_repeats_itself_is_told_once_in_an_interval() {
    let (store, receiver) = (Arc::new(Counting::default()), Arc::new(Deaf));
    let heard: Weak<Deaf> = Arc::downgrade(&receiver);
    let keys = StoreKeys::new("test");
    let notices = SharedNotices::start(Arc::clone(&store) as _, keys, heard, &TaskSpawner::new());
    sleep(2 * INTERVAL).await;
    notices.publish(change("tools"));
    sleep(Duration::from_millis(5)).await;
    assert_eq!(store.0.load(Ordering::Relaxed), 1, "at once");
    let (began, most) = (Instant::now(), 4);
    while began.elapsed() < most * INTERVAL {
        notices.publish(change("tools"));
        notices.publish(change("prompts"));
        sleep(Duration::from_millis(2)).await;
    }
    let told = store.0.load(Ordering::Relaxed) - 1;
    let expected = 2 * usize::try_from(most).unwrap();
    assert!((expected - 2..=expected + 2).contains(&told), "{told}");
}
