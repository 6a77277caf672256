//! What the gate adds to a call, beside programs that do less, in the same minute. `make bench-gate` runs it.
//!
//! Each service is a process of its own: a gRPC service that only replies, one that only awaits a `TB.TAKE`, and the gate. One
//! client, in this process, keeps so many calls in flight. The rounds alternate, so that what else the machine does falls on
//! all of them alike; the medians over the rounds are compared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../tests/gate.rs"]
mod gate;
#[path = "../../clients/rust/tests/servers.rs"]
mod servers;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokenbucket_client::{Limit, Limiter, Options, Server};
use tokenbucket_gate::messages::{CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};
use tokio::net::TcpListener;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::server::TcpIncoming;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use gate::{Gate, Setup};

/// What Envoy waits for unless told otherwise.
const ENVOYS_TIMEOUT: Duration = Duration::from_millis(20);

const IN_FLIGHT: [usize; 3] = [1, 16, 64];
/// The gate's place among the callees.
const GATE: usize = 3;
const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";
const CONFIG: &str = "domain: bench\ndescriptors:\n  - key: user\n    rate_limit: {unit: second, requests_per_unit: 4294967295}\n";

/// A service that does less than the gate.
enum Lesser {
    Replies,
    Takes(Limiter),
}

#[tonic::async_trait]
impl RateLimitService for Lesser {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        if let Self::Takes(limiter) = self {
            let name = &request.get_ref().descriptors[0].entries[0].value;
            let decision =
                limiter.take(name, 1).await.map_err(|error| Status::unavailable(error.to_string()))?;
            assert!(decision.allowed && !decision.degraded);
        }
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() }))
    }
}

/// This program again, as a service. Prints its address, and ends with its input.
fn serve(which: &str, redis: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = match which {
            "replies" => Lesser::Replies,
            _ => {
                let server = Server::connect(redis).unwrap();
                let limit = Limit::new(4_294_967_295_u32, "4294967295/s").unwrap();
                Lesser::Takes(Limiter::with_options(&server, limit, Options::new()))
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let serving = tonic::transport::Server::builder()
            .add_service(RateLimitServiceServer::new(service))
            .serve_with_incoming(incoming);
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop));
        tokio::select! { result = serving => result.unwrap(), _ = ended => {} }
    });
}

/// A process that ends with this one.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_lesser(which: &str, redis: &str) -> (Process, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["serve", which, redis]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let address = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    (Process(child), address.parse().unwrap())
}

async fn connect(address: SocketAddr) -> RateLimitServiceClient<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let client = RateLimitServiceClient::new(channel);
    let answers = async || client.clone().should_rate_limit(request("ready")).await.is_ok();
    servers::wait_for("a service", servers::READY_WITHIN, answers).await;
    client
}

fn request(user: &str) -> RateLimitRequest {
    gate::request("bench", &[&[("user", user)]])
}

/// Whom the calls go to.
#[derive(Clone)]
enum Callee {
    Grpc(RateLimitServiceClient<Channel>),
    Redis(Limiter),
    /// A reservation that is committed.
    Leases(Channel),
}

impl Callee {
    async fn call(&mut self, user: &str) {
        match self {
            Self::Grpc(client) => {
                let reply = client.should_rate_limit(request(user)).await.unwrap().into_inner();
                assert_eq!(reply.overall_code, i32::from(Code::Ok));
            }
            Self::Redis(limiter) => assert!(limiter.take(user, 1).await.unwrap().allowed),
            Self::Leases(channel) => {
                let RateLimitRequest { domain, descriptors, .. } = request(user);
                let asked = ReserveRequest { domain, descriptors, amount: 1, ttl: None };
                let reserved: ReserveResponse = ask(channel, RESERVE, asked).await;
                assert_eq!(reserved.code, i32::from(Code::Ok));
                let RateLimitRequest { domain, descriptors, .. } = request(user);
                let reservation_id = reserved.reservation_id;
                let used = CommitRequest { domain, descriptors, reservation_id, actual_amount: 1 };
                let committed: CommitResponse = ask(channel, COMMIT, used).await;
                assert!(committed.reservation_released);
            }
        }
    }
}

async fn ask<A, R>(channel: &Channel, path: &'static str, asked: A) -> R
where
    A: prost::Message + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(path);
    grpc.unary(Request::new(asked), path, tonic_prost::ProstCodec::default()).await.unwrap().into_inner()
}

/// Keeps so many calls in flight for a while. The time of each, in microseconds.
async fn load(callee: &Callee, in_flight: usize, time: Duration) -> Vec<u64> {
    let until = Instant::now() + time;
    let tasks = (0..in_flight).map(|task| {
        let mut callee = callee.clone();
        tokio::spawn(async move {
            let mut took_us = Vec::new();
            for number in 0.. {
                let began = Instant::now();
                if began >= until {
                    break;
                }
                callee.call(&format!("user{}", (number * in_flight + task) % 1000)).await;
                took_us.push(began.elapsed().as_micros() as u64);
            }
            took_us
        })
    });
    let mut all = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    all
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// The client has one thread, so that a core is left for whom it calls.
#[tokio::main(worker_threads = 1)]
async fn measure() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, time) = if quick { (3, Duration::from_millis(300)) } else { (7, Duration::from_secs(2)) };
    let redis_server = servers::Server::start();
    let redis = redis_server.url();
    let (_replies, replies) = start_lesser("replies", &redis);
    let (_takes, takes) = start_lesser("takes", &redis);
    let gate = Setup::redis(&redis).file("bench.yaml", CONFIG).start();
    let server = Server::connect(redis.as_str()).unwrap();
    let limiter = Limiter::new(&server, Limit::new(4_294_967_295_u32, "4294967295/s").unwrap());
    let leases = Channel::from_shared(format!("http://127.0.0.1:{}", gate.grpc)).unwrap();
    let callees = [
        Callee::Redis(limiter),
        Callee::Grpc(connect(replies).await),
        Callee::Grpc(connect(takes).await),
        Callee::Grpc(connect(SocketAddr::from(([127, 0, 0, 1], gate.grpc))).await),
        Callee::Leases(leases.connect().await.unwrap()),
    ];
    println!("| in flight | TAKE | gRPC | gRPC that awaits a TAKE | gate | gate / (TAKE + gRPC) | gate / gRPC that awaits a TAKE | Reserve + Commit | / gate |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut calls, mut late) = (0, 0);
    for in_flight in IN_FLIGHT {
        let mut p50s = vec![Vec::new(); callees.len()];
        for _ in 0..rounds {
            for (place, callee) in callees.iter().enumerate() {
                let took_us = load(callee, in_flight, time).await;
                p50s[place].push(took_us[took_us.len() / 2]);
                if place == GATE {
                    calls += took_us.len();
                    late += took_us.iter().filter(|us| **us > ENVOYS_TIMEOUT.as_micros() as u64).count();
                }
            }
        }
        let [take, grpc, awaits, gate, leases] =
            <[u64; 5]>::try_from(p50s.into_iter().map(median).collect::<Vec<_>>()).unwrap();
        println!(
            "| {in_flight} | {take} µs | {grpc} µs | {awaits} µs | {gate} µs | {:.2} | {:.2} | {leases} µs | {:.2} |",
            gate as f64 / (take + grpc) as f64,
            gate as f64 / awaits as f64,
            leases as f64 / gate as f64
        );
    }
    println!("\n{late} of {calls} calls of the gate took longer than {} ms.", ENVOYS_TIMEOUT.as_millis());
    memory(&callees[GATE], &gate, if quick { 100_000 } else { 1_000_000 }).await;
}

/// What the gate keeps of so many descriptors.
async fn memory(callee: &Callee, gate: &Gate, descriptors: usize) {
    let mut after_mib = Vec::new();
    for part in 0..10 {
        let tasks = (0..64).map(|task| {
            let mut callee = callee.clone();
            tokio::spawn(async move {
                for number in 0..descriptors / 640 {
                    callee.call(&format!("other:{part}:{task}:{number}")).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        after_mib.push(gate::memory_mib(gate, "VmRSS"));
    }
    println!(
        "The gate uses {} MiB after a tenth of {descriptors} descriptors, {} MiB after all.",
        after_mib[0], after_mib[9]
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("serve") => serve(&arguments[2], &arguments[3]),
        _ => measure(),
    }
}
