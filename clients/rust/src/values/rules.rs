//! Constants that all packages share: a test compares them with `clients/conformance/rules.json`.

use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_millis(100);
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(500);
/// A try to connect that takes longer, and longer than the timeout, has failed.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How often a call that waits makes sure that the server is still there.
pub(crate) const PULSE: Duration = Duration::from_millis(500);
/// A hold whose caller has left may still lie in a socket, and is settled once more after this time.
pub(crate) const SETTLED_AGAIN_AFTER: Duration = Duration::from_millis(500);
pub(crate) const MOST_UNSETTLED: usize = 1000;
pub(crate) const MOST_REDIRECTIONS: u32 = 16;
/// How often a call is sent again within the timeout while its slot is on two nodes.
pub(crate) const TRIES_OF_A_SPLIT_SLOT: u32 = 10;
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
pub(crate) const MOST_TENANT_BYTES: usize = 128;
pub(crate) const WEIGHTS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;
