//! The gRPC service of Envoy, with health and reflection.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::listen::Connection;
use super::Gate;
use crate::decide::Refusal;
use crate::messages;

/// Requests of proxies have a few hundred bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Envoy sends all calls of a thread by one connection.
const MAX_CALLS_PER_CONNECTION: u32 = 1_000;

/// A call that has not arrived completely by then ends. Callers with less patience say so.
const CALL_WITHIN: Duration = Duration::from_secs(10);

/// A client that vanished without a word is noticed within two of these.
const PING_EVERY: Duration = Duration::from_secs(30);

/// How old connections become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// They are asked to end then.
    pub max: Duration,
    /// They end so much later.
    pub grace: Duration,
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
    age: Age,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(include_bytes!("ratelimit.binpb"))
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = RateLimitServiceServer::new(Service(gate));
    let routes = Routes::new(service.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(health.max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(reflection().build_v1()?.max_decoding_message_size(MAX_MESSAGE_BYTES))
        // What grpcurl and others still ask.
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(MAX_MESSAGE_BYTES));
    let mut server = Server::builder()
        .timeout(CALL_WITHIN)
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_EVERY));
    if !age.max.is_zero() {
        server = server.max_connection_age(age.max).max_connection_age_grace(age.grace);
    }
    server.add_routes(routes).serve_with_incoming_shutdown(ReceiverStream::new(connections), stop).await?;
    Ok(())
}

struct Service(Arc<Gate>);

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<messages::Request>,
    ) -> Result<Response<messages::Response>, Status> {
        let request = request.into_inner();
        self.0.decide(&request).await.map(Response::new).map_err(|refusal| match refusal {
            Refusal::Service(text) => Status::unknown(text),
            Refusal::Redis(text) => Status::unavailable(text),
        })
    }
}
