use std::path::Path;
use std::process::Command;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::gate::{request, wait_until, Gate, Setup};
use crate::servers::Server;
use crate::{started, TWO};

pub fn openssl(folder: &Path, words: &str) {
    let output =
        Command::new("openssl").args(words.split(' ')).current_dir(folder).output().expect("openssl");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate NAME.pem with NAME.key for a host, signed by ca.pem.
pub fn sign(folder: &Path, name: &str, host: &str) {
    std::fs::write(folder.join("ext"), format!("subjectAltName=DNS:{host}\n")).expect("a file");
    openssl(folder, &format!("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.new -out csr -subj /CN={host}"));
    openssl(
        folder,
        &format!(
            "x509 -req -in csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out {name}.crt -extfile ext"
        ),
    );
    std::fs::rename(folder.join(format!("{name}.new")), folder.join(format!("{name}.key"))).expect("a file");
    std::fs::rename(folder.join(format!("{name}.crt")), folder.join(format!("{name}.pem"))).expect("a file");
}

pub fn authority(folder: &Path) {
    openssl(folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test");
}

fn tls(folder: &Path, host: &str, identity: Option<&str>) -> ClientTlsConfig {
    let read = |name: &str| std::fs::read(folder.join(name)).expect("a file");
    let config =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem"))).domain_name(host);
    match identity {
        Some(name) => {
            config.identity(Identity::from_pem(read(&format!("{name}.pem")), read(&format!("{name}.key"))))
        }
        None => config,
    }
}

/// Returns whether the gate answers a call on a new connection.
async fn is_answered(gate: &Gate, config: ClientTlsConfig) -> bool {
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", gate.grpc)).expect("a URL");
    let Ok(channel) = endpoint.tls_config(config).expect("a configuration").connect().await else {
        return false;
    };
    let call = RateLimitServiceClient::<Channel>::new(channel)
        .should_rate_limit(request("d", &[&[("key", "a")]]))
        .await;
    call.is_ok()
}

/// Clients need a certificate that the authority signed, with the name that is asked for. A new certificate of the server is used
/// for the next connection, without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn serves_tls_and_new_certificates() {
    let redis = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    std::fs::create_dir_all(path.join("root/config")).expect("a folder");
    std::fs::write(path.join("root/config/two.yaml"), TWO).expect("a file");
    authority(path);
    for (name, host) in [("server", "one.example"), ("envoy", "envoy.example"), ("other", "other.example")] {
        sign(path, name, host);
    }
    let setup = Setup::redis(&redis.url()).set("GRPC_SERVER_USE_TLS", "true").set("SHADOW_MODE", "true");
    let setup = setup.set("GRPC_SERVER_TLS_CERT", "server.pem").set("GRPC_SERVER_TLS_KEY", "server.key");
    let setup = setup.set("GRPC_CLIENT_TLS_CACERT", "ca.pem").set("GRPC_CLIENT_TLS_SAN", "envoy.example");
    let gate = setup.start_in(folder);
    gate.wait_until_healthy();
    let path = gate.folder.path();
    assert!(is_answered(&gate, tls(path, "one.example", Some("envoy"))).await);
    assert!(!is_answered(&gate, tls(path, "one.example", Some("other"))).await, "another name");
    assert!(!is_answered(&gate, tls(path, "one.example", None)).await, "no certificate");
    assert!(!is_answered(&gate, tls(path, "two.example", Some("envoy"))).await, "not this host");

    sign(path, "server", "two.example");
    gate.wait_for_line("loaded certificates");
    assert!(is_answered(&gate, tls(path, "two.example", Some("envoy"))).await);

    // What cannot be used is not: the one in use stays.
    std::fs::write(path.join("server.pem"), "nothing").expect("a file");
    gate.wait_for_line("GRPC_SERVER_TLS_CERT=server.pem: no certificate; the certificates in use stay");
    assert!(is_answered(&gate, tls(path, "two.example", Some("envoy"))).await);
}

/// gRPC on a Unix socket. The file of a gate that was killed is no obstacle, and it is gone after an end.
#[tokio::test(flavor = "multi_thread")]
async fn serves_a_unix_socket() {
    let (_redis, mut gate) = started(&[("GRPC_UDS", "socket")]);
    gate.kill();
    gate.start_again();
    gate.wait_until_healthy();
    let path = gate.folder.path().join("socket");
    let channel = Endpoint::from_shared(format!("unix:{}", path.display())).expect("a URL").connect().await;
    let mut client = RateLimitServiceClient::new(channel.expect("a connection"));
    client.should_rate_limit(request("d", &[&[("key", "a")]])).await.expect("a reply");
    gate.signal("TERM");
    gate.wait_for_end();
    wait_until("no file", || !path.exists());
}
