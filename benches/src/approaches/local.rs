//! Decisions that a client makes by itself, from what the module told it before.

use super::TAKE;
use crate::client::Client;
use redis::{from_redis_value, RedisResult};
use std::time::{Duration, Instant};
use tokio::task::yield_now;

/// How many tokens are fetched at once.
pub const BATCH: i64 = 100;

/// What a client knows of a bucket.
#[derive(Default)]
pub struct Memory {
    /// Tokens that it was granted and has not spent.
    unspent: i64,
    /// Before that, a take is denied.
    denied_until: Option<Instant>,
}

/// Spends what was fetched, and fetches when nothing is left: never more than the module granted.
pub async fn in_batches(client: &mut Client, key: &str) -> RedisResult<bool> {
    if client.memory(key).unspent == 0 {
        let fetch = format!("TB.TAKEUPTO {{key}} {{capacity}} {{rate}} {BATCH}");
        client.memory(key).unspent = client.ask_number(&fetch, key).await?;
    } else {
        yield_now().await;
    }
    let memory = client.memory(key);
    let is_allowed = memory.unspent > 0;
    memory.unspent -= i64::from(is_allowed);
    Ok(is_allowed)
}

/// Refuses what the module would deny: for as long as it said, counted from before it was asked, so never for longer.
pub async fn remembering_denials(client: &mut Client, key: &str) -> RedisResult<bool> {
    let now = Instant::now();
    if client.memory(key).denied_until.is_some_and(|until| now < until) {
        yield_now().await;
        return Ok(false);
    }
    let reply = client.ask(&[TAKE], key).await?.remove(0);
    let (allowed, _, retry_after_ms, _): (i64, i64, i64, i64) = from_redis_value(reply)?;
    client.memory(key).denied_until = Some(now + Duration::from_millis(retry_after_ms.max(0) as u64));
    Ok(allowed == 1)
}
