//! The module.

use super::single::{element, Single};
use super::{Approach, Bucket, Client};
use crate::resp::Batch;
use std::path::Path;

pub struct Take;

impl Approach for Take {
    fn name(&self) -> &str {
        "TB.TAKE"
    }

    fn module<'a>(&'a self, own: &'a Path) -> Option<&'a Path> {
        Some(own)
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Single {
            words: |bucket: &Bucket, batch: &mut Batch| {
                let (capacity, rate) = (bucket.limit.capacity.to_string(), bucket.limit.rate_words());
                batch.push(["TB.TAKE", &bucket.key, &capacity, &rate]);
            },
            judge: |reply: &_| Ok(element(reply, 0)? == 1),
        })
    }
}
