//! Read, compute in the client, write: three commands, and whoever else computes meanwhile is overwritten.

use super::client_bucket::{compute, read, Computed};
use super::{Approach, Bucket, Client, Step};
use crate::resp::{Batch, Reply};
use anyhow::{Context, Result};

pub struct ReadComputeWrite;

impl Approach for ReadComputeWrite {
    fn name(&self) -> &str {
        "read, compute, write"
    }

    fn write_at_once(&self, _bucket: &Bucket, _batch: &mut Batch) -> Result<bool> {
        Ok(false)
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Steps::Read)
    }
}

/// What was asked last.
enum Steps {
    Read,
    Write(Computed),
    Expire,
}

impl Client for Steps {
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()> {
        *self = Self::Read;
        read(bucket, batch);
        Ok(())
    }

    fn proceed(&mut self, replies: &[Reply], bucket: &Bucket, batch: &mut Batch) -> Result<Step> {
        match self {
            Self::Read => {
                let computed = compute(replies.first().context("no reply")?, bucket)?;
                if !computed.allowed {
                    return Ok(Step::Decided { allowed: false });
                }
                computed.write(bucket, batch);
                *self = Self::Write(computed);
            }
            Self::Write(computed) => {
                computed.expire(bucket, batch);
                *self = Self::Expire;
            }
            Self::Expire => return Ok(Step::Decided { allowed: true }),
        }
        Ok(Step::Ask)
    }
}
