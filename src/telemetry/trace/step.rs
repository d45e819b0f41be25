//! `StepSpan`: the span of a page, or of a token request. Unlike those of calls, its duration is in no histogram here.

use std::borrow::Cow;

use http::{HeaderMap, Method, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanKind, Status};

use super::sampling::SpanPipeline;
use super::span::{context_of, record};
use super::{TraceContext, parent};
use crate::telemetry::names::{attribute, error_type, span};

/// The outcome of a step that went well.
const OK: &str = "ok";

/// The span of one step until [`end`](Self::end). A span that is dropped before ends as cancelled.
#[derive(Debug)]
pub struct StepSpan {
    context: TraceContext,
    recorded: Option<Box<opentelemetry_sdk::trace::Span>>,
}

impl StepSpan {
    /// A request with `headers` for the connect page at `route`, which is a pattern without names.
    #[must_use]
    pub fn page(headers: &HeaderMap, method: &Method, route: &'static str) -> Self {
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            _ => "_OTHER",
        };
        let parent = TraceContext::incoming(headers, None, None);
        let attributes = || {
            vec![
                KeyValue::new(attribute::HTTP_METHOD, method),
                KeyValue::new(attribute::HTTP_ROUTE, route),
            ]
        };
        let name = Cow::Owned(format!("{method} {route}"));
        let tracing = SpanPipeline::installed();
        Self::start(tracing, &parent, (name, &SpanKind::Server), attributes)
    }

    /// A token request to the server at `host`, below the request that this task serves. `account` is the upstream that
    /// the token is for, and the kind of its account; `None` for a login at the connect pages.
    #[must_use]
    pub fn token_request(host: &str, account: Option<(&str, &'static str)>) -> Self {
        let tracing = SpanPipeline::installed();
        Self::token_request_in(tracing, host, account)
    }

    fn token_request_in(
        tracing: Option<&SpanPipeline>,
        host: &str,
        account: Option<(&str, &'static str)>,
    ) -> Self {
        let attributes = || {
            let host = KeyValue::new(attribute::SERVER_ADDRESS, host.to_owned());
            let account = account.map(|(upstream, kind)| {
                let upstream = KeyValue::new(attribute::UPSTREAM, upstream.to_owned());
                [upstream, KeyValue::new(attribute::ACCOUNT_KIND, kind)]
            });
            std::iter::once(host)
                .chain(account.into_iter().flatten())
                .collect()
        };
        let name = Cow::Borrowed(span::TOKEN_REQUEST);
        Self::start(tracing, &parent(), (name, &SpanKind::Client), attributes)
    }

    fn start(
        tracing: Option<&SpanPipeline>,
        parent: &TraceContext,
        named: (Cow<'static, str>, &SpanKind),
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        let recorded = record(tracing, parent, named, attributes);
        Self {
            context: context_of(tracing, parent, recorded.as_deref()),
            recorded,
        }
    }

    /// The context for child spans.
    #[must_use]
    pub fn context(&self) -> &TraceContext {
        &self.context
    }

    /// Ends a page that was answered with `status`.
    pub fn answered(mut self, status: StatusCode) {
        if let Some(span) = &mut self.recorded {
            span.set_attribute(KeyValue::new(
                attribute::HTTP_STATUS,
                i64::from(status.as_u16()),
            ));
        }
        let is_ours = status.is_server_error();
        self.finish(if is_ours { error_type::INTERNAL } else { OK });
    }

    /// Ends it with `outcome`: `ok`, or one word for a failure.
    pub fn end(mut self, outcome: &'static str) {
        if let Some(span) = &mut self.recorded {
            span.set_attribute(KeyValue::new(attribute::OUTCOME, outcome));
        }
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: &'static str) {
        let Some(mut span) = self.recorded.take() else {
            return;
        };
        if outcome != OK {
            span.set_attribute(KeyValue::new(attribute::ERROR_TYPE, outcome));
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

impl Drop for StepSpan {
    fn drop(&mut self) {
        self.finish(error_type::CANCELLED);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::SpanData;

    use super::super::below;
    use super::super::kept::KeptSpans;
    use super::*;

    #[tokio::test]
    async fn token_request_is_a_child_of_what_its_task_serves() {
        let kept = KeptSpans::default();
        let tracing = kept.pipeline(1.0);
        let page = StepSpan::start(
            Some(&tracing),
            &TraceContext::default(),
            ("POST /connect".into(), &SpanKind::Server),
            Vec::new,
        );
        let ask = |account| StepSpan::token_request_in(Some(&tracing), "as.test", account);
        let work = async {
            ask(Some(("up", "user"))).end("ok");
            drop(ask(None));
        };
        below(Some(page.context().clone()), work).await;
        page.answered(StatusCode::OK);
        let kept = kept.all();
        let [asked, dropped, page] = &kept[..] else {
            panic!("three spans: {kept:?}");
        };
        for child in [asked, dropped] {
            assert_eq!(child.parent_span_id, page.span_context.span_id());
            assert_eq!(child.span_context.trace_id(), page.span_context.trace_id());
        }
        let value = |span: &SpanData, key: &str| {
            let mut all = span.attributes.iter();
            let found = all.find(|attribute| attribute.key.as_str() == key);
            found.map(|attribute| attribute.value.to_string())
        };
        assert_eq!(value(asked, attribute::UPSTREAM).as_deref(), Some("up"));
        assert_eq!(value(asked, attribute::OUTCOME).as_deref(), Some("ok"));
        assert_eq!(value(asked, attribute::ERROR_TYPE), None);
        assert_eq!(
            value(dropped, attribute::ERROR_TYPE).as_deref(),
            Some("cancelled")
        );
        assert_eq!(value(page, attribute::HTTP_STATUS).as_deref(), Some("200"));
    }
}
