//! The control plane to follow, and how to connect.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::protobuf::value::Kind;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error, Identity};

use super::{read, Settings};
use crate::messages::{Struct, Value};

/// The time for a connection, with its handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A peer that is gone without a word is noticed after a minute. Pings of HTTP/2 would be refused: servers allow few.
const ASK_PEER_EVERY: Duration = Duration::from_secs(15);

/// A control plane.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    /// `host:port`.
    pub address: String,
    /// Who asks.
    pub node: Node,
    /// Sent with the stream.
    pub headers: MetadataMap,
    /// The longest message.
    pub most_bytes: usize,
    tls: Option<Tls>,
}

/// Paths of certificates, read for each connection.
#[derive(Clone, Debug)]
struct Tls {
    identity: Option<(String, String)>,
    authorities: String,
    /// To verify instead of the host.
    name: String,
}

impl ControlPlane {
    /// Connects.
    ///
    /// # Errors
    ///
    /// One line: why it cannot.
    pub async fn connect(&self) -> Result<Channel, String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let failed = |error: Error| format!("cannot connect: {}", causes(&error));
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.address)).map_err(failed)?;
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.config()?).map_err(failed)?;
        }
        let endpoint = endpoint.connect_timeout(CONNECT_WITHIN).tcp_keepalive(Some(ASK_PEER_EVERY));
        let endpoint = endpoint.tcp_keepalive_interval(Some(ASK_PEER_EVERY)).tcp_keepalive_retries(Some(3));
        endpoint.connect().await.map_err(failed)
    }
}

impl Tls {
    fn config(&self) -> Result<ClientTlsConfig, String> {
        let mut config = ClientTlsConfig::new().with_native_roots();
        if !self.authorities.is_empty() {
            let authorities = read("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &self.authorities)?;
            config = config.ca_certificate(Certificate::from_pem(authorities));
        }
        if let Some((chain, key)) = &self.identity {
            let chain = read("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", chain)?;
            config = config.identity(Identity::from_pem(chain, read("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key)?));
        }
        Ok(if self.name.is_empty() { config } else { config.domain_name(&self.name) })
    }
}

impl Settings {
    /// Returns the control plane. Connects later.
    ///
    /// # Errors
    ///
    /// One line: which variable is wrong.
    pub fn control_plane(&self) -> Result<ControlPlane, String> {
        let id = self.config_grpc_xds_node_id.clone();
        let metadata = Some(metadata(&self.config_grpc_xds_node_metadata));
        Ok(ControlPlane {
            address: address(&self.config_grpc_xds_server_url)?,
            node: Node { id, metadata, ..Node::default() },
            headers: headers(&self.config_grpc_xds_client_additional_headers)?,
            most_bytes: self.xds_client_max_msg_size_in_bytes,
            tls: if self.config_grpc_xds_server_use_tls { Some(self.control_plane_tls()?) } else { None },
        })
    }

    fn control_plane_tls(&self) -> Result<Tls, String> {
        let [cert, key] = [&self.config_grpc_xds_client_tls_cert, &self.config_grpc_xds_client_tls_key];
        let identity = match (cert.is_empty(), key.is_empty()) {
            (true, true) => None,
            (false, false) => Some((cert.clone(), key.clone())),
            _ => {
                return Err(
                    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY need each other"
                        .to_owned(),
                )
            }
        };
        let authorities = self.config_grpc_xds_server_tls_cacert.clone();
        Ok(Tls { identity, authorities, name: self.config_grpc_xds_server_tls_san.clone() })
    }
}

/// Reads `host:port`, also behind `dns:///`.
fn address(url: &str) -> Result<String, String> {
    let wrong = || format!("CONFIG_GRPC_XDS_SERVER_URL={url}: must be host:port");
    let address = url.strip_prefix("dns:///").unwrap_or(url);
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains([':', '/', '@']));
    match port.parse::<u16>() {
        Ok(1..) if is_host => Ok(address.to_owned()),
        _ => Err(wrong()),
    }
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
            let name = AsciiMetadataKey::from_bytes(name.trim().to_ascii_lowercase().as_bytes()).ok()?;
            Some((name, value.trim().parse::<AsciiMetadataValue>().ok()?))
        });
        let wrong = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be name:value, with commas between";
        let (name, value) = header.ok_or(wrong)?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns what an error of the transport hides.
fn causes(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
