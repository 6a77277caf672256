//! Work that goes on when its caller stops waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs in the caller's task. If the caller drops it before its end, `late` gets the rest, to run it in a task of its own
/// and undo what nobody waits for.
///
/// So a caller's deadline or cancellation ends the waiting alone.
pub(crate) struct Detached<T, L: FnOnce(Pending<T>) + Unpin> {
    work: Option<Pending<T>>,
    late: Option<L>,
    has_begun: bool,
}

impl<T, L: FnOnce(Pending<T>) + Unpin> Detached<T, L> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static, late: L) -> Self {
        Self { work: Some(Box::pin(work)), late: Some(late), has_begun: false }
    }

    /// Takes the rest of the work, if it goes on.
    pub(crate) fn into_rest(mut self) -> Option<Pending<T>> {
        self.work.take()
    }
}

impl<T, L: FnOnce(Pending<T>) + Unpin> Future for Detached<T, L> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.has_begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let value = std::task::ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(value)
    }
}

impl<T, L: FnOnce(Pending<T>) + Unpin> Drop for Detached<T, L> {
    fn drop(&mut self) {
        if let (Some(work), Some(late), true) = (self.work.take(), self.late.take(), self.has_begun) {
            late(work);
        }
    }
}
