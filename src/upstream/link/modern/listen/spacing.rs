//! `OpeningInterval`: the least time between two streams of change notices, when the filter changes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::filter::ListenFilter;

/// Bytes of opening a stream besides its filter.
const OPENING: usize = 1024;
/// Pause per byte of a filter, so that filters take at most 500 kB a second.
const FOR_A_BYTE: Duration = Duration::from_micros(2);
/// The longest pause, which `resources/subscribe` adds to its time limit.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// The pause between two openings. A filter names every URI, so that opening a stream for each added URI would send a
/// number of bytes that grows with the square of their number; changes during the pause join one filter.
#[derive(Debug)]
pub(super) struct OpeningInterval {
    over: Instant,
}

impl Default for OpeningInterval {
    fn default() -> Self {
        Self {
            over: Instant::now(),
        }
    }
}

impl OpeningInterval {
    /// Starts the pause: a stream with `filter` is being opened.
    pub(super) fn begin(&mut self, filter: &ListenFilter) {
        let bytes = u32::try_from(filter.bytes() + OPENING).unwrap_or(u32::MAX);
        let wait = FOR_A_BYTE.saturating_mul(bytes).min(LONGEST);
        self.over = Instant::now() + wait;
    }

    /// Resolves when the number of the latest wish differs from `number` and the pause is over; never `Err` while the
    /// link lives.
    ///
    /// # Cancel safety
    /// A wish that arrived is found again by the next call with the same number.
    pub(super) async fn next(
        &self,
        wishes: &mut watch::Receiver<u64>,
        number: u64,
    ) -> Result<(), watch::error::RecvError> {
        wishes
            .wait_for(|latest| *latest != number)
            .await
            .map(drop)?;
        tokio::time::sleep_until(self.over).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter with this number of URIs of 40 bytes.
    fn filter(uris: u64) -> ListenFilter {
        ListenFilter {
            lists: Vec::new(),
            uris: (0..uris)
                .map(|uri| format!("file:///a/folder/of/documents/{uri:010}"))
                .collect(),
        }
    }

    /// Counts openings and their bytes while a URI is added every 10 ms, which `limits.rate` allows one caller.
    // Spec: SPEC O-01.
    #[tokio::test(start_paused = true)]
    async fn uris_added_in_a_row_share_openings() {
        const URIS: u64 = 1000;
        let (wish, mut wishes) = watch::channel(1);
        let (mut spacing, mut openings, mut bytes) = (OpeningInterval::default(), 0, 0);
        let opening = async {
            loop {
                let number = *wishes.borrow_and_update();
                let filter = filter(number);
                spacing.begin(&filter);
                openings += 1;
                bytes += filter.bytes();
                if number == URIS || spacing.next(&mut wishes, number).await.is_err() {
                    return;
                }
            }
        };
        let adding = async {
            for number in 2..=URIS {
                tokio::time::sleep(Duration::from_millis(10)).await;
                wish.send_replace(number);
            }
        };
        tokio::join!(opening, adding);
        assert!((10..400).contains(&openings), "{openings}");
        assert!(bytes < 6_000_000, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn first_change_is_followed_at_once() {
        let (_wish, mut wishes) = watch::channel(1);
        let begun = Instant::now();
        let mut spacing = OpeningInterval::default();
        spacing.next(&mut wishes, 0).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        spacing.begin(&filter(65_536));
        spacing.next(&mut wishes, 0).await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= LONGEST && waited < 2 * LONGEST, "{waited:?}");
    }
}
