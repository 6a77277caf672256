//! The rights that docs/reference/access.md gives to the gate; `tests/server/acl.rs` tries each command.

use crate::gate::Setup;
use crate::servers::{ask, try_ask, Server};

const EDGE: &str = "domain: edge
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 5}}
";
const ASKS: &str = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"}]},
    {"entries":[{"key":"path","value":"/"}]}]}"#;
const KEYS: &str = "~edge|* ~warm-up*";

/// With and without a prefix of its keys, and without an entry in the server's log of refusals.
#[test]
fn suffice() {
    let page = include_str!("../../../docs/reference/access.md");
    let rule = page.lines().find(|line| line.starts_with("ACL SETUSER gate ")).expect("a rule");
    for prefix in ["", "gate:"] {
        let redis = Server::start();
        let rule = if prefix.is_empty() { rule.to_owned() } else { rule.replace(KEYS, "~gate:*") };
        let _: String = ask(&redis, &rule.split(' ').collect::<Vec<_>>());
        // As the page says of every driver; older servers do not know it.
        let _ = try_ask::<String>(&redis, &["ACL", "SETUSER", "gate", "+client|setinfo"]);
        let url = format!("127.0.0.1:{}", redis.port);
        let setup = Setup::redis(&url).set("REDIS_AUTH", "gate:secret").set("CACHE_KEY_PREFIX", prefix);
        let gate = setup.file("edge.yaml", EDGE).start();
        gate.wait_until_healthy();
        let statuses = [(); 3].map(|()| gate.json(ASKS).status);
        assert_eq!(statuses, [200, 200, 429]);
        let refused: Vec<redis::Value> = ask(&redis, &["ACL", "LOG"]);
        assert!(refused.is_empty(), "{refused:#?}");
    }
}
