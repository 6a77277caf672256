//! Asks the nodes of a cluster which has which slot.

use redis::{FromRedisValue, Value};

use crate::transport::background::spawn;
use crate::transport::cluster::Cluster;
use crate::transport::locked::locked;
use crate::transport::Transport;
use crate::values::error::Failure;

impl Transport {
    /// Asks where the slots are, at the first call. The task goes on if the caller leaves: the next one need not begin again.
    pub(super) async fn learn_slots(&self, cluster: &Cluster) {
        if locked(&cluster.known).looks == 0 {
            let looking = spawn(self.clone().find_slots());
            let _ = self.listen(self.now(), &cluster.first, looking).await;
        }
    }

    /// Asks where the slots are, in the background.
    pub(super) fn look_at_slots(&self) {
        if self.is_cluster() {
            spawn(self.clone().find_slots());
        }
    }

    /// Asks one node after the other, those that are away last, until one answers.
    async fn find_slots(self) {
        let Some(cluster) = &self.0.cluster else { return };
        let looks = locked(&cluster.known).looks;
        let _only_one = cluster.looking.lock().await;
        if locked(&cluster.known).looks != looks {
            return;
        }
        let mut nodes: Vec<_> = locked(&cluster.known).nodes.values().cloned().collect();
        nodes.sort_by_cached_key(|node| node.is_away());
        for node in nodes {
            let ask = redis::cmd("CLUSTER").arg("SLOTS").take();
            match self.attempt(&node, vec![ask], None).await {
                Ok(replies) => {
                    let ranges = replies.into_iter().next().map(Vec::<Value>::from_redis_value);
                    for range in ranges.and_then(Result::ok).unwrap_or_default() {
                        cluster.read(range, &node);
                    }
                    break;
                }
                // A user that may not ask learns by redirections.
                Err(Failure::Replied(_)) => break,
                Err(_) => {}
            }
        }
        locked(&cluster.known).looks += 1;
    }
}
