//! `notifications/cancelled` for a request of ours.

use bytes::Bytes;

use crate::protocol::{json, rpc};

/// Bytes of the reason that are sent, as the client may have written it.
const MAX_REASON: usize = 512;

/// The cancellation of the request `id`. Spec: SPEC C-10.
pub(super) fn of_request(id: u64, reason: &str) -> Bytes {
    let reason = reason.get(..reason.floor_char_boundary(MAX_REASON));
    let params = json::object([
        ("requestId", id.to_string()),
        ("reason", json::quote(reason.unwrap_or_default())),
    ]);
    rpc::notification("notifications/cancelled", &params).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let told = of_request(7, &"ä\u{1F600}".repeat(1000));
        assert!(told.len() < 2 * MAX_REASON);
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(told["params"]["requestId"], 7);
        assert!(told["params"]["reason"].as_str().unwrap().len() > MAX_REASON - 4);
    }
}
