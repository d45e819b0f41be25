//! Background checks of upstreams without recent calls: a dead upstream becomes `down`, and one that has returned `up`,
//! before the next call. Spec: DESIGN §6 (health).

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout};

use super::Upstreams;
use super::entries::RegistryEntry;
use crate::status;
use crate::upstream::carrier::Carrier;
use crate::upstream::carrier::duplex::DuplexSource;
use crate::upstream::carrier::http::client::HttpClient;
use crate::upstream::error::LinkError;

/// For connecting and the answer, and no longer than `connect_timeout`: with two looks in a row, an upstream is down
/// within 150 s of its last answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest pause before the next look at an upstream that is down.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// How many of its children a look asks, until one answers.
const MOST_ASKED: usize = 4;
/// The least part of a pause that is waited for; the rest is left to chance, so that looks spread.
const LEAST_PART: f64 = 0.8;
/// The first look comes within this part of the interval.
const FIRST_PART: f64 = 0.2;

impl Upstreams {
    /// Looks at every upstream in the background, about `every` so often.
    pub fn check_health(self: &Arc<Self>, every: Duration) {
        for name in self.entries.keys() {
            let (upstreams, name) = (Arc::clone(self), Arc::clone(name));
            self.tasks.spawn_service(async move {
                if let Some(entry) = upstreams.entries.get(&name) {
                    entry.keep_looking(every).await;
                }
            });
        }
    }

    /// Looks once whether `upstream` is there, without opening a session.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the request.
    pub async fn look_once(&self, upstream: &str) {
        if let Some(entry) = self.entries.get(upstream) {
            entry.look().await;
        }
    }
}

impl RegistryEntry {
    async fn keep_looking(&self, every: Duration) {
        let first = every.mul_f64(rand::random_range(0.0..FIRST_PART));
        let mut pace = CheckPace::new(every);
        sleep(first).await;
        loop {
            let chance = rand::random_range(LEAST_PART..1.0);
            if let Some(pause) = pace.spared(self.told(), chance) {
                sleep(pause).await;
                continue;
            }
            self.look().await;
            let is_down = self.health.state().0 == status::UpstreamState::Down;
            sleep(pace.after_look(is_down, chance)).await;
        }
    }

    fn limit(&self) -> Duration {
        self.settings.connect_timeout.min(LIMIT)
    }

    /// How long ago a call or a check told the state of the upstream.
    fn told(&self) -> Option<Duration> {
        let failed = self.health.last_failure();
        let answered = self.load.last_answer();
        failed.into_iter().chain(answered).min()
    }

    async fn look(&self) {
        let since = Instant::now();
        let found = match &self.carrier {
            Carrier::Duplex(DuplexSource::Children(_)) => match self.ask_children().await {
                Some(found) => found,
                None => return,
            },
            Carrier::Http(client, ..)
            | Carrier::Duplex(DuplexSource::Events(client, _) | DuplexSource::Sockets(client, _)) => {
                knock(client, self.limit()).await
            }
        };
        match found {
            Ok(()) => self.health.looked_well(),
            // No request was sent.
            Err(LinkError::Account(_)) => {}
            Err(error) => self.health.failed(since, &error, None),
        }
    }

    /// Whether one of its idle children answers; `None` where there is none, or where it was stopped meanwhile.
    async fn ask_children(&self) -> Option<Result<(), LinkError>> {
        let mut last = None;
        let mut asked = 0;
        for link in self.links.living() {
            if asked == MOST_ASKED {
                break;
            }
            match link.ping(self.limit()).await {
                None => {}
                Some(Ok(())) => return Some(Ok(())),
                failed => {
                    asked += 1;
                    last = failed;
                }
            }
        }
        last
    }
}

/// Sends one request without opening a session. Any answer but a 5xx shows that the upstream is there.
async fn knock(client: &HttpClient, limit: Duration) -> Result<(), LinkError> {
    let answer = timeout(limit, client.knock()).await;
    let status = answer.map_err(|_| LinkError::Timeout)??.status();
    if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        return Err(LinkError::Status(status.as_u16()));
    }
    Ok(())
}

/// When to look again.
#[derive(Debug)]
struct CheckPace {
    every: Duration,
    /// Looks in a row after which it was down.
    down: u32,
}

impl CheckPace {
    fn new(every: Duration) -> Self {
        Self { every, down: 0 }
    }

    /// How long to skip checks, as calls told the state `told` ago. `chance` is the part of a pause to wait for.
    fn spared(&self, told: Option<Duration>, chance: f64) -> Option<Duration> {
        let told = told?;
        let is_recent = told < self.every.mul_f64(LEAST_PART);
        is_recent.then(|| self.every.mul_f64(chance).saturating_sub(told))
    }

    /// How long to wait after a look: doubled each time while it is down.
    fn after_look(&mut self, is_down: bool, chance: f64) -> Duration {
        self.down = if is_down {
            self.down.saturating_add(1)
        } else {
            0
        };
        let doubled = self.every.saturating_mul(1 << self.down.min(16));
        let longest = LONGEST_PAUSE.max(self.every);
        doubled.min(longest).mul_f64(chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn pauses_double_up_to_ten_minutes_while_it_is_down() {
        let mut pace = CheckPace::new(MINUTE);
        let mut next = |is_down| pace.after_look(is_down, 1.0).as_secs() / 60;
        let pauses = [false, false, true, true, true, true, true, false].map(&mut next);
        assert_eq!(pauses, [1, 1, 2, 4, 8, 10, 10, 1]);
    }

    #[test]
    fn an_interval_above_ten_minutes_is_not_shortened() {
        let mut pace = CheckPace::new(MINUTE * 30);
        assert_eq!(pace.after_look(true, 1.0), MINUTE * 30);
    }

    #[test]
    fn nothing_is_looked_at_of_which_calls_tell() {
        let pace = CheckPace::new(MINUTE);
        let told = |seconds| pace.spared(Some(Duration::from_secs(seconds)), 1.0);
        assert_eq!(pace.spared(None, 1.0), None);
        assert_eq!(told(0), Some(MINUTE));
        assert_eq!(told(40), Some(Duration::from_secs(20)));
        assert_eq!(told(50), None);
    }

    // Two looks fail one after the other, each at its latest.
    #[test]
    fn down_is_noticed_within_150_seconds() {
        let mut pace = CheckPace::new(MINUTE);
        let spared = pace.spared(Some(Duration::ZERO), 1.0).unwrap();
        let between = pace.after_look(false, 1.0);
        let whole = spared + LIMIT + between + LIMIT;
        assert!(whole <= Duration::from_secs(150), "{whole:?}");
    }
}
