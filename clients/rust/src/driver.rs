//! Runtimes for callers without one.

use std::future::{pending, Future};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

/// After so many calls in a row that were alone, callers drive.
const CALLS_ALONE: usize = 8;
/// When nobody has called for so long, the thread of the driver drives again.
const IDLE: Duration = Duration::from_millis(2);

/// For threads. Of this package alone, so that no caller's work keeps it from reading.
static DRIVER: LazyLock<Driver> = LazyLock::new(Driver::start);

/// For threads that may not drive a runtime, because they run a task of one. A thread of its own drives it.
static BESIDE: LazyLock<Runtime> = LazyLock::new(|| {
    start_thread(|| BESIDE.block_on(pending()));
    new_runtime()
});

/// A runtime that its own thread drives, or that callers drive, each during its call: that saves two switches between
/// threads. Several callers at a time would pass the driving on with each reply, which costs more than it saves.
struct Driver {
    runtime: Runtime,
    own: Thread,
    /// Calls that have begun, ever.
    calls: AtomicUsize,
    in_flight: AtomicUsize,
    /// Calls in a row that were alone.
    alone: AtomicUsize,
    /// Whether its own thread drives.
    is_driving: AtomicBool,
    step_down: Notify,
}

impl Driver {
    fn start() -> Self {
        Self {
            runtime: new_runtime(),
            own: start_thread(|| DRIVER.drive()),
            calls: AtomicUsize::default(),
            in_flight: AtomicUsize::default(),
            alone: AtomicUsize::default(),
            is_driving: AtomicBool::new(true),
            step_down: Notify::new(),
        }
    }

    /// What its own thread does.
    fn drive(&self) -> ! {
        loop {
            self.is_driving.store(true, Ordering::Release);
            self.runtime.block_on(self.step_down.notified());
            self.is_driving.store(false, Ordering::Release);
            while self.do_callers_drive() {}
        }
    }

    fn do_callers_drive(&self) -> bool {
        let before = self.calls.load(Ordering::Relaxed);
        thread::park_timeout(IDLE);
        self.calls.load(Ordering::Relaxed) != before && self.alone.load(Ordering::Relaxed) > 0
    }

    fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let _in_flight = InFlight::new(&self.in_flight);
        let is_driving = self.is_driving.load(Ordering::Acquire);
        if self.in_flight.load(Ordering::Relaxed) > 1 {
            self.alone.store(0, Ordering::Relaxed);
            if !is_driving {
                self.own.unpark();
            }
        } else if self.alone.fetch_add(1, Ordering::Relaxed) >= CALLS_ALONE && is_driving {
            self.step_down.notify_one();
        }
        self.runtime.block_on(future)
    }
}

fn new_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}

fn start_thread(work: impl FnOnce() + Send + 'static) -> Thread {
    let handle = thread::Builder::new().name("tokenbucket".to_owned()).spawn(work);
    handle.expect("a thread can be started").thread().clone()
}

/// Counts a call while it lasts, also one that panics.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do; also in a task of another runtime.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    if Handle::try_current().is_err() {
        return DRIVER.wait_for(future);
    }
    let _entered = BESIDE.enter();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    // In a task of another runtime it has no budget to keep to: nobody would go on with it.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
