//! TLS of the gRPC server. New certificates are used without a restart.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::TlsAcceptor;

use crate::settings::Settings;

/// A file of certificates or of a key, and the variable that names it.
struct Pem {
    variable: &'static str,
    path: PathBuf,
}

impl Pem {
    fn new(variable: &'static str, path: &str) -> Self {
        Self { variable, path: path.into() }
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.path).map_err(|error| self.wrong(error))
    }

    fn certificates(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        match certificates {
            Ok(certificates) if certificates.is_empty() => Err(self.wrong("no certificate")),
            certificates => certificates.map_err(|error| self.wrong(error)),
        }
    }

    fn wrong(&self, problem: impl Display) -> String {
        format!("{}={}: {problem}", self.variable, self.path.display())
    }
}

struct Files {
    chain: Pem,
    key: Pem,
    authorities: Option<Pem>,
    /// The name that the certificate of a client must have (`GRPC_CLIENT_TLS_SAN`).
    client_name: Option<ServerName<'static>>,
}

/// The contents of the files: certificates, key, authorities.
type Texts = [Vec<u8>; 3];

pub struct Tls {
    files: Files,
    read: Mutex<Texts>,
    config: ArcSwap<ServerConfig>,
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
        let name = |name: String| {
            let wrong = format!("GRPC_CLIENT_TLS_SAN={name}: must be a host name or an address");
            ServerName::try_from(name).map_err(|_| wrong)
        };
        let files = Files {
            chain: Pem::new("GRPC_SERVER_TLS_CERT", &settings.grpc_server_tls_cert),
            key: Pem::new("GRPC_SERVER_TLS_KEY", &settings.grpc_server_tls_key),
            authorities: some(&settings.grpc_client_tls_cacert)
                .map(|path| Pem::new("GRPC_CLIENT_TLS_CACERT", &path)),
            client_name: some(&settings.grpc_client_tls_san).map(name).transpose()?,
        };
        let texts = files.read()?;
        let config = ArcSwap::from_pointee(files.config(&texts)?);
        Ok(Some(Self { files, read: Mutex::new(texts), config }))
    }

    /// Returns the files that it reads.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let Files { chain, key, authorities, .. } = &self.files;
        [chain, key].into_iter().chain(authorities).map(|file| &file.path)
    }

    /// Returns a connection of a client that may connect.
    pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let stream = TlsAcceptor::from(self.config.load_full()).accept(stream).await?;
        if let Some(name) = &self.files.client_name {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            verify_name(chain, name).map_err(io::Error::other)?;
        }
        Ok(stream)
    }

    /// Reads the files again, and uses them from the next connection on. Returns whether there was anything new.
    ///
    /// # Errors
    ///
    /// One line; the certificates in use stay.
    pub fn reload(&self) -> Result<bool, String> {
        let texts = self.files.read()?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == texts {
            return Ok(false);
        }
        let config = self.files.config(&texts);
        // A certificate whose key is not there yet is read again when the key comes, not before.
        *read = texts;
        self.config.store(Arc::new(config?));
        Ok(true)
    }
}

impl Files {
    fn read(&self) -> Result<Texts, String> {
        let (chain, key) = (self.chain.read()?, self.key.read()?);
        Ok([chain, key, self.authorities.as_ref().map_or(Ok(Vec::new()), Pem::read)?])
    }

    fn config(&self, [chain, key, authorities]: &Texts) -> Result<ServerConfig, String> {
        let chain = self.chain.certificates(chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| self.key.wrong(error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = match &self.authorities {
            Some(file) => builder.with_client_cert_verifier(verifier(file, authorities)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| self.chain.wrong(error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn verifier(file: &Pem, text: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for authority in file.certificates(text)? {
        roots.add(authority).map_err(|error| file.wrong(error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map_err(|error| file.wrong(error))
}

fn verify_name(chain: &[CertificateDer<'_>], name: &ServerName<'_>) -> Result<(), Error> {
    let certificate = chain.first().ok_or(Error::NoCertificatesPresented)?;
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
}
