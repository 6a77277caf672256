//! Limiters for threads.

use std::fs::File;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::sync::Limiter;

use crate::{limit, patient, servers, STILL};

/// Runs this test again in a process that may open few files.
#[test]
fn a_process_without_a_free_file_asks_once_it_has_one() {
    if std::env::var_os("FEW_FILES").is_none() {
        let again =
            "ulimit -n 64; exec \"$0\" --exact threads::a_process_without_a_free_file_asks_once_it_has_one";
        let program = std::env::current_exe().unwrap();
        let done =
            Command::new("sh").args(["-c", again]).arg(program).env("FEW_FILES", "1").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        return;
    }
    let server = servers::Server::start();
    let limiter = Limiter::new(&patient(&server), limit(10, STILL));
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for _ in 0..3 {
        assert!(limiter.take("a", 1).unwrap().degraded);
    }
    drop(files);
    let began = Instant::now();
    while limiter.take("a", 1).unwrap().degraded {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not ask");
        thread::sleep(Duration::from_millis(10));
    }
}
