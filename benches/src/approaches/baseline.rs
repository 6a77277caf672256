//! Plain commands, which limit nothing: the floor of what a call costs.

use super::single::Single;
use super::{Approach, Bucket, Client};
use crate::resp::{Batch, Reply};

macro_rules! baseline {
    ($name:ident, $title:literal, $words:expr) => {
        #[doc = $title]
        pub struct $name;

        impl Approach for $name {
            fn name(&self) -> &str {
                $title
            }

            fn client(&self, _number: usize) -> Box<dyn Client> {
                Box::new(Single { words: $words, judge: |_: &Reply| Ok(true) })
            }
        }
    };
}

baseline!(Get, "GET", |bucket: &Bucket, batch: &mut Batch| batch.push(["GET", &bucket.key]));
baseline!(Incr, "INCR", |bucket: &Bucket, batch: &mut Batch| batch.push(["INCR", &bucket.key]));
baseline!(SetWithExpiry, "SET with expiry", |bucket: &Bucket, batch: &mut Batch| {
    batch.push(["SET", &bucket.key, "1", "PX", &bucket.limit.window_ms().to_string()]);
});
