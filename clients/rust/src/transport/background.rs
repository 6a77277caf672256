//! The thread that carries all connections, whatever runtimes callers have.

use std::cell::Cell;
use std::future::{pending, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{mpsc, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Timeout};

use crate::transport::locked::locked;

/// Runs one runtime, which no caller's work keeps from reading, and which outlives all runtimes of callers.
static BACKGROUND: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let handle = runtime.handle().clone();
    start("tokenbucket", move || {
        IS_BACKGROUND.set(true);
        runtime.block_on(pending::<()>());
    });
    handle
});

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type Hook = Box<dyn FnOnce() + Send>;

/// Runs hooks of what has no caller, such as renewals: a hook may wait for another call.
static HOOKS: LazyLock<Mutex<mpsc::Sender<Hook>>> = LazyLock::new(|| {
    let (sender, hooks) = mpsc::channel::<Hook>();
    start("tokenbucket-hooks", move || {
        for hook in hooks {
            let _ = catch_unwind(AssertUnwindSafe(hook));
        }
    });
    Mutex::new(sender)
});

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) {
    thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread can be started");
}

/// Returns whether this is the thread that carries the connections, which must not wait.
pub(crate) fn is_here() -> bool {
    IS_BACKGROUND.get()
}

/// Runs a hook on the thread for those that have no caller's.
pub(crate) fn run_hook(hook: impl FnOnce() + Send + 'static) {
    let _ = locked(&HOOKS).send(Box::new(hook));
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
