//! One hostile caller, on everything at once, beside honest ones: the short form of `drill hostile`.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

// Latencies are for the long form: tests share the machine.
#[tokio::test]
async fn honest_callers_lose_no_call_beside_a_hostile_one() {
    let drill = Command::new(env!("CARGO_BIN_EXE_drill"))
        .args(["hostile", "--seconds", "15", "--no-latency"])
        .args(["--gateway", env!("CARGO_BIN_EXE_drawbridge")])
        .args(["--stub", env!("CARGO_BIN_EXE_stub-upstream")])
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let report: Value = serde_json::from_slice(&drill.stdout).unwrap();
    assert_eq!(report["violations"], 0, "{report}");
    assert!(drill.status.success(), "{report}");
    // Every attack took place.
    let facts = report["facts"].as_object().unwrap();
    for attack in [
        "notify",
        "call",
        "half_body",
        "half_message",
        "stranger",
        "streams",
        "silent",
    ] {
        let began = format!("hostile_{attack}");
        assert!(facts.contains_key(&began), "{attack}: {report}");
    }
}
