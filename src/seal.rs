//! stub
use crate::config;
#[derive(Debug)]
pub struct Sealer;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct SealError;
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    Session,
    Cursor,
}
impl Sealer {
    pub fn new(_k: &[config::SealKey]) -> Result<Self, SealError> {
        Ok(Self)
    }
    #[must_use]
    pub fn seal(&self, _p: Purpose, _aad: &[u8], plain: &[u8]) -> String {
        plain.iter().map(|b| format!("{b:02x}")).collect()
    }
    #[must_use]
    pub fn open(&self, _p: Purpose, _aad: &[u8], s: &str) -> Option<Vec<u8>> {
        (0..s.len() / 2)
            .map(|i| u8::from_str_radix(s.get(2 * i..2 * i + 2)?, 16).ok())
            .collect()
    }
}
