//! A token bucket in a script.

use super::single::{element, Single};
use super::{Approach, Bucket, Client};
use crate::connection::Connection;
use crate::resp::Batch;
use crate::script;
use anyhow::Result;

pub struct Lua;

impl Approach for Lua {
    fn name(&self) -> &str {
        "Lua token bucket"
    }

    fn load(&self, connection: &mut Connection) -> Result<()> {
        script::load(connection)
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Single {
            words: |bucket: &Bucket, batch: &mut Batch| {
                let (capacity, rate) = (bucket.limit.capacity.to_string(), bucket.limit.rate().to_string());
                batch.push(["EVALSHA", script::sha(), "1", &bucket.key, &capacity, &rate, "1"]);
            },
            judge: |reply: &_| Ok(element(reply, 0)? == 1),
        })
    }
}
