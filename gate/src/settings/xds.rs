//! The control plane to follow, and how to connect.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::protobuf::value::Kind;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

use super::redis::read;
use super::Settings;
use crate::messages::{Struct, Value};

/// The time for a connection, with its handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A peer that is gone without a word is noticed after a minute. Pings of HTTP/2 would be refused: servers allow few.
const ASK_PEER_EVERY: Duration = Duration::from_secs(15);

pub struct ControlPlane {
    /// `host:port`.
    pub address: String,
    /// This gate, as the control plane knows it.
    pub node: Node,
    /// Sent with the stream.
    pub headers: MetadataMap,
    pub settings: Settings,
}

impl ControlPlane {
    /// Connects, with the certificates that are there now.
    ///
    /// # Errors
    ///
    /// One line: why it cannot.
    pub async fn connect(&self) -> Result<Channel, String> {
        let has_tls = self.settings.config_grpc_xds_server_use_tls;
        let failed = |error: Error| format!("cannot connect: {}", causes(&error));
        let scheme = if has_tls { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address)).map_err(failed)?;
        if has_tls {
            endpoint = endpoint.tls_config(self.settings.control_plane_tls()?).map_err(failed)?;
        }
        let endpoint = endpoint.connect_timeout(CONNECT_WITHIN).tcp_keepalive(Some(ASK_PEER_EVERY));
        let endpoint = endpoint.tcp_keepalive_interval(Some(ASK_PEER_EVERY)).tcp_keepalive_retries(Some(3));
        endpoint.connect().await.map_err(failed)
    }
}

/// Returns what an error of the transport hides.
fn causes(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl Settings {
    /// Returns the control plane. Connects later.
    ///
    /// # Errors
    ///
    /// One line: which variable is wrong.
    pub fn control_plane(&self) -> Result<ControlPlane, String> {
        if self.config_grpc_xds_client_tls_cert.is_empty() != self.config_grpc_xds_client_tls_key.is_empty() {
            return Err("CONFIG_GRPC_XDS_CLIENT_TLS_CERT and _KEY need each other".to_owned());
        }
        let metadata = Some(metadata(&self.config_grpc_xds_node_metadata));
        Ok(ControlPlane {
            address: address(&self.config_grpc_xds_server_url)?,
            node: Node { id: self.config_grpc_xds_node_id.clone(), metadata, ..Node::default() },
            headers: headers(&self.config_grpc_xds_client_additional_headers)?,
            settings: self.clone(),
        })
    }

    fn control_plane_tls(&self) -> Result<ClientTlsConfig, String> {
        let mut config = ClientTlsConfig::new().with_native_roots();
        if !self.config_grpc_xds_server_tls_cacert.is_empty() {
            let file = read("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &self.config_grpc_xds_server_tls_cacert)?;
            config = config.ca_certificate(Certificate::from_pem(file));
        }
        if !self.config_grpc_xds_client_tls_cert.is_empty() {
            let chain = read("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &self.config_grpc_xds_client_tls_cert)?;
            let key = read("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &self.config_grpc_xds_client_tls_key)?;
            config = config.identity(Identity::from_pem(chain, key));
        }
        let name = &self.config_grpc_xds_server_tls_san;
        Ok(if name.is_empty() { config } else { config.domain_name(name) })
    }
}

/// Reads `host:port`, also behind `dns:///`.
fn address(url: &str) -> Result<String, String> {
    let address = url.strip_prefix("dns:///").unwrap_or(url);
    let is_valid = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', '@']) && port.parse::<u16>().is_ok()
    });
    let wrong = || format!("CONFIG_GRPC_XDS_SERVER_URL={url}: must be host:port");
    is_valid.then(|| address.to_owned()).ok_or_else(wrong)
}

/// Reads `key=value,…` as envoyproxy/ratelimit does: a part without `=` is skipped.
fn metadata(text: &str) -> Struct {
    let pairs = text.split(',').filter_map(|part| part.split_once('='));
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    Struct { fields: pairs.map(|(key, text)| (key.to_owned(), value(text))).collect() }
}

/// Reads `name:value,…`. Errors do not quote it: it may have a secret.
fn headers(text: &str) -> Result<MetadataMap, String> {
    let mut headers = MetadataMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let header = part.split_once(':').and_then(|(name, value)| {
            let name: AsciiMetadataKey = name.trim().parse().ok()?;
            Some((name, value.trim().parse::<AsciiMetadataValue>().ok()?))
        });
        let wrong = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be name:value, with commas between";
        let (name, value) = header.ok_or(wrong)?;
        headers.append(name, value);
    }
    Ok(headers)
}
