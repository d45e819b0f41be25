//! stub
use crate::{call::Principal, clock::SharedClock, config, endpoint::Endpoint, lifecycle::Tasks};
use std::sync::Arc;
use std::time::Duration;
#[derive(Debug)]
pub struct Authenticator {
    clock: SharedClock,
}
#[derive(Debug)]
pub struct Denied {
    pub status: http::StatusCode,
    pub challenge: Option<http::HeaderValue>,
    pub reason: &'static str,
}
impl Authenticator {
    pub fn new(
        _c: &config::Auth,
        clock: SharedClock,
        _t: Tasks,
    ) -> Result<Arc<Self>, std::io::Error> {
        Ok(Arc::new(Self { clock }))
    }
    pub async fn authenticate(
        &self,
        _h: &http::HeaderMap,
        _q: Option<&str>,
        _e: &Endpoint,
    ) -> Result<Arc<Principal>, Denied> {
        Ok(Arc::new(Principal::anonymous()))
    }
    #[must_use]
    pub fn insufficient_scope(&self, _e: &Endpoint, _n: &[String], _p: &Principal) -> Denied {
        Denied {
            status: http::StatusCode::FORBIDDEN,
            challenge: None,
            reason: "x",
        }
    }
    #[must_use]
    pub fn now(&self) -> Duration {
        self.clock.now()
    }
}
#[must_use]
pub fn metadata(_e: &Endpoint, _a: &config::Auth) -> bytes::Bytes {
    bytes::Bytes::new()
}
