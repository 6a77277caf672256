//! The gRPC services of Envoy and Kuadrant, with health and reflection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{http, Service as HttpService};
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::service_fn;

use super::in_flight::{too_many, until_end, Arriving};
use super::listen::Connection;
use super::message::{Read, RequestCodec};
use super::{Gate, ENVOY_DESCRIPTORS};
use crate::decide::Refusal;
use crate::messages::CommitResponse;
use crate::to_the_end;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const CHECK_RATE_LIMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

/// Calls with one reply. The replies of health watches and reflection have no end.
const UNARY: [&str; 6] =
    [SHOULD_RATE_LIMIT, CHECK_RATE_LIMIT, REPORT, RESERVE, COMMIT, "/grpc.health.v1.Health/Check"];

/// Requests of proxies have a few hundred bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Envoy sends all calls of a thread by one connection, and opens another one beyond these. It learns the number after it has
/// sent all that waited for the connection, so it is the most that Envoy has in flight by default. The memory of a connection
/// grows with the most calls that it ever had, even if they were refused.
const MAX_CALLS_PER_CONNECTION: u32 = 1024;

/// Calls that a client may cancel before they are read; more end the connection, with all its other calls. Envoy cancels a call
/// when its caller leaves, and all that time out in a stall.
const MAX_UNREAD_RESETS: usize = 4 * MAX_CALLS_PER_CONNECTION as usize;

/// Envoy passes on what a caller sends, such as `tracestate`: up to 60 KiB by default.
const MAX_HEAD_BYTES: u32 = 1 << 17;

/// The bytes of a message that may arrive before it is read.
const WINDOW_BYTES: u32 = 1 << 16;

/// The time for a call to arrive completely. Callers may set a shorter deadline.
const CALL_WITHIN: Duration = Duration::from_secs(10);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The lifetime of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The age at which they get a GOAWAY; 0 for never.
    pub max_age: Duration,
    /// The longest silence of a client, which answers pings before.
    pub idle: Duration,
}

/// Serves connections until `stop`, then finishes the calls that run.
///
/// # Errors
///
/// The server cannot be set up.
pub async fn serve(
    gate: Arc<Gate>,
    health: HealthServer<impl Health>,
    connections: mpsc::Receiver<io::Result<Connection>>,
    stay: Stay,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ENVOY_DESCRIPTORS)
            .register_encoded_file_descriptor_set(include_bytes!("kuadrant.binpb"))
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(health.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_MESSAGE_BYTES))
        // grpcurl and others still call it.
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(MAX_MESSAGE_BYTES));
    let mut server = Server::builder()
        .timeout(CALL_WITHIN)
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .http2_max_pending_accept_reset_streams(Some(MAX_UNREAD_RESETS))
        .http2_max_header_list_size(MAX_HEAD_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .http2_keepalive_interval(Some(stay.idle / 2))
        .http2_keepalive_timeout(Some(stay.idle / 2));
    if !stay.max_age.is_zero() {
        // With a grace period too, tonic would close connections after it without a GOAWAY.
        server = server.max_connection_age(stay.max_age);
    }
    let bounded = Bounded { gate, routes: routes.prepare() };
    server.serve_with_incoming_shutdown(bounded, ReceiverStream::new(connections), stop).await?;
    Ok(())
}

/// The services, with concurrent calls bounded by memory.
#[derive(Clone)]
struct Bounded {
    gate: Arc<Gate>,
    /// Health and reflection.
    routes: Routes,
}

impl Bounded {
    /// Generated services would refuse header values that are not UTF-8: see [`RequestCodec`].
    fn answer(&mut self, request: http::Request<Body>) -> Boxed<Result<http::Response<Body>, Infallible>> {
        let gate = self.gate.clone();
        match request.uri().path() {
            SHOULD_RATE_LIMIT => unary(gate, request, |gate, asked| async move {
                gate.decider.decide(gate.limits().as_deref(), &asked).await
            }),
            CHECK_RATE_LIMIT => unary(gate, request, |gate, asked| async move {
                gate.decider.check(gate.limits().as_deref(), &asked).await
            }),
            // The tokens are used, whether or not the proxy waits for the reply.
            REPORT => unary(gate, request, |gate, asked| {
                to_the_end(async move { gate.decider.report(gate.limits().as_deref(), &asked).await })
            }),
            RESERVE => unary(gate, request, |gate, asked| async move {
                gate.decider.reserve(gate.limits().as_deref(), asked).await
            }),
            COMMIT => unary(gate, request, |gate, asked| {
                to_the_end(async move {
                    let reply = gate.decider.commit(gate.limits().as_deref(), asked).await;
                    reply.map(|reservation_released| CommitResponse { reservation_released })
                })
            }),
            _ => Box::pin(self.routes.call(request)),
        }
    }
}

impl HttpService<http::Request<Body>> for Bounded {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        HttpService::<http::Request<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_unary = UNARY.contains(&request.uri().path());
        let in_flight = &self.gate.in_flight;
        let stream = (!is_unary).then(|| in_flight.stream());
        let held = in_flight.request();
        let request = Arriving::new(request, held.clone());
        if held.is_refused() || matches!(stream, Some(None)) {
            return Box::pin(async move {
                drop(held);
                Ok(too_many().into_http())
            });
        }
        let answer = self.answer(request.map(Body::new));
        Box::pin(async move {
            let reply = answer.await?;
            drop(held);
            Ok(match stream.flatten() {
                Some(stream) => reply.map(|body| Body::new(until_end(body, stream))),
                None => reply,
            })
        })
    }
}

/// Answers a call by `decide`.
fn unary<Asked, Reply, F>(
    gate: Arc<Gate>,
    request: http::Request<Body>,
    decide: fn(Arc<Gate>, Asked) -> F,
) -> Boxed<Result<http::Response<Body>, Infallible>>
where
    Asked: Read + Send + 'static,
    Reply: Message + 'static,
    F: Future<Output = Result<Reply, Refusal>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Asked>| {
        let decided = decide(gate.clone(), request.into_inner());
        async move { decided.await.map(Response::new).map_err(status) }
    });
    Box::pin(async move {
        let mut grpc = Grpc::new(RequestCodec::new()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(grpc.unary(service, request).await)
    })
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Service(text) => Status::unknown(text),
        Refusal::Redis(text) => Status::unavailable(text),
    }
}
