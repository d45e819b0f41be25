//! The same tours through three replicas behind nginx, which gives each request to the next one: exactly as with one.
//! Spec: DESIGN §8.1.

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;

use super::{MODERN_STEPS, STEPS, Sdk, npm_server};
use crate::harness::replicas::Replicas;
use crate::harness::{Setup, peers};

/// Tours at once.
const AT_ONCE: usize = 2;

#[tokio::test]
async fn every_sdk_tours_everything_through_three_replicas() {
    if !peers::are_installed() {
        return;
    }
    let everything = npm_server("everything");
    let args = [everything.as_str(), "stdio"];
    let make = || Setup::secured().stdio("everything", &peers::node(), &args, "");
    let Some(replicas) = Replicas::start(make).await else {
        return;
    };
    let tours = [
        (Sdk::TypeScript("1"), "legacy", STEPS),
        (Sdk::TypeScript("2"), "legacy", STEPS),
        (Sdk::TypeScript("2"), "modern", MODERN_STEPS),
        (Sdk::Python(1), "legacy", STEPS),
        (Sdk::Python(2), "legacy", STEPS),
        (Sdk::Python(2), "modern", MODERN_STEPS),
    ];
    let path = "/mcp/everything";
    let url = format!("{}{path}", replicas.url);
    let tours = tours.into_iter().enumerate().map(|(number, tour)| {
        let token = replicas.token(&format!("user-{number}"), &[path]);
        let options = json!({"url": url, "token": token, "era": tour.1});
        async move {
            let (sdk, _, steps) = tour;
            sdk.tour("everything", &options, steps).await;
        }
    });
    stream::iter(tours)
        .for_each_concurrent(AT_ONCE, |tour| tour)
        .await;
    let forwards = "drawbridge_cluster_forward_duration_seconds_count";
    for gateway in replicas.gateways() {
        let forwarded = gateway.metric(forwards, "ok").await;
        assert!(forwarded > 10.0, "{forwarded} were passed on");
    }
    replicas.stop().await;
}
