//! How commands reach a server, and how to wait: the part that threads, tasks and the fake do not share.

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::error::Failure;

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) trait Transport: Send + Sync {
    /// Sends a command to the node of `key`. Nobody waits for longer than `timeout`.
    fn send(&self, command: Cmd, key: &str, timeout: Duration) -> Pending<Result<Value, Failure>>;

    fn sleep(&self, time: Duration) -> Pending<()>;

    /// Runs it beside the caller.
    fn spawn(&self, task: Pending<()>);

    /// The time since some moment in the past.
    fn now(&self) -> Duration;

    /// Which node decides about `key`: what is known of one says nothing about another.
    fn node_of(&self, _key: &str) -> Arc<str> {
        "".into()
    }

    /// Is told of a failure: the cluster may have changed.
    fn failed(&self) {}

    /// A number that changes whenever a connection is lost or made: the next server may be another.
    fn connections(&self) -> u64 {
        0
    }

    /// Whether holds are renewed in the background.
    fn renews_holds(&self) -> bool {
        true
    }
}

/// Waits for whichever ends first.
pub(crate) async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
