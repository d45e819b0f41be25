//! stub
pub mod rate;
use crate::{call::Principal, config, endpoint::Endpoint};
#[derive(Debug)]
pub struct Policy;
#[derive(Debug)]
pub struct Permit(());
#[derive(Debug)]
pub struct Denial {
    pub rule: String,
    pub missing_scopes: Vec<String>,
    pub hidden: bool,
}
impl Denial {
    #[must_use]
    pub fn public(&self) -> String {
        format!("denied by {}", self.rule)
    }
}
impl Policy {
    #[must_use]
    pub fn new(_a: &config::Auth) -> Self {
        Self
    }
    pub fn decide(
        &self,
        _p: &Principal,
        _e: &Endpoint,
        _u: &str,
        _m: &str,
        _n: Option<&str>,
    ) -> Result<Permit, Denial> {
        Ok(Permit(()))
    }
    #[must_use]
    pub fn shows_tool(&self, _e: &Endpoint, _p: &Principal, _u: &str, _t: &str) -> bool {
        true
    }
}
