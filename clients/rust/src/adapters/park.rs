//! Runs futures on threads that have no runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use scopeguard::defer;

use crate::transport::background::{Role, ROLE};

struct Signal(SyncSender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        // One that is not received yet does for both.
        let _ = self.0.try_send(());
    }
}

/// Runs a future on this thread, which sleeps meanwhile. The thread may also run a task of a runtime.
pub(crate) fn wait_for<T>(role: Role, future: impl Future<Output = T>) -> T {
    let before = ROLE.replace(role);
    defer!(ROLE.set(before));
    let (signal, signals) = sync_channel(1);
    let waker = Waker::from(Arc::new(Signal(signal)));
    // In a task of another runtime it has no budget to keep to: nothing would poll it again.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let _ = signals.recv();
    }
}
