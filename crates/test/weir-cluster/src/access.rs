use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::json;

/// How somebody reaches the API server, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The address of the API server.
    pub url: String,
    /// The certificates to trust, as PEM.
    pub ca: String,
    /// The token to show.
    pub token: String,
}

impl Access {
    /// The same through another door.
    #[must_use]
    pub fn through(&self, address: std::net::SocketAddr) -> Self {
        Access { url: format!("https://{address}"), ..self.clone() }
    }

    /// Writes a kubeconfig whose token is in a file of its own beside it, as `token`, so that it can be replaced.
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

/// Something that a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resources, in the plural.
    pub resources: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
}
