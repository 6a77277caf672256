//! The same under WATCH: a write that another came before is tried again.

use super::client_bucket::{compute, read};
use super::{Approach, Bucket, Client, Step};
use crate::resp::{Batch, Reply};
use anyhow::{Context, Result};

const MOST_RETRIES: u32 = 20;

pub struct Optimistic;

impl Approach for Optimistic {
    fn name(&self) -> &str {
        "WATCH / MULTI / EXEC"
    }

    fn write_at_once(&self, _bucket: &Bucket, _batch: &mut Batch) -> Result<bool> {
        Ok(false)
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Transaction { asked: Asked::State, retries: 0 })
    }
}

struct Transaction {
    asked: Asked,
    retries: u32,
}

enum Asked {
    State,
    Write,
    Unwatch,
}

impl Transaction {
    fn watch(&mut self, bucket: &Bucket, batch: &mut Batch) {
        self.asked = Asked::State;
        batch.push(["WATCH", &bucket.key]);
        read(bucket, batch);
    }

    fn write(&mut self, stored: &Reply, bucket: &Bucket, batch: &mut Batch) -> Result<Step> {
        let computed = compute(stored, bucket)?;
        if computed.allowed {
            self.asked = Asked::Write;
            batch.push(["MULTI"]);
            computed.write(bucket, batch);
            computed.expire(bucket, batch);
            batch.push(["EXEC"]);
        } else {
            self.asked = Asked::Unwatch;
            batch.push(["UNWATCH"]);
        }
        Ok(Step::Ask)
    }

    fn retry(&mut self, bucket: &Bucket, batch: &mut Batch) -> Step {
        if self.retries == MOST_RETRIES {
            return Step::GaveUp;
        }
        self.retries += 1;
        self.watch(bucket, batch);
        Step::Retry
    }
}

impl Client for Transaction {
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()> {
        self.retries = 0;
        self.watch(bucket, batch);
        Ok(())
    }

    fn proceed(&mut self, replies: &[Reply], bucket: &Bucket, batch: &mut Batch) -> Result<Step> {
        let last = replies.last().context("no reply")?;
        match self.asked {
            Asked::State => self.write(last, bucket, batch),
            Asked::Write if *last == Reply::Nil => Ok(self.retry(bucket, batch)),
            Asked::Write => Ok(Step::Decided { allowed: true }),
            Asked::Unwatch => Ok(Step::Decided { allowed: false }),
        }
    }
}
