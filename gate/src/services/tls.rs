//! TLS of the gRPC server. New certificates are used without a restart.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    client, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio_rustls::TlsAcceptor;

use crate::settings::Settings;

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Paths {
    chain: PathBuf,
    key: PathBuf,
    authorities: Option<PathBuf>,
    client_name: Option<String>,
}

/// The contents of the files: certificates, key, authorities.
type Texts = [Vec<u8>; 3];

/// The certificates in use.
pub struct Tls {
    paths: Paths,
    read: Mutex<Texts>,
    config: ArcSwap<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what was read: that has the key.
        f.debug_struct("Tls").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the certificates, if TLS is switched on.
    ///
    /// # Errors
    ///
    /// One line that names variable and file.
    pub fn read(settings: &Settings) -> Result<Option<Self>, String> {
        if !settings.grpc_server_use_tls {
            return Ok(None);
        }
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let paths = Paths {
            chain: PathBuf::from(&settings.grpc_server_tls_cert),
            key: PathBuf::from(&settings.grpc_server_tls_key),
            authorities: some(&settings.grpc_client_tls_cacert).map(PathBuf::from),
            client_name: some(&settings.grpc_client_tls_san),
        };
        let texts = paths.read()?;
        let config = ArcSwap::from_pointee(paths.config(&texts)?);
        Ok(Some(Self { paths, read: Mutex::new(texts), config }))
    }

    /// Returns the files that it reads.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.paths.chain, &self.paths.key].into_iter().chain(&self.paths.authorities)
    }

    /// Returns the certificates for the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Reads the files again, and uses them from the next connection on. Returns whether there was anything new.
    ///
    /// # Errors
    ///
    /// One line; the certificates in use stay.
    pub fn reload(&self) -> Result<bool, String> {
        let texts = self.paths.read()?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == texts {
            return Ok(false);
        }
        let config = self.paths.config(&texts);
        // A certificate whose key is not there yet is read again when the key comes, not before.
        *read = texts;
        self.config.store(Arc::new(config?));
        Ok(true)
    }
}

impl Paths {
    fn read(&self) -> Result<Texts, String> {
        let text = |variable: &str, path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("{variable}={}: {error}", path.display()))
        };
        Ok([
            text("GRPC_SERVER_TLS_CERT", &self.chain)?,
            text("GRPC_SERVER_TLS_KEY", &self.key)?,
            match &self.authorities {
                Some(path) => text("GRPC_CLIENT_TLS_CACERT", path)?,
                None => Vec::new(),
            },
        ])
    }

    fn config(&self, [chain, key, authorities]: &Texts) -> Result<ServerConfig, String> {
        let chain = certificates("GRPC_SERVER_TLS_CERT", &self.chain, chain)?;
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| format!("GRPC_SERVER_TLS_KEY={}: {error}", self.key.display()))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = match &self.authorities {
            Some(path) => {
                let authorities = certificates("GRPC_CLIENT_TLS_CACERT", path, authorities)?;
                builder.with_client_cert_verifier(self.verifier(path, authorities)?)
            }
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(chain, key);
        let mut config =
            config.map_err(|error| format!("GRPC_SERVER_TLS_CERT={}: {error}", self.chain.display()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn verifier(
        &self,
        path: &std::path::Path,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let wrong = |error: &dyn fmt::Display| format!("GRPC_CLIENT_TLS_CACERT={}: {error}", path.display());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| wrong(&error))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| wrong(&error))?;
        let Some(name) = &self.client_name else { return Ok(verifier) };
        let name = ServerName::try_from(name.clone())
            .map_err(|_| format!("GRPC_CLIENT_TLS_SAN={name}: must be a host name or an address"))?;
        Ok(Arc::new(Named { verifier, name }))
    }
}

fn certificates(
    variable: &str,
    path: &std::path::Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(format!("{variable}={}: no certificate", path.display())),
        Err(error) => Err(format!("{variable}={}: {error}", path.display())),
    }
}

/// Wants the certificate of the client to have a name (`GRPC_CLIENT_TLS_SAN`).
#[derive(Debug)]
struct Named {
    verifier: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, intermediates, now)?;
        client::verify_server_name(&ParsedCertificate::try_from(certificate)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
