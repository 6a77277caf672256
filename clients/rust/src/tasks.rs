//! Tasks beside the callers.

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use crate::locked::locked;

pub(crate) struct Tasks {
    /// A simulated server lets nobody wait.
    end_at_once: bool,
    /// For what is dropped outside of any runtime.
    last_runtime: Mutex<Option<Handle>>,
}

impl Tasks {
    pub(crate) fn new(end_at_once: bool) -> Self {
        Self { end_at_once, last_runtime: Mutex::default() }
    }

    pub(crate) fn remember_runtime(&self) {
        *locked(&self.last_runtime) = Some(Handle::current());
    }

    /// Runs it beside the caller.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.end_at_once {
            let _ = pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return;
        }
        let runtime = Handle::try_current().ok().or_else(|| locked(&self.last_runtime).clone());
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }
}
