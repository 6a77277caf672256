//! Redis's own window counter, which Redis has from 8.8 on: INCREX counts up to a bound, and only the first count
//! of a window sets its end.

use super::single::{element, Single};
use super::{Approach, Bucket, Client};
use crate::resp::Batch;

pub struct Increx;

impl Approach for Increx {
    fn name(&self) -> &str {
        "INCREX fixed window"
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Single {
            words: |bucket: &Bucket, batch: &mut Batch| {
                let capacity = bucket.limit.capacity.to_string();
                let window_ms = bucket.limit.window_ms().to_string();
                batch.push([
                    "INCREX",
                    &bucket.key,
                    "BYINT",
                    "1",
                    "UBOUND",
                    &capacity,
                    "PX",
                    &window_ms,
                    "ENX",
                ]);
            },
            // The count, and by how much it went up.
            judge: |reply: &_| Ok(element(reply, 1)? == 1),
        })
    }
}
