//! Plain commands, which limit nothing: the floor of what a call costs.

use super::single::Single;
use super::{Approach, Bucket, Client};
use crate::resp::{Batch, Reply};

/// Reads a key.
pub struct Get;

impl Approach for Get {
    fn name(&self) -> &str {
        "GET"
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Single {
            words: |bucket: &Bucket, batch: &mut Batch| batch.push(["GET", &bucket.key]),
            judge: |_: &Reply| Ok(true),
        })
    }
}

/// Stores an integer for as long as a bucket would live.
pub struct SetWithExpiry;

impl Approach for SetWithExpiry {
    fn name(&self) -> &str {
        "SET with expiry"
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Single {
            words: |bucket: &Bucket, batch: &mut Batch| {
                batch.push(["SET", &bucket.key, "1", "PX", &bucket.limit.window_ms().to_string()]);
            },
            judge: |_: &Reply| Ok(true),
        })
    }
}
