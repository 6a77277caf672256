//! Clusters of three masters.

use tokenbucket_client::Server;
use tokenbucket_gate::decide::Refusal;

use crate::servers::{ask, wait_for, Cluster, READY_WITHIN};
use crate::{decide, decider, descriptor, hourly, patient, policy, request, rule, summary};

pub fn connect(cluster: &Cluster) -> Server {
    patient(Server::cluster(cluster.urls().split(',')))
}

/// A key whose bucket is on each node.
fn keys(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|node| {
        let mut keys = (0..).map(|number| format!("k{number}"));
        keys.find(|key| cluster.node_of(&bucket(key)) == node).expect("a key")
    })
}

fn bucket(key: &str) -> String {
    format!("shop|{{{key}=v}}")
}

#[tokio::test]
async fn a_request_denied_on_one_node_costs_nothing_on_the_others() {
    let cluster = Cluster::start();
    let (decider, _) = decider(&connect(&cluster), policy());
    let [a, b, c] = keys(&cluster);
    let found = [rule(hourly(5), &a), rule(hourly(1), &b), rule(hourly(5), &c)];
    let response = decide(&decider, &found, &[None, None, None]).await;
    assert_eq!(summary(&response), (vec![(false, 4), (false, 0), (false, 4)], false));
    for _ in 0..3 {
        let response = decide(&decider, &found, &[None, None, None]).await;
        let (each, is_over) = summary(&response);
        assert!(is_over && each[1] == (true, 0), "{each:?}");
        wait_for("the refund", READY_WITHIN, async || {
            let left = decide(&decider, &found, &[Some(0), Some(0), Some(0)]).await;
            summary(&left).0 == [(false, 4), (false, 0), (false, 4)]
        })
        .await;
    }
}

#[tokio::test]
async fn limits_that_share_a_tag_are_one_call() {
    let cluster = Cluster::start();
    let (decider, _) = decider(&connect(&cluster), policy());
    let mut found = [rule(hourly(5), "k"), rule(hourly(1), "k")];
    found[1].as_mut().unwrap().bucket.push_str("|path=x");
    decide(&decider, &found, &[None, None]).await;
    let response = decide(&decider, &found, &[None, None]).await;
    assert_eq!(summary(&response), (vec![(false, 4), (true, 0)], true));
    let node = &cluster.nodes[cluster.node_of(&bucket("k"))];
    let stats = ask::<String>(node, &["INFO", "commandstats"]).to_lowercase();
    assert!(stats.contains("cmdstat_tb.mtake:calls=2") && !stats.contains("cmdstat_tb.take:"), "{stats}");
}

#[tokio::test]
async fn a_node_that_is_away_costs_nothing_on_the_others() {
    let cluster = Cluster::start();
    let (decider, _) = decider(&connect(&cluster), policy());
    let [a, b, _] = keys(&cluster);
    let found = vec![rule(hourly(5), &a), rule(hourly(5), &b)];
    decide(&decider, &found, &[Some(0), Some(0)]).await;
    cluster.nodes[1].kill();
    let both = request([descriptor(&a), descriptor(&b)]);
    let refusal = decider.decide_by(found.clone(), &both).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Redis(_)), "{refusal:?}");
    wait_for("the refund", READY_WITHIN, async || ask::<u64>(&cluster.nodes[0], &["DBSIZE"]) == 0).await;
    assert!(!summary(&decide(&decider, &found[..1], &[None]).await).1);
}
