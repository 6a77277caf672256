//! The app and HTTP, all of it real.

#![allow(dead_code, unused_imports)] // each test binary uses its part

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

#[path = "../../../../clients/rust/tests/servers.rs"]
mod servers;

use servers::READY_WITHIN;
pub use servers::{ask, info, wait_for, Cluster, Process, Server};

/// One token in six minutes: nothing flows in while a test runs.
pub const STILL: &str = "10/1h";

/// The app as a process of its own.
pub struct App {
    pub process: Process,
    pub address: SocketAddr,
}

impl App {
    pub async fn start(environment: &[(&str, &str)]) -> Self {
        let mut process = Self::spawn(environment);
        let address = process
            .until_ready(|process| {
                let output = process.output();
                let (_, rest) = output.split_once("listening on http://")?;
                rest.split_once('\n')?.0.parse().ok()
            })
            .await;
        Self { process, address }
    }

    /// Starts it without waiting for it.
    pub fn spawn(environment: &[(&str, &str)]) -> Process {
        let mut process = Process::new("the app", env!("CARGO_BIN_EXE_tokenbucket-axum"));
        // A slow machine is no outage, except to the tests that say when it is one.
        process.command.env_clear().env("PORT", "0").env("REDIS_TIMEOUT_MS", "10000");
        process.command.envs(environment.iter().copied());
        process.spawn();
        process
    }

    pub async fn get(&self, path: &str) -> Answer {
        get(self.address, path, Ipv4Addr::LOCALHOST).await
    }

    /// As the client with this address, of 127.0.0.0/8.
    pub async fn get_as(&self, path: &str, client: [u8; 4]) -> Answer {
        get(self.address, path, client.into()).await
    }

    /// One after the other; their statuses.
    pub async fn statuses(&self, count: usize, path: &str) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(self.get(path).await.status);
        }
        statuses
    }

    /// What the limiter logged.
    pub fn warnings(&self) -> Vec<String> {
        self.process.output().lines().filter(|line| line.starts_with("WARN")).map(str::to_owned).collect()
    }
}

/// All at once, spread over these apps; how many passed and how many were denied.
pub async fn burst(apps: &[&App], count: usize, path: &'static str) -> (usize, usize) {
    let mut requests = JoinSet::new();
    for app in apps.iter().cycle().take(count) {
        requests.spawn(get(app.address, path, Ipv4Addr::LOCALHOST));
    }
    let statuses: Vec<u16> = requests.join_all().await.iter().map(|answer| answer.status).collect();
    let of = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    (of(200), of(429))
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The limit's capacity, its tokens left, or the seconds until it is full: `q`, `r` and `t` of the RateLimit headers.
    pub fn rate_limit(&self, parameter: &str) -> u64 {
        let headers = ["ratelimit-policy", "ratelimit"].map(|name| self.header(name).unwrap_or_default());
        let mut parameters = headers.iter().flat_map(|header| header.split(';'));
        let text = parameters.find_map(|each| each.strip_prefix(parameter)?.strip_prefix('='));
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {parameter} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> u64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name}: {text}"))
    }
}

async fn get(app: SocketAddr, path: &str, client: Ipv4Addr) -> Answer {
    let exchange = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((client, 0).into())?;
        let mut stream = socket.connect(app).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {app}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer =
        tokio::time::timeout(READY_WITHIN, exchange).await.expect("an answer in time").expect("HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    let headers = lines.filter_map(|line| line.split_once(": "));
    Answer {
        status: status.parse().expect("a status"),
        headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
        body: body.to_owned(),
    }
}
