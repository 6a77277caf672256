//! The thread that carries all connections, whatever runtimes callers have.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::LazyLock;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

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

/// More timers that nobody uses are dropped.
const MOST_SPARE_TIMERS: usize = 64;
/// The longest that a timer runs.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
    static SPARE_TIMERS: RefCell<Vec<Pin<Box<Sleep>>>> = const { RefCell::new(Vec::new()) };
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

/// Work that the background does if it is dropped.
pub(crate) struct Owed<T: Send + 'static = ()>(Option<Pending<T>>);

impl Owed {
    pub(crate) fn by(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(work)))
    }

    pub(crate) fn nothing() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> Owed<T> {
    /// Drops it without its work being done.
    pub(crate) fn forgive(mut self) {
        self.0 = None;
    }
}

impl<T: Send + 'static> Drop for Owed<T> {
    fn drop(&mut self) {
        self.0.take().map(spawn);
    }
}

/// Runs work in the caller's task. If the caller leaves, it goes on in the background.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut owed = Owed(None);
    let value = owed.0.insert(Box::pin(work)).await;
    owed.forgive();
    value
}

/// Ends work after that time, by the clock of the background thread.
pub(crate) async fn timeout<F: Future>(time: Duration, work: F) -> Option<F::Output> {
    until(Instant::now() + time.min(YEAR), pin!(work)).await
}

/// Ends work at that time, by the clock of the background thread.
pub(crate) async fn until<F: Future + Unpin>(at: Instant, mut work: F) -> Option<F::Output> {
    // Making a timer and dropping it takes a lock that all threads share; to set one later takes none.
    let spare = SPARE_TIMERS.with_borrow_mut(Vec::pop);
    let mut timer = spare.unwrap_or_else(|| {
        let _entered = BACKGROUND.enter();
        Box::pin(tokio::time::sleep_until(at))
    });
    timer.as_mut().reset(at);
    let either = poll_fn(|context| match Pin::new(&mut work).poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => timer.as_mut().poll(context).map(|()| None),
    });
    let value = either.await;
    SPARE_TIMERS.with_borrow_mut(|spare| {
        if spare.len() < MOST_SPARE_TIMERS {
            spare.push(timer);
        }
    });
    value
}
