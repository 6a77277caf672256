//! A control plane as Envoy Gateway runs it, with snapshots that tests set.
//!
//! It answers as the snapshot cache of go-control-plane: a request is answered at once if its version is not that of the
//! snapshot, and else with the next one. Headers come with the first response. It knows one node id.

#![allow(dead_code)] // each test program uses its part

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use tokenbucket_gate::limits::config_messages::RateLimitConfig;
use tokenbucket_gate::xds::TYPE_URL;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{version, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataMap;
use tonic::transport;
use tonic::{Request, Response, Status, Streaming};

use crate::gate::ports::free_port;
use crate::gate::{wait_until, Setup};

/// The one that Envoy Gateway knows.
pub const NODE: &str = "envoy-ratelimit";

pub struct ControlPlane {
    pub port: u16,
    tls: Option<PathBuf>,
    state: State,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct State {
    snapshot: Arc<watch::Sender<Option<DiscoveryResponse>>>,
    /// All requests, and the headers of their streams.
    requests: Arc<Mutex<Vec<(DiscoveryRequest, MetadataMap)>>>,
}

impl ControlPlane {
    /// One that has no snapshot yet.
    pub fn start() -> Self {
        Self::started(None)
    }

    /// One that speaks TLS 1.3 with `server.crt`, and only to clients with a certificate of `ca.crt`.
    pub fn with_tls(folder: &Path) -> Self {
        Self::started(Some(folder.to_owned()))
    }

    fn started(tls: Option<PathBuf>) -> Self {
        let state = State { snapshot: Arc::new(watch::Sender::new(None)), requests: Arc::default() };
        let mut control_plane = Self { port: free_port(), tls, state, runtime: None };
        control_plane.start_again();
        control_plane
    }

    /// A gate that follows it, and starts without it.
    pub fn follower(&self) -> Setup {
        Setup::new().set("CONFIG_GRPC_XDS_SERVER_URL", format!("127.0.0.1:{}", self.port)).set_all(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_NODE_ID", NODE),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ])
    }

    /// As a new process: with no memory of its streams, and the snapshot that is set.
    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", self.port))).expect("a free port");
        let service = AggregatedDiscoveryServiceServer::new(self.state.clone());
        let server = transport::Server::builder().add_service(service.max_encoding_message_size(usize::MAX));
        let tls = self.tls.as_deref().map(|folder| acceptor(folder, ["ca.crt", "server.crt", "server.key"]));
        match tls {
            None => {
                let connections = accepted(&runtime, listener, |tcp| async { Some(tcp) });
                drop(runtime.spawn(server.serve_with_incoming(connections)));
            }
            Some(tls) => {
                let accept = move |tcp| {
                    let tls = tls.clone();
                    async move { tls.accept(tcp).await.ok() }
                };
                let connections = accepted(&runtime, listener, accept);
                drop(runtime.spawn(server.serve_with_incoming(connections)));
            }
        }
        self.runtime = Some(runtime);
    }

    /// Ends, and closes all connections.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }

    /// Sets a snapshot, and sends it to all who wait.
    pub fn set(&self, version: &str, configs: &[RateLimitConfig]) {
        let resource = |config: &RateLimitConfig| any(TYPE_URL, config.encode_to_vec());
        self.set_resources(version, configs.iter().map(resource).collect());
    }

    pub fn set_resources(&self, version: &str, resources: Vec<Any>) {
        let (version_info, type_url) = (version.to_owned(), TYPE_URL.to_owned());
        let response =
            DiscoveryResponse { version_info, type_url, resources, ..DiscoveryResponse::default() };
        self.state.snapshot.send_replace(Some(response));
    }

    /// The requests of all streams so far.
    pub fn requests(&self) -> Vec<DiscoveryRequest> {
        self.state.requests.lock().expect("no panic").iter().map(|(request, _)| request.clone()).collect()
    }

    /// The headers of the last request's stream.
    pub fn headers(&self) -> MetadataMap {
        self.state.requests.lock().expect("no panic").last().expect("a request").1.clone()
    }

    /// Returns the first request that accepts this version.
    pub fn wait_for_acceptance(&self, version: &str) {
        let is_accepted = |request: &DiscoveryRequest| {
            request.version_info == version
                && !request.response_nonce.is_empty()
                && request.error_detail.is_none()
        };
        wait_until(&format!("version {version:?}"), || self.requests().iter().any(is_accepted));
    }

    /// Returns the first request that refuses, and what it says.
    pub fn wait_for_refusal(&self) -> (DiscoveryRequest, String) {
        let refusal = || self.requests().into_iter().find(|request| request.error_detail.is_some());
        wait_until("a refusal", || refusal().is_some());
        let request = refusal().expect("a refusal");
        let message = request.error_detail.clone().expect("a detail").message;
        (request, message)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

/// TLS with these files, for clients with a certificate of the authority.
pub fn acceptor(folder: &Path, [authority, chain, key]: [&str; 3]) -> TlsAcceptor {
    let read = |name: &str| std::fs::read(folder.join(name)).expect("a file");
    let certificates =
        |name: &str| CertificateDer::pem_slice_iter(&read(name)).collect::<Result<Vec<_>, _>>().expect("PEM");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(authority));
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&version::TLS13]);
    let builder = builder.expect("TLS 1.3").with_client_cert_verifier(clients.expect("an authority"));
    let key = PrivateKeyDer::from_pem_slice(&read(key)).expect("a key");
    let mut config = builder.with_single_cert(certificates(chain), key).expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Connections, without those that `accept` refuses.
fn accepted<T: Send + 'static, F: Future<Output = Option<T>> + Send>(
    runtime: &Runtime,
    listener: TcpListener,
    accept: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> ReceiverStream<std::io::Result<T>> {
    let (sender, connections) = mpsc::channel(16);
    runtime.spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            if let Some(connection) = accept(tcp).await {
                let _ = sender.send(Ok(connection)).await;
            }
        }
    });
    ReceiverStream::new(connections)
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for State {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, mut responses) = mpsc::channel(1);
        let headers = request.metadata().clone();
        tokio::spawn(self.clone().follow(request.into_inner(), headers, sender));
        let first = responses.recv().await.ok_or_else(|| Status::aborted("the client has left"))?;
        let all = tokio_stream::once(first).chain(ReceiverStream::new(responses));
        Ok(Response::new(Box::pin(all)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("no delta"))
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl State {
    async fn follow(
        self,
        mut requests: Streaming<DiscoveryRequest>,
        headers: MetadataMap,
        responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
    ) {
        let mut snapshots = self.snapshot.subscribe();
        let mut waiting: Option<DiscoveryRequest> = None;
        let mut nonce: u64 = 0;
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            if let (Some(request), Some(snapshot)) = (&waiting, snapshot) {
                let is_known = request.node.as_ref().is_some_and(|node| node.id == NODE);
                if is_known && request.type_url == TYPE_URL && request.version_info != snapshot.version_info {
                    waiting = None;
                    nonce += 1;
                    let response = DiscoveryResponse { nonce: nonce.to_string(), ..snapshot };
                    if responses.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                request = requests.message() => {
                    let Ok(Some(request)) = request else { return };
                    self.requests.lock().expect("no panic").push((request.clone(), headers.clone()));
                    let is_current = nonce == 0 || request.response_nonce == nonce.to_string();
                    waiting = Some(request).filter(|_| is_current);
                }
                changed = snapshots.changed() => if changed.is_err() { return },
            }
        }
    }
}
