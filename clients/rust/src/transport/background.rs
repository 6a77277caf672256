//! The thread that carries connections, whatever runtimes callers have.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::io;
use std::pin::{pin, Pin};
use std::sync::{mpsc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisResult;
use scopeguard::{guard, ScopeGuard};
use tokio::runtime::{self, Builder, Handle, Runtime};
use tokio::sync::{oneshot, Semaphore};
use tokio::task::{yield_now, JoinHandle};
use tokio::time::{sleep_until, Sleep};

use crate::transport::address::unfinished;
use crate::transport::locked::locked;

/// Empty until the first call, and while no thread can be started: each call tries.
static BACKGROUND: OnceLock<Background> = OnceLock::new();

/// A runtime that no caller's work keeps from reading, and that outlives all runtimes of callers.
struct Background {
    handle: Handle,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

/// What a thread runs.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "sync"), allow(dead_code))]
pub(crate) enum Role {
    /// Tasks of a runtime, perhaps.
    Tasks,
    /// One call, for which it sleeps.
    Call,
    /// One call, which may end at any time: its caller has a deadline.
    HurriedCall,
    /// All connections: it must not wait.
    Connections,
    /// One call, on the thread of the connections.
    CallHere,
}

/// The runtime of threads.
static OF_THREADS: Mutex<Option<Runtime>> = Mutex::new(None);

/// Work that may wait, for the next thread that runs such work.
static BLOCKING: Mutex<VecDeque<Box<dyn FnOnce() + Send>>> = Mutex::new(VecDeque::new());
static BLOCKING_THREADS: Semaphore = Semaphore::const_new(512);

/// The longest time that a timer runs. Longer options count as this.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Spare timers beyond these are dropped.
const MOST_SPARE_TIMERS: usize = 64;

thread_local! {
    pub(crate) static ROLE: Cell<Role> = const { Cell::new(Role::Tasks) };
    static SPARE_TIMERS: RefCell<Vec<Pin<Box<Sleep>>>> = const { RefCell::new(Vec::new()) };
}

impl Background {
    fn start() -> io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let (report, started) = mpsc::channel();
        let carry = move || match Builder::new_current_thread().enable_all().build() {
            Err(error) => drop(report.send(Err(error))),
            Ok(runtime) => {
                ROLE.set(Role::Connections);
                drop(report.send(Ok(runtime.handle().clone())));
                let _ = runtime.block_on(ended);
            }
        };
        thread::Builder::new().name("tokenbucket".to_owned()).spawn(carry)?;
        let handle = started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))?;
        Ok(Self { handle, _end: end })
    }
}

/// Returns the runtime of this process. If it cannot be started, the next call tries again.
fn handle() -> io::Result<Handle> {
    if let Some(background) = BACKGROUND.get() {
        return Ok(background.handle.clone());
    }
    let made = Background::start()?;
    Ok(BACKGROUND.get_or_init(|| made).handle.clone())
}

/// Returns whether this is the thread that carries the connections, which must not wait.
pub(crate) fn is_here() -> bool {
    matches!(ROLE.get(), Role::Connections | Role::CallHere)
}

/// Returns whether a call of this thread may wait for its reply, which another thread reads if it does not itself.
pub(crate) fn may_wait() -> bool {
    !matches!(ROLE.get(), Role::CallHere)
}

/// Runs work in the runtime of threads, if no other thread does and this one may while it waits for a reply.
pub(crate) fn run_by_thread<F: Future>(work: impl FnOnce() -> F) -> Option<F::Output> {
    // Within a runtime no other can be run, nor can one when the thread ends.
    if !matches!(ROLE.get(), Role::Call) || !Handle::try_current().is_err_and(|why| why.is_missing_context())
    {
        return None;
    }
    let mut free = if_free()?;
    if free.is_none() {
        // Without time, which would be looked at twice a call: timers are the background thread's.
        *free = Some(Builder::new_current_thread().enable_io().build().ok()?);
    }
    // Pinned here: tokio would move a large future from function to function.
    Some(free.as_ref()?.block_on(pin!(work())))
}

/// Lets the runtime of threads close the connection that was dropped, if it was its own. If it runs, it does so by itself.
pub(crate) fn close_dropped(of: runtime::Id) {
    if if_free().is_some_and(|free| free.as_ref().is_some_and(|runtime| runtime.handle().id() == of)) {
        run_blocking(|| {
            if let Some(runtime) = if_free().as_deref().and_then(Option::as_ref) {
                runtime.block_on(yield_now());
            }
        });
    }
}

fn if_free() -> Option<MutexGuard<'static, Option<Runtime>>> {
    match OF_THREADS.try_lock() {
        Ok(free) => Some(free),
        // A call that panics leaves it as it was.
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Returns whether a runtime of the caller's may run on this thread.
pub(crate) fn runs_tasks() -> bool {
    matches!(ROLE.get(), Role::Tasks)
}

/// Runs work on another thread, in the order in which it came. It may wait for a call, as a hook of a renewal may. If no thread
/// can be started, the next one runs it.
pub(crate) fn run_blocking(work: impl FnOnce() + Send + 'static) {
    locked(&BLOCKING).push_back(Box::new(work));
    // At most as many as tokio would start, which panics if it can start none.
    let Ok(thread) = BLOCKING_THREADS.try_acquire() else { return };
    let run = move || {
        // As on tokio's threads, a hook may start tasks.
        let handle = handle();
        let _entered = handle.as_ref().map(Handle::enter);
        while let Some(work) = next_blocking() {
            work();
        }
        drop(thread);
    };
    let _ = thread::Builder::new().spawn(run);
}

fn next_blocking() -> Option<Box<dyn FnOnce() + Send>> {
    locked(&BLOCKING).pop_front()
}

/// Logs. The background thread starts another one for it, because a logger may ask a limiter; returns what ends once that
/// one has logged.
pub(crate) fn warn(target: &'static str, line: String) -> Option<oneshot::Receiver<()>> {
    let log = move || log::warn!(target: target, "{line}");
    if is_here() {
        let (logging, logged) = oneshot::channel();
        let log = log.clone();
        let work = move || {
            log();
            drop(logging);
        };
        if thread::Builder::new().spawn(work).is_ok() {
            return Some(logged);
        }
    }
    log();
    None
}

/// Runs a task on the background thread.
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Ok(handle()?.spawn(task))
}

/// Runs a task that connects on the background thread. If its caller leaves, it goes on.
pub(crate) fn connecting<T: Send + 'static>(
    task: impl Future<Output = RedisResult<T>> + Send + 'static,
) -> impl Future<Output = RedisResult<T>> {
    // Begun at once: the future of each call has this one in it, and would be large with the task.
    let spawned = spawn(task);
    async { spawned?.await.unwrap_or_else(|error| Err(unfinished(error))) }
}

/// Lets the thread read what has arrived.
pub(crate) async fn turn() {
    if let Ok(task) = spawn(yield_now()) {
        let _ = task.await;
    }
}

/// Runs work in the caller's task. If the caller leaves, it goes on in the background.
pub(crate) async fn detached<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut unfinished = guard(Box::pin(work), |work| drop(spawn(work)));
    let value = unfinished.as_mut().await;
    ScopeGuard::into_inner(unfinished);
    value
}

/// Ends work after that time, by the clock of the background thread.
pub(crate) async fn timeout<F: Future>(time: Duration, work: F) -> Option<F::Output> {
    // Not tokio's time of now, which is that of the caller's runtime: a test may have stopped it.
    let at = Instant::now() + time.min(YEAR);
    let mut timer = timer(at.into()).await;
    if let Some(timer) = &mut timer {
        timer.as_mut().reset(at.into());
    }
    let mut work = pin!(work);
    let either = poll_fn(|context| match (work.as_mut().poll(context), &mut timer) {
        (Poll::Ready(value), _) => Poll::Ready(Some(value)),
        (Poll::Pending, Some(timer)) => timer.as_mut().poll(context).map(|()| None),
        (Poll::Pending, None) => watch(at, context).map(|()| None),
    });
    let value = either.await;
    let Some(timer) = timer else { return value };
    let _ = SPARE_TIMERS.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < MOST_SPARE_TIMERS {
            spare.push(timer);
        }
    });
    value
}

/// Looks at the time, again and again, where no thread can be started that has a timer.
fn watch(at: Instant, context: &Context<'_>) -> Poll<()> {
    if Instant::now() >= at {
        return Poll::Ready(());
    }
    thread::sleep(Duration::from_millis(1));
    context.waker().wake_by_ref();
    Poll::Pending
}

/// Returns a timer, if possible a spare one: making and dropping one takes a lock that all threads share.
async fn timer(at: tokio::time::Instant) -> Option<Pin<Box<Sleep>>> {
    if let Ok(Some(spare)) = SPARE_TIMERS.try_with(|spare| spare.borrow_mut().pop()) {
        return Some(spare);
    }
    let handle = handle().ok()?;
    if Handle::try_current().is_err_and(|why| why.is_thread_local_destroyed()) {
        // A thread that ends has nothing of tokio's.
        return handle.spawn(async move { Some(Box::pin(sleep_until(at))) }).await.unwrap_or(None);
    }
    let _entered = handle.enter();
    Some(Box::pin(sleep_until(at)))
}
