//! Decides whether the server answers a request. No I/O.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use ring::{
    error::Unspecified,
    rand::{SecureRandom, SystemRandom},
};

/// The header with the token.
const TOKEN: HeaderName = HeaderName::from_static("weir-token");
/// Where a request comes from, according to the browser.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The headers of every response.
pub(crate) const RESPONSE_HEADERS: [(HeaderName, HeaderValue); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) status: StatusCode,
    pub(crate) error: &'static str,
    pub(crate) hint: &'static str,
}

const OPEN_ADDRESS: &str = "open the address that `weir ui` printed";
const NO_HOST: Rejection = Rejection {
    status: StatusCode::BAD_REQUEST,
    error: "the request does not have exactly one Host header",
    hint: OPEN_ADDRESS,
};
const OTHER_HOST: Rejection = Rejection {
    status: StatusCode::MISDIRECTED_REQUEST,
    error: "the request is for another host",
    hint: OPEN_ADDRESS,
};
const OTHER_ORIGIN: Rejection = Rejection {
    status: StatusCode::FORBIDDEN,
    error: "the request comes from another site",
    hint: OPEN_ADDRESS,
};
const NOT_JSON: Rejection = Rejection {
    status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
    error: "the request is not JSON",
    hint: "send the header `Content-Type: application/json`",
};
const NO_TOKEN: Rejection = Rejection {
    status: StatusCode::UNAUTHORIZED,
    error: "the token is missing or expired",
    hint: OPEN_ADDRESS,
};

/// The rules for requests.
#[derive(Clone, Debug)]
pub(crate) struct AccessRules {
    hosts: [String; 2],
    token: String,
}

impl AccessRules {
    /// The rules of a server on a port of loopback, with a new random token.
    pub(crate) fn new(port: u16) -> Result<Self, Unspecified> {
        let mut bytes = [0; 24];
        SystemRandom::new().fill(&mut bytes)?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(AccessRules { hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")], token })
    }

    /// The address of the page. A browser does not send the fragment, which contains the token.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/#token={}", self.hosts[0], self.token)
    }

    /// Rejects a request that names another server, as with DNS rebinding, or that another site
    /// sends.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        let host = single(headers, &header::HOST).ok_or(NO_HOST)?;
        if !self.hosts.iter().any(|own| host == own) {
            return Err(OTHER_HOST);
        }
        if headers.contains_key(header::ORIGIN) {
            let origin = single(headers, &header::ORIGIN).and_then(|o| o.strip_prefix("http://"));
            if origin != Some(host) {
                return Err(OTHER_ORIGIN);
            }
        }
        Ok(())
    }

    /// Rejects a request for data without the token.
    pub(crate) fn check_data(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        let site = headers.get(FETCH_SITE);
        if site.is_some_and(|site| site != "same-origin") {
            return Err(OTHER_ORIGIN);
        }
        let kind = single(headers, &header::CONTENT_TYPE);
        if kind != Some("application/json") {
            return Err(NOT_JSON);
        }
        let token = single(headers, &TOKEN).unwrap_or_default();
        if !is_equal(token.as_bytes(), self.token.as_bytes()) {
            return Err(NO_TOKEN);
        }
        Ok(())
    }
}

/// The value of a header that occurs exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// Compares in a time that does not depend on the content.
fn is_equal(one: &[u8], two: &[u8]) -> bool {
    let difference = one.iter().zip(two).fold(0, |all, (one, two)| all | (one ^ two));
    one.len() == two.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = list.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        // `collect` would keep only the last of equal names.
        pairs.fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append(name, value);
            map
        })
    }

    #[test]
    fn only_the_own_address_is_a_host() {
        let rules = AccessRules::new(1234).unwrap();
        let check = |list: &[(&'static str, &str)]| {
            rules.check(&headers(list)).err().map(|rejection| rejection.status)
        };
        assert_eq!(check(&[("host", "127.0.0.1:1234")]), None);
        assert_eq!(check(&[("host", "localhost:1234")]), None);
        for other in ["evil.example:1234", "127.0.0.1", "127.0.0.1:12345", "localhost.:1234", ""] {
            assert_eq!(check(&[("host", other)]), Some(StatusCode::MISDIRECTED_REQUEST), "{other}");
        }
        assert_eq!(check(&[]), Some(StatusCode::BAD_REQUEST));
        let twice = [("host", "127.0.0.1:1234"), ("host", "evil.example")];
        assert_eq!(check(&twice), Some(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn another_origin_is_rejected() {
        let rules = AccessRules::new(1234).unwrap();
        let check = |origin| {
            rules
                .check(&headers(&[("host", "127.0.0.1:1234"), ("origin", origin)]))
                .err()
                .map(|rejection| rejection.status)
        };
        assert_eq!(check("http://127.0.0.1:1234"), None);
        for other in ["http://localhost:1234", "https://127.0.0.1:1234", "null", "http://a.example"]
        {
            assert_eq!(check(other), Some(StatusCode::FORBIDDEN), "{other}");
        }
    }

    #[test]
    fn data_needs_the_token_and_a_json_body() {
        let rules = AccessRules::new(1234).unwrap();
        let check = |list: &[(&'static str, &str)]| {
            rules.check_data(&headers(list)).err().map(|rejection| rejection.status)
        };
        let json = ("content-type", "application/json");
        let token = ("weir-token", rules.token.as_str());
        assert_eq!(check(&[json, token]), None);
        assert_eq!(check(&[json]), Some(StatusCode::UNAUTHORIZED));
        assert_eq!(check(&[json, ("weir-token", "")]), Some(StatusCode::UNAUTHORIZED));
        assert_eq!(
            check(&[json, ("weir-token", &rules.token[1..])]),
            Some(StatusCode::UNAUTHORIZED)
        );
        assert_eq!(check(&[token]), Some(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        let site = ("sec-fetch-site", "cross-site");
        assert_eq!(check(&[json, token, site]), Some(StatusCode::FORBIDDEN));
        assert_ne!(rules.token, AccessRules::new(1234).unwrap().token);
    }
}
