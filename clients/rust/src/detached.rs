//! Work that goes on when its caller stops waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::server::Server;

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs in the caller's task. If the caller drops it before its end, it moves to a task of its own, and `late` undoes
/// what nobody waits for.
///
/// So a caller's deadline or cancellation ends the waiting alone.
pub(crate) struct Detached<T: Send + 'static, L: FnOnce(T) + Send + Unpin + 'static> {
    work: Option<Pending<T>>,
    late: Option<L>,
    server: Server,
    has_begun: bool,
}

impl<T: Send + 'static, L: FnOnce(T) + Send + Unpin + 'static> Detached<T, L> {
    pub(crate) fn new(server: Server, work: impl Future<Output = T> + Send + 'static, late: L) -> Self {
        Self { work: Some(Box::pin(work)), late: Some(late), server, has_begun: false }
    }
}

impl<T: Send + 'static, L: FnOnce(T) + Send + Unpin + 'static> Future for Detached<T, L> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.has_begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let value = std::task::ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(value)
    }
}

impl<T: Send + 'static, L: FnOnce(T) + Send + Unpin + 'static> Drop for Detached<T, L> {
    fn drop(&mut self) {
        let (Some(work), Some(late), true) = (self.work.take(), self.late.take(), self.has_begun) else {
            return;
        };
        self.server.spawn(async move { late(work.await) });
    }
}
