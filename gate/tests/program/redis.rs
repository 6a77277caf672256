use std::io::Read;
use std::path::Path;

use tokio::net::{TcpListener, TcpStream};

use crate::control_plane::acceptor;
use crate::gate::{wait_until, Gate, Setup};
use crate::sentinel::Sentinel;
use crate::servers::{ask, Cluster, Server};
use crate::tls::{authority, sign};
use crate::{asks, TWO};

fn start(variables: &[(&str, &str)]) -> Gate {
    Setup::new().file("two.yaml", TWO).set_all(variables).start()
}

fn decides(gate: &Gate) {
    gate.wait_until_healthy();
    let statuses = [(); 3].map(|()| gate.json(&asks("a")).status);
    assert_eq!(statuses, [200, 200, 429]);
}

/// A user who may use the keys of the limits alone is enough.
#[test]
fn needs_no_keys_but_those_of_limits() {
    let redis = Server::start();
    let _: String = ask(&redis, &["ACL", "SETUSER", "ada", "on", ">secret", "~d|*", "+@all"]);
    let url = format!("127.0.0.1:{}", redis.port);
    let watched = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    decides(&start(&[("REDIS_URL", &url), ("REDIS_AUTH", "ada:secret"), watched]));
}

/// While Redis refuses every call, the log says why, once for each cause, and does not say that it is back.
#[test]
fn says_why_nothing_is_limited() {
    let mut redis = Server::start();
    let gate = start(&[("REDIS_URL", &redis.url())]);
    gate.wait_until_healthy();
    let count = |text: &str| gate.log().iter().filter(|line| line.contains(text)).count();
    let refuses = |text: &str| {
        wait_until(text, || gate.json(&asks("a")).body.contains(text));
        let statuses = [(); 20].map(|()| gate.json(&asks("a")).status);
        assert_eq!((statuses, count(text)), ([503; 20], 1), "{:#?}", gate.log());
    };
    redis.kill();
    assert_eq!(gate.json(&asks("a")).status, 503);
    redis.start_again();
    let _: String = ask(&redis, &["CONFIG", "SET", "requirepass", "secret"]);
    refuses("NOAUTH");
    assert_eq!(count("Redis is back"), 0, "{:#?}", gate.log());
    let mut connection = with_password(&redis);
    let mut tell = |words: &[&str]| redis::Cmd::new().arg(words).exec(&mut connection).expect("OK");
    tell(&["CONFIG", "SET", "requirepass", ""]);
    wait_until("a decision", || gate.json(&asks("b")).status == 200);
    gate.wait_for_line("Redis is back, limiting again");

    tell(&["SET", "d|{key=a}", "of another type"]);
    refuses("WRONGTYPE");
    tell(&["ACL", "SETUSER", "default", "-tb.take"]);
    refuses("NoPerm");
    tell(&["ACL", "SETUSER", "default", "+tb.take"]);
    assert_eq!((gate.json(&asks("b")).status, count("Redis is back")), (200, 1));
}

/// What the log and the reply say without the module is for operators, not for programmers.
#[test]
fn says_that_the_module_is_missing() {
    let redis = Server::start_without_module();
    let _: String = ask(&redis, &["ACL", "SETUSER", "ada", "on", ">secret", "~d|*", "+@all"]);
    let url = format!("127.0.0.1:{}", redis.port);
    let gate = start(&[("REDIS_URL", &url), ("REDIS_AUTH", "ada:secret")]);
    let text = format!("127.0.0.1:{} has not loaded the tokenbucket module", redis.port);
    assert!(gate.wait_for_line("waiting for Redis: ").ends_with(&text));
    assert_eq!(gate.json(&asks("a")).body, format!("Service Unavailable: {text}\n"));
    gate.wait_for_line(&format!("no decision: {text}"));
}

/// A password is nowhere in the log, the replies and the help, wherever it was set.
#[test]
fn shows_no_password() {
    let wants_another = Server::start();
    let _: String = ask(&wants_another, &["CONFIG", "SET", "requirepass", "other"]);
    let is_old = Server::started(&["--", "--rename-command", "HELLO", ""]);
    let [another, old] = [wants_another.port, is_old.port];
    let started: [&[(&str, &str)]; 8] = [
        &[("REDIS_URL", "redis://u:s3cret@127.0.0.1:1")],
        &[("REDIS_URL", "rediss://u:s3cret@127.0.0.1:1")],
        &[("REDIS_URL", "redis+unix:///none?user=u&pass=s3cret")],
        &[("REDIS_URL", &format!("redis://u:s3cret@127.0.0.1:{another}"))],
        &[("REDIS_URL", &format!("redis://u:s3cret@127.0.0.1:{old}"))],
        &[("REDIS_URL", &format!("127.0.0.1:{another}")), ("REDIS_AUTH", "s3cret")],
        &[
            ("REDIS_URL", "redis://u:s3cret@mymaster,redis://u:s3cret@127.0.0.1:1"),
            ("REDIS_TYPE", "SENTINEL"),
        ],
        &[("REDIS_URL", "redis://u:s3cret@127.0.0.1:1"), ("REDIS_TYPE", "CLUSTER")],
    ];
    for variables in started {
        let gate = start(&[variables, &[("LOG_LEVEL", "trace")]].concat());
        gate.wait_for_line("waiting for Redis: ");
        let reply = gate.json(&asks("a"));
        assert_eq!(reply.status, 503, "{variables:?}");
        let all = format!("{} {:#?}", reply.body, gate.log());
        assert!(!all.contains("s3cret"), "{variables:?}: {all}");
    }
    let mut help = std::process::Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate"));
    help.arg("--help").env("REDIS_URL", "redis://u:s3cret@h").env("REDIS_AUTH", "s3cret");
    let mut misplaced = std::process::Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate"));
    misplaced.arg("redis://u:s3cret@h");
    let errors = String::from_utf8(misplaced.output().expect("the program").stderr).expect("text");
    assert!(errors.starts_with("tokenbucket-gate: ") && !errors.contains("s3cret"), "{errors}");
    let help = String::from_utf8(help.output().expect("the program").stdout).expect("text");
    assert!(help.contains("--redis-url") && !help.contains("s3cret"), "{help}");
}

/// With `REDIS_TLS`, or one URL with TLS in a list, nothing goes out in plain text, whatever the form of the address.
#[test]
fn encrypts_whatever_the_url_says() {
    for (variables, url) in [
        ("1 SINGLE", "redis://PORT"),
        ("1 SINGLE", "valkey://u:s3cret@PORT"),
        ("1 CLUSTER", "PORT"),
        ("1 CLUSTER", "redis://u:s3cret@PORT"),
        ("1 SENTINEL", "mymaster,PORT"),
        ("1 SENTINEL", "mymaster,redis://u:s3cret@PORT"),
        ("0 SINGLE", "rediss://u:s3cret@PORT"),
        ("0 CLUSTER", "rediss://u:s3cret@127.0.0.1:1,PORT"),
        ("0 CLUSTER", "PORT,rediss://u:s3cret@127.0.0.1:1"),
        ("0 CLUSTER", "PORT,VALKEYS://u:s3cret@127.0.0.1:1"),
        ("0 SENTINEL", "mymaster,rediss://u:s3cret@127.0.0.1:1,PORT"),
        ("0 SENTINEL", "rediss://u:s3cret@mymaster,PORT"),
    ] {
        let redis = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = url.replace("PORT", &redis.local_addr().expect("an address").to_string());
        let (tls, kind) = variables.split_once(' ').expect("two words");
        let auth = [("REDIS_AUTH", "s3cret"), ("REDIS_SENTINEL_AUTH", "s3cret")];
        let _gate =
            start(&[&auth[..], &[("REDIS_TLS", tls), ("REDIS_TYPE", kind), ("REDIS_URL", &url)]].concat());
        assert_eq!(first_byte(&redis), 22, "{variables} {url}");
    }
}

/// The first byte that a gate sends: that of a handshake is 22. On a busy machine it gives up before, and connects again.
fn first_byte(redis: &std::net::TcpListener) -> u8 {
    let mut first = [0];
    while redis.accept().expect("a connection").0.read_exact(&mut first).is_err() {}
    first[0]
}

/// Sentinels by TLS name a master that is asked by TLS.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_sentinels_by_tls_is_encrypted() {
    let redis = Server::start();
    let sentinel = Sentinel::of(&redis);
    let (_folder, port, [authority, certificate, key]) = with_tls(sentinel.port).await;
    let gate = start(&[
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", &format!("mymaster,rediss://localhost:{port}")),
        ("REDIS_TLS_CACERT", &authority),
        ("REDIS_TLS_CLIENT_CERT", &certificate),
        ("REDIS_TLS_CLIENT_KEY", &key),
    ]);
    // The master knows no TLS, so a gate that decided would have sent plain text.
    gate.wait_for_line("waiting for Redis: ");
    assert_eq!(gate.json(&asks("a")).status, 503);
}

/// User, password and database in each place where envoyproxy/ratelimit's driver looks for them.
#[test]
fn finds_credentials_wherever_they_are() {
    let redis = Server::start();
    let _: String = ask(&redis, &["ACL", "SETUSER", "ada", "on", ">secret", "~*", "+@all"]);
    let _: String = ask(&redis, &["ACL", "SETUSER", "default", "resetpass", ">other"]);
    let mut connection = redis::Client::open(format!("redis://ada:secret@127.0.0.1:{}", redis.port))
        .and_then(|client| client.get_connection())
        .expect("Redis");
    for (before, after, auth) in [
        ("ada:secret@", "/3", ""),
        ("ada@", "/3", "secret"),
        ("ada@", "/3", ":secret"),
        (":secret@", "/3", "ada:"),
        ("ada:wrong@", "/3", "secret"),
        ("eve:wrong@", "/3", "ada:secret"),
        ("ada@", "?password=secret&db=3", ""),
        ("", "?username=ada&password=secret&db=3", ""),
    ] {
        let url = format!("redis://{before}127.0.0.1:{}{after}", redis.port);
        decides(&start(&[("REDIS_URL", &url), ("REDIS_AUTH", auth)]));
        let mut count = |db: u8| -> u64 {
            let _: String = redis::cmd("SELECT").arg(db).query(&mut connection).expect("OK");
            redis::cmd("DBSIZE").query(&mut connection).expect("a number")
        };
        assert_eq!((count(0), count(3)), (0, 1), "{url}");
        let _: String = redis::cmd("FLUSHALL").query(&mut connection).expect("OK");
    }
}

/// A path is a Unix socket, also without REDIS_SOCKET_TYPE.
#[test]
fn connects_to_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket").display().to_string();
    let redis = Server::started(&["--", "--unixsocket", &path]);
    decides(&start(&[("REDIS_URL", &path)]));
    let _: String = ask(&redis, &["FLUSHALL"]);
    decides(&start(&[("REDIS_URL", &path), ("REDIS_SOCKET_TYPE", "unix")]));
}

/// Nodes with commas; those that are not named are found.
#[test]
fn asks_a_cluster() {
    let cluster = Cluster::start();
    let nodes = format!("127.0.0.1:{}, 127.0.0.1:{}", cluster.nodes[0].port, cluster.nodes[1].port);
    let gate = start(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", &nodes)]);
    gate.wait_until_healthy();
    // On all nodes, with as many names.
    for n in 0..30 {
        assert_eq!(gate.json(&asks(&n.to_string())).status, 200);
    }
}

/// A connection with the password `secret`.
fn with_password(redis: &Server) -> redis::Connection {
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port);
    redis::Client::open(url).and_then(|client| client.get_connection()).expect("Redis")
}

/// The sentinels have a password of their own. One that is away is passed over.
#[test]
fn authenticates_with_sentinels() {
    let redis = Server::start();
    let sentinel = Sentinel::of(&redis);
    let _: String = ask(&redis, &["CONFIG", "SET", "requirepass", "secret"]);
    let client = redis::Client::open(sentinel.url()).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    for command in ["SENTINEL SET mymaster auth-pass secret", "ACL SETUSER default resetpass >watch"] {
        let words: Vec<&str> = command.split(' ').collect();
        let _: String = redis::Cmd::new().arg(words).query(&mut connection).expect("OK");
    }
    let url = format!("mymaster,127.0.0.1:1,127.0.0.1:{}", sentinel.port);
    let variables = [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", &*url), ("REDIS_AUTH", "secret")];
    decides(&start(&[&variables[..], &[("REDIS_SENTINEL_AUTH", "watch")]].concat()));
    // The password of the first is that of all.
    let _: String = redis::cmd("FLUSHALL").query(&mut with_password(&redis)).expect("OK");
    let url = format!("mymaster,redis://:watch@127.0.0.1:1,127.0.0.1:{}", sentinel.port);
    decides(&start(&[variables[0], ("REDIS_URL", &url), variables[2]]));
    start(&variables).wait_for_line("waiting for Redis: ");
}

/// TLS in front of a Redis that has none. Returns a folder with its port and the paths of the authority and of a client's
/// certificate and key.
async fn with_tls(to: u16) -> (tempfile::TempDir, u16, [String; 3]) {
    let folder = tempfile::tempdir().expect("a folder");
    authority(folder.path());
    sign(folder.path(), "redis", "localhost");
    sign(folder.path(), "client", "gate.example");
    let port = encrypted(folder.path(), to).await;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let paths = ["ca.pem", "client.pem", "client.key"].map(file);
    (folder, port, paths)
}

async fn encrypted(folder: &Path, to: u16) -> u16 {
    let acceptor = acceptor(folder, ["ca.pem", "redis.pem", "redis.key"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("a port").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.expect("Redis");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

/// REDIS_TLS with an authority, a certificate of the client, and the name of the host, which can be left out.
#[tokio::test(flavor = "multi_thread")]
async fn connects_by_tls() {
    let redis = Server::start();
    let (_folder, port, [authority, certificate, key]) = with_tls(redis.port).await;
    let (by_name, by_address) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
    let all = [
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", &*authority),
        ("REDIS_TLS_CLIENT_CERT", &*certificate),
        ("REDIS_TLS_CLIENT_KEY", &*key),
    ];
    decides(&start(&[&all[..], &[("REDIS_URL", &*by_name)]].concat()));
    let _: String = ask(&redis, &["FLUSHALL"]);
    let open = ("ON_ERROR", "allow");
    let wrong = start(&[&all[..], &[("REDIS_URL", &*by_address), open]].concat());
    wrong.wait_for_line("waiting for Redis: ");
    // A mistake is no outage.
    assert_eq!(wrong.json(&asks("a")).status, 503);
    let skips = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
    decides(&start(&[&all[..], &[("REDIS_URL", &*by_address), skips]].concat()));
    let without = start(&[&all[..2], &[("REDIS_URL", &*by_name)]].concat());
    without.wait_for_line("waiting for Redis: ");
    wait_until("still unhealthy", || without.http("GET", "/healthcheck", "").status == 500);
    assert_eq!(wrong.http("GET", "/healthcheck", "").status, 500);
}
