//! Limits that a control plane sends: the client of xDS, state of the world.
//!
//! Each response has all configurations. One mistake rejects all of them, and the limits in use stay. A control plane that
//! has none may send nothing, a response without configurations, or one without a version: none of them is a mistake.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::google::rpc::Status as Detail;
use prost::Message as _;
use tokio::sync::{mpsc, Notify};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::counters::add;
use crate::limits::config_messages::RateLimitConfig;
use crate::limits::{Limits, Options};
use crate::services::Gate;
use crate::settings::{ControlPlane, Settings};

pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The pause after the end of a stream, doubled until a response comes.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pause before a mistake is refused again, which a control plane may repeat at once. It mends one only after a refusal.
const REFUSE_EVERY: Duration = Duration::from_secs(2);

/// The silence after which the log says whom the control plane may not know.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Keeps the limits in use as a control plane has them.
pub struct Client {
    control_plane: ControlPlane,
    gate: Arc<Gate>,
    loaded: Arc<Notify>,
    /// The last version that was refused, and why.
    refused: Option<(String, String)>,
}

impl Client {
    /// Creates a client that notifies `loaded` of each configuration that it uses.
    ///
    /// # Errors
    ///
    /// One line: which variable is wrong.
    pub fn new(settings: &Settings, gate: Arc<Gate>, loaded: Arc<Notify>) -> Result<Self, String> {
        Ok(Self { control_plane: settings.control_plane()?, gate, loaded, refused: None })
    }

    /// Follows the control plane. Never ends.
    pub async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut has_answered = false;
            let Err(reason) = self.stream(&mut has_answered).await;
            if has_answered {
                pause = FIRST_PAUSE;
            }
            log::warn!("xDS: {}: {reason}; connects again in {pause:?}", self.control_plane.address);
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Connects, and follows one stream until it breaks.
    async fn stream(&mut self, has_answered: &mut bool) -> Result<Infallible, String> {
        let (answers, requests) = mpsc::channel(1);
        // A control plane that was restarted may give an old number to something new: on a new stream, none is accepted.
        let mut accepted = String::new();
        let _ = answers.send(self.request(&accepted, String::new(), None)).await;
        let (mut responses, mut response) = self.open(requests).await?;
        while let Some(received) = response {
            *has_answered = true;
            let answer = self.answer(received, &mut accepted).await;
            let _ = answers.send(answer).await;
            response = responses.message().await.map_err(|status| explained(&status))?;
        }
        Err("the control plane has ended the stream".to_owned())
    }

    /// Opens a stream and waits for the first response.
    async fn open(
        &self,
        requests: mpsc::Receiver<DiscoveryRequest>,
    ) -> Result<(Streaming<DiscoveryResponse>, Option<DiscoveryResponse>), String> {
        let ControlPlane { address, node, headers, settings } = &self.control_plane;
        let client = AggregatedDiscoveryServiceClient::new(self.control_plane.connect().await?);
        let mut client = client.max_decoding_message_size(settings.xds_client_max_msg_size_in_bytes);
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().clone_from(headers);
        // Some servers send their headers only with the first response.
        let mut first = Box::pin(async {
            let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
            let response = responses.message().await?;
            Ok((responses, response))
        });
        let opened = match timeout(SILENT_FOR, &mut first).await {
            Ok(opened) => opened,
            Err(_) => {
                let id = &node.id;
                log::warn!("xDS: {address} has sent nothing for {SILENT_FOR:?}: it has no limits, or does not know the node id '{id}' (CONFIG_GRPC_XDS_NODE_ID)");
                first.await
            }
        };
        opened.map_err(|status| explained(&status))
    }

    /// Returns a request: the first, an acceptance or a refusal.
    fn request(&self, version: &str, response_nonce: String, mistake: Option<String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(self.control_plane.node.clone()),
            type_url: TYPE_URL.to_owned(),
            response_nonce,
            error_detail: mistake.map(|message| Detail { message, ..Detail::default() }),
            ..DiscoveryRequest::default()
        }
    }

    /// Uses a response, and returns the answer to it.
    async fn answer(&mut self, response: DiscoveryResponse, accepted: &mut String) -> DiscoveryRequest {
        let DiscoveryResponse { version_info: version, nonce, resources, .. } = response;
        let mistake = self.load(resources, &version).await.err();
        match &mistake {
            Some(mistake) => self.refuse(version, mistake).await,
            None => (*accepted, self.refused) = (version, None),
        }
        self.request(accepted, nonce, mistake)
    }

    async fn load(&self, resources: Vec<Any>, version: &str) -> Result<(), String> {
        let (count, options) = (resources.len(), self.control_plane.settings.limits_options());
        // Calls must not wait while large ones are read.
        let limits = spawn_blocking(move || read(resources, &options)).await;
        self.gate.use_limits(limits.map_err(|error| error.to_string())??).await;
        log::info!("xDS: loaded version '{version}', configurations: {count}");
        self.loaded.notify_one();
        Ok(())
    }

    /// Counts and logs a mistake once, and waits if it comes again.
    async fn refuse(&mut self, version: String, mistake: &str) {
        let refused = Some((version, mistake.to_owned()));
        if self.refused == refused {
            return sleep(REFUSE_EVERY).await;
        }
        self.refused = refused;
        add(&self.gate.counters.config_load_error, 1);
        log::error!("xDS: {mistake}; the limits in use stay");
    }
}

/// Reads the resources, in the order of their names: that of a response is random.
fn read(resources: Vec<Any>, options: &Options) -> Result<Limits, String> {
    let mut configs = Vec::with_capacity(resources.len());
    for Any { type_url, value } in resources {
        if type_url != TYPE_URL {
            return Err(format!("a resource is of type '{type_url}', not '{TYPE_URL}'"));
        }
        let config = RateLimitConfig::decode(value.as_slice());
        configs.push(config.map_err(|error| format!("a resource cannot be decoded: {error}"))?);
    }
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    Limits::of_configs(&configs, options)
}

fn explained(status: &Status) -> String {
    let hint = if status.code() == Code::OutOfRange { " (XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES)" } else { "" };
    format!("{:?}: {}{hint}", status.code(), status.message())
}
