//! The thread that carries all connections, whatever runtimes callers have.

use std::cell::Cell;
use std::future::{pending, Future};
use std::pin::Pin;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Timeout};

/// Runs one runtime, which no caller's work keeps from reading, and which outlives all runtimes of callers.
static BACKGROUND: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let handle = runtime.handle().clone();
    let carry = move || {
        IS_BACKGROUND.set(true);
        runtime.block_on(pending::<()>())
    };
    thread::Builder::new().name("tokenbucket".to_owned()).spawn(carry).expect("a thread can be started");
    handle
});

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is the thread that carries the connections, which must not wait.
pub(crate) fn is_here() -> bool {
    IS_BACKGROUND.get()
}

/// Runs a hook of what has no caller, such as a renewal, on another thread: it may wait for another call.
pub(crate) fn run_hook(hook: impl FnOnce() + Send + 'static) {
    BACKGROUND.spawn_blocking(hook);
}

/// Runs a task on the background thread.
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    BACKGROUND.spawn(task)
}

/// Runs work in the caller's task. If the caller leaves, it goes on in the background.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    struct Detached<T: Send + 'static>(Option<Pending<T>>);

    impl<T: Send + 'static> Drop for Detached<T> {
        fn drop(&mut self) {
            self.0.take().map(spawn);
        }
    }

    let mut detached = Detached(None);
    let value = detached.0.insert(Box::pin(work)).await;
    detached.0 = None;
    value
}

/// Sleeps by the clock of the background thread.
pub(crate) async fn sleep(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

/// Ends work after that time, by the clock of the background thread.
pub(crate) fn timeout<F: Future>(time: Duration, work: F) -> Timeout<F> {
    let _entered = BACKGROUND.enter();
    tokio::time::timeout(time, work)
}

/// Ends work at that time, by the clock of the background thread.
pub(crate) fn timeout_at<F: Future>(at: Instant, work: F) -> Timeout<F> {
    let _entered = BACKGROUND.enter();
    tokio::time::timeout_at(at, work)
}
