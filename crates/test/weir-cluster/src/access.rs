use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{StartError, api::Api};

/// The address and credentials for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The URL of the API server.
    pub url: String,
    /// The certificates to trust, as PEM.
    pub ca: String,
    /// The bearer token.
    pub token: String,
}

impl Access {
    /// The same credentials with another address.
    #[must_use]
    pub fn through(&self, address: std::net::SocketAddr) -> Self {
        Access { url: format!("https://{address}"), ..self.clone() }
    }

    /// Reads a path in a media type, possibly compressed, until the response ends, and discards it.
    /// Reports the length of each part.
    pub fn discard(
        &self,
        path: &str,
        media: &'static str,
        on_bytes: impl FnMut(usize),
    ) -> Result<(), StartError> {
        let api = Api::new(self).map_err(StartError::Api)?;
        api.discard(path, media, on_bytes).map_err(StartError::Api)
    }

    /// Reads a list of the latest state in pages of JSON with at most `limit` objects, without
    /// compression, and discards them.
    pub fn discard_pages(&self, path: &str, limit: usize) -> Result<(), StartError> {
        let api = Api::new(self).map_err(StartError::Api)?;
        api.discard_pages(path, limit).map_err(StartError::Api)
    }

    /// Writes a kubeconfig. The token is in a separate file `token` beside it, so that tests can replace
    /// it.
    pub fn write_kubeconfig(&self, folder: &Path) -> io::Result<PathBuf> {
        let (ca, token) = (folder.join("ca.pem"), folder.join("token"));
        fs::write(&ca, &self.ca)?;
        fs::write(&token, &self.token)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": ca}}],
            "users": [{"name": "test", "user": {"tokenFile": token}}],
        });
        let path = folder.join("kubeconfig");
        fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

/// A permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The plural names of the resources.
    pub resources: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
}
