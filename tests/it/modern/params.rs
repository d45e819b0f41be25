//! Arguments that are repeated in headers. Spec: SPEC M-18, M-33.

use serde_json::{Value, json};

use super::{Modern, VERSION};
use crate::harness::Setup;
use crate::harness::session::text_of;

#[tokio::test]
async fn annotated_arguments_must_be_repeated_in_headers() {
    let gw = Setup::open()
        .stub("stub", &[])
        .stub("other", &[])
        .start()
        .await;
    for (path, tool) in [("/mcp/stub", "regional"), ("/mcp", "stub__regional")] {
        let user = Modern::new(gw.anonymous(), path);
        let call = |arguments: &Value| {
            let params = json!({"name": tool, "arguments": arguments});
            user.request(&json!("p"), "tools/call", params)
        };
        let send = async |arguments: Value, given: &[(&str, &str)]| {
            let mut headers = vec![
                ("mcp-protocol-version", VERSION),
                ("mcp-method", "tools/call"),
                ("mcp-name", tool),
            ];
            headers.extend_from_slice(given);
            let answer = user.post_as(&headers, &call(&arguments)).await;
            let status = answer.status();
            let body = answer.json().await;
            assert_eq!(body["id"], "p");
            (status, body)
        };
        let region = json!({"region": "é"});
        let good = ("mcp-param-region", "=?base64?w6k=?=");
        for (arguments, given) in [
            (&region, &[][..]),
            (&region, &[("mcp-param-region", "e")]),
            (&region, &[("mcp-param-region", "=?base64?w6k?=")]),
            (&region, &[good, good]),
            (&json!({}), &[good]),
        ] {
            let (status, body) = send(arguments.clone(), given).await;
            assert_eq!(
                (status, &body["error"]["code"]),
                (400, &json!(-32020)),
                "{given:?}"
            );
        }
        for (arguments, given) in [
            (&region, &[good, ("mcp-param-unknown", "x")][..]),
            (&json!({"region": null}), &[]),
            (&json!({}), &[]),
        ] {
            let (status, body) = send(arguments.clone(), given).await;
            assert_eq!(status, 200, "{body}");
            assert!(text_of(&body["result"]).starts_with("region"), "{body}");
        }
    }
    gw.stop().await;
}
