//! The files of the page, as the binary contains them.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Its path on the server.
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $kind:expr) => {
        Asset { path: $path, content_type: $kind, text: include_str!(concat!("../assets", $path)) }
    };
}

/// All files. A script comes after the scripts that it imports.
pub(crate) const ALL: [Asset; 20] = [
    asset!("/index.html", HTML),
    asset!("/style.css", CSS),
    asset!("/views.css", CSS),
    asset!("/icon.svg", SVG),
    asset!("/dom.js", SCRIPT),
    asset!("/wasm.js", SCRIPT),
    asset!("/api.js", SCRIPT),
    asset!("/link.js", SCRIPT),
    asset!("/model.js", SCRIPT),
    asset!("/explain.js", SCRIPT),
    asset!("/layout.js", SCRIPT),
    asset!("/map.js", SCRIPT),
    asset!("/matrix.js", SCRIPT),
    asset!("/policies.js", SCRIPT),
    asset!("/whatif.js", SCRIPT),
    asset!("/live.js", SCRIPT),
    asset!("/flows.js", SCRIPT),
    asset!("/drops.js", SCRIPT),
    asset!("/playground.js", SCRIPT),
    asset!("/app.js", SCRIPT),
];

/// The file at a path; `/` is the page.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    let path = if path == "/" { "/index.html" } else { path };
    ALL.iter().find(|asset| asset.path == path)
}
