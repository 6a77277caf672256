//! Servers that are away, hang, refuse or come back.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::{sync, Error, Limiter, OnError, Options};

use crate::replies::{serve, Reply};
use crate::servers::{ask, try_ask, wait_for, Server};
use crate::{calls, connect, limit, limiter, logs, patient, stat, until, LONG, STILL};

#[tokio::test]
async fn an_outage_is_logged_when_it_begins_and_when_the_server_decides_again() {
    logs::listen();
    let mut server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new().on_error(OnError::Open));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    server.kill();
    for _ in 0..20 {
        assert!(limiter.take("a", 1).await.unwrap().degraded);
    }
    assert_eq!(limiter.take_up_to("a", 7).await.unwrap().granted, 7);
    server.start_again();
    ask::<()>(&server, &["SET", "tb:a", "of another type"]);
    wait_for("the refusal", Duration::from_secs(1), async || limiter.take("a", 1).await.is_err()).await;
    let (lines, address) = (logs::lines(&server), format!("127.0.0.1:{}", server.port));
    assert_eq!(lines.len(), 1, "nothing is limited yet: {lines:?}");
    assert!(lines[0].starts_with(&format!("cannot ask Redis for limits: {address}: ")), "{lines:?}");
    assert!(!limiter.take("b", 1).await.unwrap().degraded);
    assert_eq!(logs::lines(&server), [format!("Redis is back, limiting again: {address}")]);
}

#[tokio::test]
async fn a_server_without_hello_shows_no_password() {
    let server = Server::started(&["--", "--rename-command", "HELLO", ""]);
    let url = format!("redis://ada:s3cret@127.0.0.1:{}", server.port);
    let limiter = Limiter::new(&tokenbucket_client::Server::connect(url).unwrap(), limit(1, "1/h"));
    let error = limiter.take("a", 1).await.unwrap_err();
    assert!(error.to_string().ends_with("the server lacks HELLO or AUTH - InvalidClientConfig"), "{error}");
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_runs_a_script_is_away_whatever_the_database() {
    let server = Server::started(&["--", "--lua-time-limit", "1"]);
    let of = |database: &str| {
        let url = [&server.url(), database].concat();
        Limiter::new(&tokenbucket_client::Server::connect(url).unwrap(), limit(1, "1/h"))
    };
    assert!(matches!(of("/99").take("a", 1).await, Err(Error::Refused { .. })), "there is none");
    let mut other = server.connection();
    let script = thread::spawn(move || redis::cmd("EVAL").arg(&["while true do end", "0"]).exec(&mut other));
    until("a script", || try_ask::<()>(&server, &["PING"]).is_err());
    for limiter in ["", "/1"].map(of) {
        assert!(limiter.take("a", 1).await.unwrap().degraded);
    }
    ask::<()>(&server, &["SCRIPT", "KILL"]);
    assert!(script.join().unwrap().is_err());
}

#[tokio::test]
async fn what_is_no_server_is_an_error_of_one_line() {
    let url = serve(|_, _| Reply::Text("HTTP/1.1 400 Bad Request\r\n\r\n".to_owned())).await;
    let server = tokenbucket_client::Server::connect(url).unwrap();
    let limiter = Limiter::with_options(&server, limit(1, STILL), Options::new().on_error(OnError::Error));
    let error = limiter.take("a", 1).await.unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
}

#[tokio::test]
async fn a_wait_that_is_left_gives_its_tokens_back_here() {
    let server = tokenbucket_client::Server::connect("redis://127.0.0.1:1").unwrap();
    let limiter = Limiter::new(&server, limit(2, STILL));
    assert_eq!(limiter.take("a", 2).await.unwrap().remaining, 0);
    let wait = limiter.wait("a", 1, Duration::from_secs(3600));
    assert!(tokio::time::timeout(Duration::from_millis(10), wait).await.is_err());
    assert_eq!(limiter.peek("a", 0).await.unwrap().remaining, 0);
}

#[tokio::test]
async fn a_server_that_hangs_is_asked_no_more_often_than_wanted() {
    logs::listen();
    let server = Server::start();
    let [timeout, every] = [Duration::from_millis(100), Duration::from_secs(1)];
    let connected = connect(&server).with_timeout(timeout).with_retry_every(every);
    let limiter = Limiter::new(&connected, limit(2, STILL));
    // Connecting may take longer than the timeout on a slow machine.
    wait_for("the connection", every, async || !limiter.take("a", 1).await.unwrap().degraded).await;
    logs::lines(&server);
    server.signal("STOP");
    let (began, mut slow) = (Instant::now(), 0);
    while began.elapsed() < 4 * every {
        let call = Instant::now();
        assert!(limiter.take("a", 1).await.unwrap().degraded);
        slow += u32::from(call.elapsed() >= timeout);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((2..=6).contains(&slow), "{slow} calls waited for it");
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].ends_with("no answer within 100 ms"), "{lines:?}");
    server.signal("CONT");
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_logged_once() {
    logs::listen();
    let server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new());
    ask::<()>(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    for name in ["a", "b"] {
        assert!(limiter.take(name, 1).await.unwrap().degraded, "the policy decides");
    }
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].contains("OOM"), "{lines:?}");
}

#[tokio::test]
async fn calls_that_find_a_replica_share_one_connection_anew() {
    let server = Server::start();
    let limiter = Limiter::new(&patient(&server).with_retry_every(LONG), limit(2, STILL));
    assert!(!limiter.take("a", 1).await.unwrap().degraded);
    ask::<()>(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    let connections = stat(&server, "total_connections_received");
    for _ in 0..20 {
        assert!(limiter.take("a", 1).await.unwrap().degraded, "the policy decides");
    }
    let more = stat(&server, "total_connections_received") - connections;
    assert_eq!(more, 2, "one of them asks for this number");
    ask::<()>(&server, &["REPLICAOF", "NO", "ONE"]);
    assert!(!limiter.take("a", 1).await.unwrap().degraded);
}

/// Returns whether this process runs only the test. If not, a shell runs the test again in one that does, by these words.
fn is_alone(test: &str, by: &str) -> bool {
    if std::env::var_os("IS_ALONE").is_some() {
        return true;
    }
    let again = format!("{by} \"$0\" --exact away::{test} --test-threads=1");
    let mut alone = Command::new("sh");
    alone.args(["-c", &again]).arg(std::env::current_exe().unwrap()).env("IS_ALONE", "1");
    let done = alone.output().unwrap();
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success() && output.contains("1 passed"), "{output}");
    false
}

/// In a process that may open few files.
#[test]
fn a_process_without_a_free_file_asks_once_it_has_one() {
    if !is_alone("a_process_without_a_free_file_asks_once_it_has_one", "ulimit -n 64; exec") {
        return;
    }
    let server = Server::start();
    let limiter = sync::Limiter::new(&patient(&server), limit(10, STILL));
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for _ in 0..3 {
        assert!(limiter.take("a", 1).unwrap().degraded);
    }
    drop(files);
    until("it asks", || !limiter.take("a", 1).unwrap().degraded);
}

/// In a process that is suspended in the middle of a call.
#[test]
fn a_process_that_was_suspended_waits_for_its_replies() {
    if !is_alone("a_process_that_was_suspended_waits_for_its_replies", "exec") {
        return;
    }
    let server = Server::start();
    let timeout = Duration::from_millis(300);
    let is_decided = || {
        let limiter = sync::Limiter::new(&connect(&server).with_timeout(timeout), limit(10, STILL));
        until("the connection", || !limiter.peek("a", 0).unwrap().degraded);
        server.signal("STOP");
        let (here, there) = (std::process::id(), server.pid);
        // For more than ten timeouts. The server replies after that.
        let suspend = format!(
            "sleep 0.1; kill -STOP {here}; sleep 3.5; kill -CONT {here}; sleep 0.05; kill -CONT {there}"
        );
        let mut suspended = Command::new("sh").args(["-c", &suspend]).spawn().unwrap();
        let decision = limiter.take("a", 1).unwrap();
        assert!(suspended.wait().unwrap().success());
        !decision.degraded
    };
    // On a slow machine the call may be over before it is suspended.
    assert!((0..3).any(|_| is_decided()));
}

/// In a process that cannot start a thread when it connects by a name and when it reports a renewal. There a panic ends it, as
/// in a program that is built so.
#[test]
fn a_process_that_starts_no_more_threads_goes_on() {
    if !is_alone("a_process_that_starts_no_more_threads_goes_on", "exec") {
        return;
    }
    let server = Server::start();
    let (decided, decisions) = mpsc::channel();
    let options = Options::new().on_decision(move |_, _, decision, _| _ = decided.send(decision.degraded));
    let holds = sync::Limiter::with_options(&patient(&server), limit(1, "0"), options);
    let hold = holds.hold("a", 1, Duration::from_millis(300)).unwrap();
    let by_name = format!("redis://localhost:{}", server.port);
    let policies = [OnError::Local, OnError::Open, OnError::Closed].map(|policy| {
        let server = tokenbucket_client::Server::connect(&*by_name).unwrap();
        sync::Limiter::with_options(&server, limit(10, STILL), Options::new().on_error(policy))
    });
    // Less than a stack.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let size: u64 = size.unwrap().parse().unwrap();
    let most = |bytes: &str| {
        let words = [format!("--as={bytes}:"), format!("--pid={}", std::process::id())];
        assert!(Command::new("prlimit").args(words).status().unwrap().success());
    };
    most(&((size + 1024) << 10).to_string());
    assert!(thread::Builder::new().spawn(|| ()).is_err());
    for limiter in &policies {
        assert!(limiter.take("a", 1).unwrap().degraded);
    }
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    let renewed = calls(&server, "tb.renew");
    until("renewals", || calls(&server, "tb.renew") >= renewed + 2);
    most("unlimited");
    until("it asks", || !policies[0].take("a", 1).unwrap().degraded);
    assert_eq!(decisions.iter().take(4).collect::<Vec<_>>(), [false; 4], "none is forgotten");
    assert!(!hold.is_lost());
}

/// In a process whose threads would need more memory than there is.
#[test]
fn a_wait_ends_where_no_thread_starts() {
    if !is_alone("a_wait_ends_where_no_thread_starts", "RUST_MIN_STACK=$((1 << 50)) timeout 30") {
        return;
    }
    let server = tokenbucket_client::Server::connect("redis://127.0.0.1:1").unwrap();
    let limiter = sync::Limiter::new(&server, limit(1, "1/s"));
    assert!(limiter.take("a", 1).unwrap().degraded);
    let began = Instant::now();
    assert!(limiter.wait("a", 1, Duration::from_secs(20)).unwrap().allowed);
    assert!(began.elapsed() > Duration::from_millis(200), "its turn comes a second after the first");
    // A deadline, which a longer wait does not outlast.
    assert!(limiter.take("b", 1).unwrap().allowed);
    let error = limiter.within(Duration::from_millis(10)).wait("b", 1, Duration::from_secs(20)).unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed), "{error}");
}
