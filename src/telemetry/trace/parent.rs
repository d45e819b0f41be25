//! The trace context of the request that a task serves, for spans that functions far below begin.
//!
//! A token request may begin in the middle of a call, behind interfaces that know nothing of traces. As the id of the
//! request ([`request_tag`](crate::telemetry::request_tag)), the context is task-local to the task that serves the request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::task_local;

use super::{SpanPipeline, TraceContext};

task_local! {
    static PARENT: TraceContext;
}

/// Whether spans are recorded in this process.
#[must_use]
pub fn is_recorded() -> bool {
    SpanPipeline::installed().is_some()
}

/// The context of the request that this task serves; the default context outside of a request.
#[must_use]
pub fn parent() -> TraceContext {
    PARENT.try_with(TraceContext::clone).unwrap_or_default()
}

pin_project! {
    /// Work whose spans have a parent, wherever it is polled.
    #[derive(Debug)]
    pub struct ChildWork<F> {
        #[pin]
        work: F,
        parent: Option<TraceContext>,
    }
}

/// `work`, whose spans are children of `parent`; `None` leaves it as it is. Large futures are boxed first: this moves them.
pub fn below<F: Future>(parent: Option<TraceContext>, work: F) -> ChildWork<F> {
    ChildWork { work, parent }
}

/// `work` below the [`parent`] of this task, wherever it is polled.
pub fn keep<F: Future>(work: F) -> ChildWork<F> {
    below(PARENT.try_with(TraceContext::clone).ok(), work)
}

impl<F: Future> Future for ChildWork<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.parent {
            Some(parent) => PARENT.sync_scope(parent.clone(), || this.work.poll(cx)),
            None => this.work.poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_elsewhere_keeps_its_parent() {
        assert_eq!(parent(), TraceContext::default());
        let context = TraceContext::default().child();
        let inside = below(Some(context.clone()), async {
            (parent(), keep(async { parent() }))
        });
        let (seen, elsewhere) = inside.await;
        assert_eq!(seen, context);
        assert_eq!(elsewhere.await, context);
        assert_eq!(keep(async { parent() }).await, TraceContext::default());
    }
}
