//! Checks whether this node of a cluster serves the slot of a call.

use super::super::api::{context_flags, has_command};
use super::super::call::OwnedString;
use redis_module::{raw, Context, RedisValue};

/// Returns whether a call on `keys` can be decided here: this node serves their slot, and no key has moved yet.
pub(super) fn are_ours<'key>(
    context: *mut raw::RedisModuleCtx,
    keys: impl Iterator<Item = &'key OwnedString> + Clone,
    is_asking: bool,
) -> bool {
    let is_cluster = context_flags(context) & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    let are_served = || keys.clone().all(|key| is_served(context, key));
    !is_cluster || are_served() || (is_asking && keys.clone().take(1).any(|key| is_imported(context, key)))
}

/// Returns whether [`are_ours`] knows the answer: outside of clusters, or where the server has the command that it asks.
pub(super) fn are_known(context: *mut raw::RedisModuleCtx) -> bool {
    context_flags(context) & raw::REDISMODULE_CTX_FLAGS_CLUSTER == 0 || has_command(context, c"TYPE")
}

/// Returns whether a client called a node that does not own the slot yet (`ASKING`).
pub(super) fn is_asked(own_context: *mut raw::RedisModuleCtx, key: &OwnedString) -> bool {
    context_flags(own_context) & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0 && !is_served(own_context, key)
}

/// Returns whether this node serves a key: neither the slot nor the key is elsewhere.
fn is_served(context: *mut raw::RedisModuleCtx, key: &OwnedString) -> bool {
    let reply = Context::new(context).call("TYPE", &[key.as_ref()]);
    matches!(reply, Ok(RedisValue::SimpleString(_)))
}

/// Returns whether this node still imports the slot of a key. Only clients that sent `ASKING` need this, so it may cost as
/// much as `CLUSTER NODES`.
fn is_imported(context: *mut raw::RedisModuleCtx, key: &OwnedString) -> bool {
    let ask = |arguments: &[&[u8]]| Context::new(context).call("CLUSTER", arguments).ok();
    let Some(RedisValue::Integer(slot)) = ask(&[b"KEYSLOT", key.as_ref()]) else { return false };
    let Some(RedisValue::SimpleString(nodes)) = ask(&[b"NODES"]) else { return false };
    // Our own line contains `[93-<-` and the node that it comes from.
    let myself = nodes.lines().find(|line| line.contains("myself"));
    myself.is_some_and(|line| line.contains(&format!("[{slot}-<-")))
}
