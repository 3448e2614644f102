//! The web page without a server: the answers of `weir ui` about a text, compiled to WebAssembly.
//!
//! ```text
//!  page ── JSON ──► abi ──► Playground::answer ──► Page (weir-view) ──► JSON ──► page
//! ```
//!
//! *Invariant*: the module imports nothing, so it cannot send, store or read anything. `cargo xtask
//! playground` writes the page.

#[cfg(target_arch = "wasm32")]
mod abi;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_api::{ManifestReader, PodDetails};
use weir_view::{
    explain::Clusters,
    failure::Failure,
    loaded::Loaded,
    page::{Page, PageError, PageOptions, PageRequest},
};

/// The name of the text in findings.
const FILE: &str = "manifests";
/// The longest text, in bytes, as for `weir ui`.
const MAX_TEXT: usize = 4 << 20;

/// A request of the page.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
enum Request {
    /// Shows the manifests of a text.
    Open { text: String },
    /// A request as to `weir ui`.
    #[serde(untagged)]
    About(PageRequest),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Response {
    Answer(Value),
    #[serde(untagged)]
    Failed(PageError),
}

/// The page about the last text that could be read.
#[derive(Default)]
pub struct Playground {
    page: Option<Page>,
}

impl Playground {
    /// Answers a request in JSON with `{"answer": …}` or `{"error": …, "hint": …}`.
    pub fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let response = match self.try_answer(request) {
            Ok(answer) => Response::Answer(answer),
            Err(failure) => Response::Failed(PageError::from(&failure)),
        };
        serde_json::to_vec(&response).unwrap_or_default()
    }

    fn try_answer(&mut self, request: &[u8]) -> Result<Value, Failure> {
        let request: Request = serde_json::from_slice(request).map_err(|error| {
            let what = format!("the request cannot be read: {error}");
            Failure::new(what, "reload the page in the browser")
        })?;
        match request {
            Request::Open { text } => {
                let page = self.page.insert(open(&text)?);
                Ok(page.overview(None))
            }
            Request::About(request) => {
                let page = self.page.as_ref().ok_or_else(|| {
                    Failure::new("there are no manifests yet", "paste or drop manifests")
                })?;
                // The page shows no observed traffic.
                page.answer(&request).unwrap_or_else(|| Ok(json!({"available": false})))
            }
        }
    }
}

fn open(text: &str) -> Result<Page, Failure> {
    if text.len() > MAX_TEXT {
        let what = format!("the text has more than {} MiB", MAX_TEXT >> 20);
        return Err(Failure::new(what, "run `weir ui -f PATH` for large input"));
    }
    let mut reader = ManifestReader::new().with_pod_details(PodDetails::Ports);
    reader.read_file(FILE.into(), text.as_bytes());
    let loaded = Loaded::from(reader.finish());
    if let Some(finding) = loaded.missing.first() {
        let line = finding.location.as_ref().map(|location| format!("line {}: ", location.line));
        let more = match loaded.missing.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more problems)"),
        };
        let what = format!("{}{}{more}", line.unwrap_or_default(), finding.message);
        return Err(Failure::new(what, finding.hint.clone()));
    }
    let options = PageOptions {
        title: "playground".to_owned(),
        namespace: None,
        pod_cidrs: Vec::new(),
        ingress_controllers: Vec::new(),
        clusters: Clusters::One,
        ignore: Vec::new(),
        // Only entries of weir.yaml can expire, and a text has none.
        today: Date::ZERO,
    };
    Page::new(loaded, options, |_, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(playground: &mut Playground, request: &Value) -> Value {
        serde_json::from_slice(&playground.answer(request.to_string().as_bytes())).unwrap()
    }

    const SHOP: &str = include_str!("../../../../examples/shop/manifests/policies/shop.yaml");

    #[test]
    fn a_text_is_answered_like_a_folder() {
        let mut playground = Playground::default();
        let explain =
            json!({"kind": "explain", "from": "shop/a", "to": "shop/b", "port": "80/TCP"});
        let early = ask(&mut playground, &explain);
        assert_eq!(early["error"], "there are no manifests yet");
        let text = "
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: shop, labels: {app: b}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: lock, namespace: shop}
spec: {podSelector: {matchLabels: {app: b}}}
";
        let overview = ask(&mut playground, &json!({"kind": "open", "text": text}));
        assert_eq!(overview["answer"]["counts"]["policies"], 1, "{overview}");
        let explained = ask(&mut playground, &explain);
        assert_eq!(explained["answer"]["verdict"], "deny", "{explained}");
        let add = explained["answer"]["remedy"]["add"][0].as_str().unwrap();
        let what_if = json!({"kind": "whatIf", "text": add, "remove": []});
        let effect = ask(&mut playground, &what_if);
        assert_eq!(effect["answer"]["diff"]["opened"][0]["to"], json!(["shop/b"]), "{effect}");
        let flows = ask(&mut playground, &json!({"kind": "flows", "after": 0}));
        assert_eq!(flows["answer"]["available"], false);
    }

    #[test]
    fn a_text_that_cannot_be_read_keeps_the_last_page() {
        let mut playground = Playground::default();
        ask(&mut playground, &json!({"kind": "open", "text": SHOP}));
        let broken = "kind: NetworkPolicy\nspec: [\n";
        let failed = ask(&mut playground, &json!({"kind": "open", "text": broken}));
        assert!(failed["error"].as_str().unwrap().starts_with("line "), "{failed}");
        assert_ne!(failed["hint"], "", "{failed}");
        let policies = ask(&mut playground, &json!({"kind": "policies"}));
        assert_ne!(policies["answer"]["policies"], json!([]), "{policies}");
        let long = "#".repeat(MAX_TEXT + 1);
        let failed = ask(&mut playground, &json!({"kind": "open", "text": long}));
        assert_eq!(failed["error"], "the text has more than 4 MiB");
        let unknown = ask(&mut playground, &json!({"kind": "delete"}));
        assert!(unknown["error"].as_str().unwrap().contains("cannot be read"), "{unknown}");
    }

    #[test]
    fn an_empty_text_has_an_empty_page() {
        let overview = ask(&mut Playground::default(), &json!({"kind": "open", "text": ""}));
        assert_eq!(overview["answer"]["counts"]["pods"], 0, "{overview}");
    }
}
