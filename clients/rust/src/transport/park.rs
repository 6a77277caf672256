//! Runs futures on threads that have no runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future on this thread, which sleeps meanwhile. The thread may also run a task of a runtime.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    // In a task of another runtime it has no budget to keep to: nothing would poll it again.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        while !unpark.is_woken.swap(false, Ordering::AcqRel) {
            thread::park();
        }
    }
}
