//! docs/how-to/without-the-module.md: buckets of the script become buckets of the module.

use crate::common::text;
use crate::machine::Machines;
use crate::upgrades::PAGE;

#[test]
fn what_the_script_granted_is_charged() {
    let machines = Machines::new(&["master"]);
    let master = machines.get("master");
    master.run("systemctl start redis-server");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/fallback.lua");
    master.run(&format!("redis-cli --eval '{script}' quota:a:script , TAKE 1000 1000/30d 400"));
    let charge =
        || drop(master.follow("docs/how-to/without-the-module.md", "charge what the script granted"));
    // Too early, and twice.
    charge();
    assert_eq!(text(&master.connect().say("EXISTS quota:a:script")), "1");
    master.run("systemctl stop redis-server");
    master.follow(PAGE, "start with the module");
    charge();
    charge();
    assert_eq!(master.connect().decide("TB.PEEK quota:a 1000 1000/30d 0").remaining, 600);
}
