//! Completes futures that must not be dropped, such as a charge for used tokens.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Completes even if its caller drops it: then the rest runs in a task of its own.
pub(crate) struct ToTheEnd<F: Future<Output: Send + 'static> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send + 'static> + Send + 'static> ToTheEnd<F> {
    pub(crate) fn new(call: F) -> Self {
        Self(Some(Box::pin(call)))
    }
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Future for ToTheEnd<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // A future that panics stays out, and is not polled again.
        let Some(mut call) = self.0.take() else { return Poll::Pending };
        let polled = call.as_mut().poll(cx);
        if polled.is_pending() {
            self.0 = Some(call);
        }
        polled
    }
}

impl<F: Future<Output: Send + 'static> + Send + 'static> Drop for ToTheEnd<F> {
    fn drop(&mut self) {
        let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) else { return };
        runtime.spawn(rest);
    }
}
