use super::*;
use crate::call::Principal;

fn owner(name: &str) -> OwnerKey {
    Principal::new("https://issuer.test", name, "client", Vec::new(), None).owner()
}

// Spec: SPEC T-17.
#[test]
fn scans_are_bounded_per_caller_and_in_all() {
    let scans = Arc::new(BodyScans::new(1024));
    let mut held = Vec::new();
    for caller in 0..SCANS / SCANS_PER_CALLER {
        let owner = owner(&format!("caller-{caller}"));
        for _ in 0..SCANS_PER_CALLER {
            held.extend(scans.permits.enter(owner));
        }
        assert!(
            scans.permits.enter(owner).is_none(),
            "a caller has its share"
        );
    }
    assert_eq!(held.len(), SCANS);
    assert!(
        scans.permits.enter(owner("another")).is_none(),
        "all are taken"
    );
    held.pop();
    let freed = scans.permits.enter(owner("another"));
    assert!(freed.is_some(), "a place is free again");
}
