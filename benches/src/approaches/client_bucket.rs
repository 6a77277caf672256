//! A token bucket that clients compute, by their own clocks: read, compute, write.

use crate::client::Client;
use crate::template::{now_us, Limit};
use redis::{from_redis_value_ref, ErrorKind, RedisError, RedisResult, Value};

const READ: &str = "HMGET {key} level refilled_at_us";
const MOST_RETRIES: u32 = 20;

/// Whoever else computes meanwhile is overwritten.
pub async fn unwatched(client: &mut Client, key: &str) -> RedisResult<bool> {
    let replies = client.ask(&[READ], key).await?;
    let Some([write, expire]) = take(&replies, client.limit)? else { return Ok(false) };
    client.ask(&[&write], key).await?;
    client.ask(&[&expire], key).await?;
    Ok(true)
}

/// A write that another came before is tried again.
pub async fn watched(client: &mut Client, key: &str) -> RedisResult<bool> {
    for attempt in 0..=MOST_RETRIES {
        client.retries += u64::from(attempt > 0);
        let replies = client.ask(&["WATCH {key}", READ], key).await?;
        let Some([write, expire]) = take(&replies, client.limit)? else {
            client.ask(&["UNWATCH"], key).await?;
            return Ok(false);
        };
        let replies = client.ask(&["MULTI", &write, &expire, "EXEC"], key).await?;
        if replies.last() != Some(&Value::Nil) {
            return Ok(true);
        }
    }
    Err(RedisError::from((ErrorKind::Client, "another was faster too often")))
}

/// Takes a token of the stored state, which was read last: what stores the rest, and what lets the key go once the bucket
/// is full. `None` if there is no token.
fn take(replies: &[Value], limit: Limit) -> RedisResult<Option<[String; 2]>> {
    let (now_us, capacity) = (now_us(), limit.capacity as f64);
    let stored: (Option<f64>, Option<u64>) = from_redis_value_ref(&replies[replies.len() - 1])?;
    let level = match stored {
        (Some(level), Some(refilled_at_us)) => {
            let elapsed_s = now_us.saturating_sub(refilled_at_us) as f64 / 1e6;
            capacity.min(level + elapsed_s * limit.rate())
        }
        _ => capacity,
    };
    if level < 1.0 {
        return Ok(None);
    }
    let level = level - 1.0;
    let full_in_ms = ((capacity - level) * 1000.0 / limit.rate()).ceil().max(1.0);
    Ok(Some([
        format!("HSET {{key}} level {level} refilled_at_us {now_us}"),
        format!("PEXPIRE {{key}} {full_in_ms}"),
    ]))
}
