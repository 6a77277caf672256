//! What connections of threads and of tasks have in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion, RedisResult, Value};

pub(crate) fn client(url: impl IntoConnectionInfo) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

pub(crate) fn cluster_client<T: IntoConnectionInfo>(
    urls: impl IntoIterator<Item = T>,
) -> RedisResult<ClusterClient> {
    ClusterClientBuilder::new(urls)
        .use_protocol(ProtocolVersion::RESP3)
        .tcp_settings(tcp_settings())
        // For redirections. A retry of a call whose reply was lost can take twice: that errs on the side of the limit.
        .retries(2)
        // Milliseconds. By default more than a second, which nobody would wait for.
        .min_retry_wait(5)
        .max_retry_wait(20)
        .build()
}

fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // A server that vanished without a word must not hold the connection for the quarter of an hour that TCP would
    // go on trying.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(2));
    settings
}

/// The library does not know where the keys of `TB.MTAKE` stand.
pub(crate) fn on_node_of(key: &str) -> RoutingInfo {
    RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)))
}

pub(crate) fn slots_command() -> (Cmd, RoutingInfo) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    (command, RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random))
}

/// Which node of a cluster has which slot, as was last heard.
#[derive(Default)]
pub(crate) struct Slots(Mutex<HashMap<Slot, Arc<str>>>);

impl Slots {
    fn locked(&self) -> MutexGuard<'_, HashMap<Slot, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn are_unknown(&self) -> bool {
        self.locked().is_empty()
    }

    /// The node's address. While none is known, each slot counts as a node of its own.
    pub(crate) fn node_of(&self, key: &str) -> Arc<str> {
        let slot = Slot::for_key(key);
        self.locked().get(&slot).cloned().unwrap_or_else(|| format!("{slot:?}").into())
    }

    /// Reads the reply to CLUSTER SLOTS: `[first, last, [host, port, …], replicas…]` each.
    pub(crate) fn read(&self, reply: Value) {
        let Ok(ranges) = Vec::<Vec<Value>>::from_redis_value(reply) else { return };
        let mut nodes = HashMap::new();
        for range in ranges {
            let Some((slots, node)) = read_range(range) else { return };
            nodes.extend(slots.filter_map(Slot::new).map(|slot| (slot, node.clone())));
        }
        *self.locked() = nodes;
    }
}

fn read_range(range: Vec<Value>) -> Option<(std::ops::RangeInclusive<u16>, Arc<str>)> {
    let mut fields = range.into_iter();
    let first = u16::from_redis_value(fields.next()?).ok()?;
    let last = u16::from_redis_value(fields.next()?).ok()?;
    let mut node = Vec::<Value>::from_redis_value(fields.next()?).ok()?.into_iter();
    let host = Option::<String>::from_redis_value(node.next()?).ok()?.unwrap_or_default();
    let port = u16::from_redis_value(node.next()?).ok()?;
    Some((first..=last, format!("{host}:{port}").into()))
}
