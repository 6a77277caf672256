//! The users of docs/reference/access.md and docs/operate/monitoring.md, which outlive a restart.

use crate::common::Connection;
use crate::machine::{page, Machine, Machines};
use crate::upgrades::PAGE;

const ACCESS: &str = "docs/reference/access.md";
const MONITORING: &str = "docs/operate/monitoring.md";

/// Creates the users of both pages and keeps them; returns their names and passwords.
pub fn create_and_keep(machine: Machine) -> Vec<(String, String)> {
    let pages = [ACCESS, MONITORING].map(page).concat();
    let commands: Vec<&str> = pages.lines().filter(|line| line.starts_with("ACL SETUSER ")).collect();
    commands.iter().for_each(|command| drop(machine.connect().say(command)));
    assert_eq!(machine.follow(ACCESS, "keep the users"), "OK\n");
    let words = commands.iter().map(|command| command.split(' ').collect::<Vec<_>>());
    words.map(|words| (words[2].to_owned(), words[4].trim_start_matches('>').to_owned())).collect()
}

/// Configures an `aclfile`, so that the machine keeps its users in a file of their own.
pub fn use_acl_file(machine: Machine) {
    machine.run("touch /var/lib/redis/users.acl");
    machine.configure("aclfile users.acl");
}

/// Logs in as each of them.
pub fn assert_known(client: &mut Connection, users: &[(String, String)]) {
    for (name, password) in users {
        client.say(&format!("AUTH {name} {password}"));
    }
}

#[test]
fn users_as_pasted_outlive_a_restart() {
    let machines = Machines::new(&["configuration", "file"]);
    use_acl_file(machines.get("file"));
    for machine in ["configuration", "file"].map(|name| machines.get(name)) {
        machine.follow(PAGE, "start with the module");
        let users = create_and_keep(machine);
        machine.run("systemctl restart redis-server");
        assert_known(&mut machine.connect(), &users);
    }
}
