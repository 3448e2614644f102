//! Who asks: the token of an agent's service account, reviewed by the API server.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use weir_kube::ApiClient;

/// The audience that agents' tokens for relays must have. The API server does not accept such a token,
/// so a relay cannot act as an agent.
pub const AUDIENCE: &str = "weir-relay";
/// The part of a user in which the API server names the node of a pod, since Kubernetes 1.30.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The longest token.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// How long a review counts.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
const REJECTED_FOR: Duration = Duration::from_secs(10);
/// The most reviews that are remembered.
const MAX_REVIEWS: usize = 4096;
/// The most reviews that are under way. Other requests wait.
const MAX_CONCURRENT_REVIEWS: usize = 8;

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error("the token is missing, or is not valid for the audience {AUDIENCE}")]
    Unauthenticated,
    #[error("{0}")]
    Forbidden(String),
    #[error("the API server does not review tokens at the moment")]
    Unavailable,
}

/// The user of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reviewed {
    user: String,
    /// The node of the pod that the token is bound to, if the API server names it.
    node: Option<String>,
}

/// A result, and until when it counts.
type KnownReview = (Instant, Option<Reviewed>);

/// Reviews tokens, and remembers the results for a short time.
pub(crate) struct Authenticator {
    client: ApiClient,
    /// The user of all agents.
    user: String,
    /// The results by the digest of the token.
    known: Mutex<HashMap<[u8; 32], KnownReview>>,
    places: Semaphore,
}

impl Authenticator {
    /// `account` is the service account of the agents, as `NAMESPACE/NAME`.
    pub(crate) fn new(client: ApiClient, account: &str) -> Self {
        let user = format!("system:serviceaccount:{}", account.replace('/', ":"));
        let places = Semaphore::new(MAX_CONCURRENT_REVIEWS);
        Authenticator { client, user, known: Mutex::default(), places }
    }

    /// Checks that a token is that of an agent, and that the agent may ask for a node.
    pub(crate) async fn check(&self, header: Option<&str>, node: &str) -> Result<(), Denied> {
        let token = header.and_then(|header| header.strip_prefix("Bearer "));
        let token = token.map(str::trim).filter(|token| !token.is_empty());
        let token = token.filter(|token| token.len() <= MAX_TOKEN_BYTES);
        let token = token.filter(|token| names_audience(token)).ok_or(Denied::Unauthenticated)?;
        let digest: [u8; 32] = Sha256::digest(token).into();
        let reviewed = match self.known(&digest) {
            Some(reviewed) => reviewed,
            None => {
                let _place = self.places.acquire().await.map_err(|_| Denied::Unavailable)?;
                match self.known(&digest) {
                    Some(reviewed) => reviewed,
                    None => self.review(token, digest).await?,
                }
            }
        };
        authorize(&reviewed.ok_or(Denied::Unauthenticated)?, &self.user, node)
    }

    fn known(&self, digest: &[u8; 32]) -> Option<Option<Reviewed>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, reviewed) = known.get(digest)?;
        (Instant::now() < *until).then(|| reviewed.clone())
    }

    async fn review(&self, token: &str, digest: [u8; 32]) -> Result<Option<Reviewed>, Denied> {
        let spec =
            TokenReviewSpec { audiences: Some(vec![AUDIENCE.into()]), token: Some(token.into()) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = self.client.request("create", "tokenreviews", |client| async move {
            Api::<TokenReview>::all(client).create(&PostParams::default(), &review).await
        });
        let answer = answer.await.map_err(|error| {
            tracing::warn!(error = error.text(), "cannot review a token");
            Denied::Unavailable
        })?;
        let reviewed = answer.status.and_then(reviewed);
        let lasts = if reviewed.is_some() { ACCEPTED_FOR } else { REJECTED_FOR };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if known.len() >= MAX_REVIEWS {
            known.retain(|_, (until, _)| now < *until);
        }
        make_place(&mut known);
        known.insert(digest, (now + lasts, reviewed.clone()));
        Ok(reviewed)
    }
}

/// Forgets reviews if there are too many. Those of rejected tokens go first, because anyone can cause
/// them.
fn make_place(known: &mut HashMap<[u8; 32], KnownReview>) {
    if known.len() >= MAX_REVIEWS {
        known.retain(|_, (_, reviewed)| reviewed.is_some());
    }
    if known.len() >= MAX_REVIEWS {
        known.clear();
    }
}

/// Whether a token states that it is for relays. The API server checks whether that is true: this only
/// spares it tokens that are for others, and text that is no token.
fn names_audience(token: &str) -> bool {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let payload = URL_SAFE_NO_PAD.decode(payload).ok();
    let claims = payload.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    match claims.as_ref().and_then(|claims| claims.get("aud")) {
        Some(Value::String(one)) => one == AUDIENCE,
        Some(Value::Array(all)) => all.iter().any(|one| one == AUDIENCE),
        _ => false,
    }
}

/// The user, if the API server has checked the audience.
fn reviewed(status: TokenReviewStatus) -> Option<Reviewed> {
    let is_meant = status.audiences.is_some_and(|all| all.iter().any(|one| one == AUDIENCE));
    let is_valid = status.authenticated == Some(true) && is_meant;
    let user = status.user.filter(|_| is_valid)?;
    let node = user.extra.and_then(|mut extra| extra.remove(NODE_NAME));
    Some(Reviewed { user: user.username?, node: node.and_then(|names| names.into_iter().next()) })
}

fn authorize(reviewed: &Reviewed, user: &str, node: &str) -> Result<(), Denied> {
    if reviewed.user != user {
        return Err(Denied::Forbidden(format!("{} is not the agents' account", reviewed.user)));
    }
    match &reviewed.node {
        Some(own) if own != node => {
            Err(Denied::Forbidden(format!("the token is bound to the node {own}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn status(audience: &str, node: Option<&str>) -> TokenReviewStatus {
        let extra = node.map(|node| [(NODE_NAME.into(), vec![node.into()])].into());
        let username = Some("system:serviceaccount:kube-system:weir".into());
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec![audience.into()]),
            user: Some(UserInfo { username, extra, ..UserInfo::default() }),
            error: None,
        }
    }

    #[test]
    fn only_a_token_for_relays_is_reviewed() {
        let token = |claims: &str| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        for claims in [r#"{"aud":"weir-relay"}"#, r#"{"aud":["other","weir-relay"],"exp":1}"#] {
            assert!(names_audience(&token(claims)), "{claims}");
        }
        for claims in ["", "{}", "[]", r#"{"aud":["other"]}"#, r#"{"aud":7}"#, r#"{"aud":[[]]}"#] {
            assert!(!names_audience(&token(claims)), "{claims}");
        }
        let deep = format!(r#"{{"aud":{}"#, "[".repeat(5_000));
        for token in [token(&deep), "random".into(), "a.b.c".into(), "...".into(), "a.é.c".into()]
        {
            assert!(!names_audience(&token), "{token}");
        }
    }

    #[test]
    fn rejected_tokens_are_forgotten_before_accepted_ones() {
        let (now, accepted) = (Instant::now(), reviewed(status(AUDIENCE, None)));
        let mut known = HashMap::new();
        for number in 0..MAX_REVIEWS {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&(number as u64).to_be_bytes());
            known.insert(digest, (now, accepted.clone().filter(|_| number < 10)));
        }
        make_place(&mut known);
        assert_eq!(known.len(), 10);
        assert!(known.values().all(|(_, reviewed)| reviewed.is_some()));
    }

    #[test]
    fn a_token_counts_for_the_audience_the_account_and_the_node_that_it_names() {
        let user = "system:serviceaccount:kube-system:weir";
        let bound = reviewed(status(AUDIENCE, Some("n1"))).unwrap();
        assert_eq!(authorize(&bound, user, "n1"), Ok(()));
        assert!(matches!(authorize(&bound, user, "n2"), Err(Denied::Forbidden(_))));
        assert!(matches!(authorize(&bound, "another", "n1"), Err(Denied::Forbidden(_))));
        let unbound = reviewed(status(AUDIENCE, None)).unwrap();
        assert_eq!(authorize(&unbound, user, "n2"), Ok(()));
        assert_eq!(reviewed(status("another", Some("n1"))), None);
        let invalid = TokenReviewStatus { authenticated: Some(false), ..status(AUDIENCE, None) };
        assert_eq!(reviewed(invalid), None);
        // An API server without support for audiences does not return any.
        let old = TokenReviewStatus { audiences: None, ..status(AUDIENCE, None) };
        assert_eq!(reviewed(old), None);
    }
}
