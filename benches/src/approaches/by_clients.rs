//! Decisions that clients make by themselves: from a bucket that they compute by their own clocks, or from what the module
//! told them before.

use crate::client::Client;
use crate::template::{now_us, Limit};
use redis::{from_redis_value_ref, ErrorKind, RedisError, RedisResult, Value};
use std::time::{Duration, Instant};
use tokio::task::yield_now;

const READ: &str = "HMGET {key} level refilled_at_us";
const MOST_RETRIES: u32 = 20;

/// Whoever else computes meanwhile is overwritten.
pub async fn read_compute_write(client: &mut Client, key: &str) -> RedisResult<bool> {
    let replies = client.ask(&[READ], key).await?;
    let Some([write, expire]) = take(&replies, client.limit)? else { return Ok(false) };
    client.ask(&[&write], key).await?;
    client.ask(&[&expire], key).await?;
    Ok(true)
}

/// A write that another came before is tried again.
pub async fn watch(client: &mut Client, key: &str) -> RedisResult<bool> {
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

/// Spends what was fetched, and fetches when nothing is left: never more than the module granted.
pub async fn in_batches(client: &mut Client, fetch: &str, key: &str) -> RedisResult<bool> {
    if client.memory.unspent == 0 {
        (client.memory.unspent, _, _, _) = client.ask_for::<(i64, i64, i64, i64)>(fetch, key).await?;
    } else {
        yield_now().await;
    }
    let is_allowed = client.memory.unspent > 0;
    client.memory.unspent -= i64::from(is_allowed);
    Ok(is_allowed)
}

/// Refuses what the module would deny: for as long as it said, counted from before it was asked, so never for longer.
pub async fn remembering_denials(client: &mut Client, take: &str, key: &str) -> RedisResult<bool> {
    let now = Instant::now();
    if client.memory.denied_until.is_some_and(|until| now < until) {
        yield_now().await;
        return Ok(false);
    }
    let (allowed, _, retry_after_ms, _): (i64, i64, i64, i64) = client.ask_for(take, key).await?;
    client.memory.denied_until = Some(now + Duration::from_millis(retry_after_ms.max(0) as u64));
    Ok(allowed == 1)
}
