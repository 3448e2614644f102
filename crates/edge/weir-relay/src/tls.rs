//! The certificate of the server, read again when its files change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::sleep};
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::{TLS12, TLS13},
};

/// How often the files are compared with the certificate in use.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the certificate {} with the key {}", certificate.display(), key.display())]
pub struct CertificateError {
    certificate: PathBuf,
    key: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A certificate chain and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, and those of intermediate authorities.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

type Contents = (Vec<u8>, Vec<u8>);

impl CertificateFiles {
    /// Reads both files.
    pub(crate) fn load(&self) -> Result<(Arc<ServerConfig>, Contents), CertificateError> {
        let loaded = self.read().map_err(Into::into).and_then(|contents| {
            let config = config(&contents)?;
            Ok((config, contents))
        });
        loaded.map_err(|source| CertificateError {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }

    fn read(&self) -> io::Result<Contents> {
        let read = |path: &Path| fs::read(path);
        Ok((read(&self.certificate)?, read(&self.key)?))
    }

    /// Replaces the configuration whenever the files have other contents. An invalid file changes
    /// nothing.
    pub(crate) async fn follow(
        &self,
        mut contents: Contents,
        configs: watch::Sender<Arc<ServerConfig>>,
    ) {
        loop {
            sleep(RELOAD_INTERVAL).await;
            if self.read().is_ok_and(|now| now == contents) {
                continue;
            }
            match self.load() {
                Ok((config, now)) => {
                    tracing::info!("read the certificate again");
                    configs.send_replace(config);
                    contents = now;
                }
                Err(error) => tracing::warn!(%error, "the old certificate stays in use"),
            }
        }
    }
}

fn config(
    (certificate, key): &Contents,
) -> Result<Arc<ServerConfig>, Box<dyn std::error::Error + Send + Sync>> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err("it contains no certificate".into());
    }
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_protocol_versions(&[&TLS13, &TLS12])?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
