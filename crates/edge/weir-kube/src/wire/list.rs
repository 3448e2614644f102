//! Lists: requests, and pages of JSON.

use std::{fmt, marker::PhantomData};

use kube::{
    Client,
    api::{ListParams, VersionMatch},
    core::{Request, TypeMeta},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    check_kind,
    request::{Built, answer},
};
use crate::{ApiError, Revision, WatchSpec, WireObject};

/// The largest page of several objects.
const MAX_PAGE_BYTES: usize = 32 << 20;
/// The largest page of one object. Some servers ignore the limit and send the whole list.
const MAX_LIST_BYTES: usize = 512 << 20;

/// A page of a list that was parsed completely and is valid.
#[derive(Debug)]
pub(crate) struct ListPage<T> {
    pub(crate) items: Vec<T>,
    /// The version of the whole list.
    pub(crate) resource_version: String,
    /// The token for the next page; `None` if this is the last one.
    pub(crate) next: Option<String>,
    /// The objects after this page, 0 if the API server does not state it.
    pub(crate) remaining: u64,
}

/// What a list begins with, and how new it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageStart<'a> {
    /// The latest state, which old API servers read from etcd.
    Latest,
    /// Any state that the API server's cache has.
    Cached,
    /// A state that is as new as this resourceVersion, or newer. The API server's cache can answer if
    /// there is no limit.
    NotOlderThan(&'a str),
    /// The page after the one with this token.
    After(&'a str),
}

/// The bytes of one page. While the page is too large, it is requested again with fewer objects, and
/// the limit stays low.
pub(crate) async fn page_bytes(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    limit: &mut u32,
    start: PageStart<'_>,
) -> Result<Vec<u8>, ApiError> {
    loop {
        match try_page(client, spec, version, *limit, start).await {
            Err(ApiError::TooLarge { .. }) if *limit > 1 => *limit = (*limit / 4).max(1),
            page => return page,
        }
    }
}

async fn try_page(
    client: &Client,
    spec: &WatchSpec,
    version: &str,
    limit: u32,
    start: PageStart<'_>,
) -> Result<Vec<u8>, ApiError> {
    let request = list_request(spec, version, start, Some(limit));
    let max_bytes = if limit > 1 { MAX_PAGE_BYTES } else { MAX_LIST_BYTES };
    answer(client, request, "list", &spec.resource.name(), max_bytes).await
}

/// The request of a list, or of a page if there is a limit.
pub(super) fn list_request(
    spec: &WatchSpec,
    version: &str,
    start: PageStart<'_>,
    limit: Option<u32>,
) -> Built {
    let params = ListParams { limit, ..ListParams::default() };
    let mut params = match start {
        PageStart::Latest => params,
        PageStart::Cached => params.at("0"),
        PageStart::NotOlderThan(position) => {
            params.at(position).matching(VersionMatch::NotOlderThan)
        }
        PageStart::After(token) => params.continue_token(token),
    };
    if !spec.labels.is_empty() {
        params = params.labels(&spec.labels);
    }
    if !spec.fields.is_empty() {
        params = params.fields(&spec.fields);
    }
    Request::new(spec.resource.path(version, &spec.namespace)).list(&params)
}

impl<T> ListPage<T> {
    /// Parses a page and converts its objects one by one. A page with any defect is rejected as a
    /// whole: it may be a truncated list, or no list at all.
    pub(crate) fn parse<R: WireObject>(
        bytes: &[u8],
        spec: &WatchSpec,
        version: &str,
        read: impl FnMut(R) -> T,
    ) -> Result<Self, ApiError> {
        ListPage::from_json(bytes, &spec.resource.type_meta(version), read)
            .map_err(|message| ApiError::Garbled { resource: spec.resource.name(), message })
    }

    /// Parses a page of objects of a kind.
    pub(super) fn from_json<R: WireObject>(
        bytes: &[u8],
        types: &TypeMeta,
        read: impl FnMut(R) -> T,
    ) -> Result<Self, String> {
        let list = List { types, read, raw: PhantomData };
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let parsed = list.deserialize(&mut deserializer);
        let page = parsed.and_then(|page| deserializer.end().map(|()| page));
        page.map_err(|error| error.to_string())
    }
}

/// Deserializes a list, such as a PodList, and converts its items while it reads them.
struct List<'a, R, F> {
    types: &'a TypeMeta,
    read: F,
    raw: PhantomData<R>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
    remaining_item_count: Option<i64>,
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> DeserializeSeed<'de> for List<'_, R, F> {
    type Value = ListPage<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListPage<T>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> Visitor<'de> for List<'_, R, F> {
    type Value = ListPage<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {}List", self.types.kind)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<ListPage<T>, A::Error> {
        use serde::de::Error;
        let (mut kind, mut metadata, mut items) = (None::<String>, ListMeta::default(), None);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "kind" => kind = map.next_value()?,
                "metadata" => metadata = map.next_value()?,
                "items" => items = Some(map.next_value_seed(ListItems(&mut self))?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let is_list = kind.as_ref().and_then(|kind| kind.strip_suffix("List"));
        if is_list != Some(&*self.types.kind) {
            let (expected, found) = (&self.types.kind, kind.as_deref().unwrap_or("no kind"));
            return Err(A::Error::custom(format!("expected a {expected}List, found {found}")));
        }
        let not_empty = |text: &String| !text.is_empty();
        let version = metadata.resource_version.filter(not_empty);
        let next = metadata.next.filter(not_empty);
        let remaining = metadata.remaining_item_count.unwrap_or_default();
        if next.is_none() && remaining > 0 {
            return Err(A::Error::custom("the list ends before its last object"));
        }
        Ok(ListPage {
            items: items.ok_or_else(|| A::Error::custom("the list has no items"))?,
            resource_version: version
                .ok_or_else(|| A::Error::custom("the list has no resourceVersion"))?,
            next,
            remaining: u64::try_from(remaining).unwrap_or_default(),
        })
    }
}

/// The items of a list. `null` is the empty list, as Go writes it.
struct ListItems<'l, 'a, R, F>(&'l mut List<'a, R, F>);

impl<'de, R: WireObject, T, F: FnMut(R) -> T> DeserializeSeed<'de> for ListItems<'_, '_, R, F> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: WireObject, T, F: FnMut(R) -> T> Visitor<'de> for ListItems<'_, '_, R, F> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(mut object) = seq.next_element::<R>()? {
            check_kind(&object, self.0.types).map_err(serde::de::Error::custom)?;
            object.complete(self.0.types);
            items.push((self.0.read)(object));
        }
        Ok(items)
    }
}

/// An object of a page that is only checked.
pub(crate) struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Unread)
    }
}

impl WireObject for Unread {
    fn revision(&self) -> Revision {
        Revision::default()
    }

    fn resource_version(&self) -> Option<&str> {
        None
    }

    fn kind(&self) -> Option<&str> {
        None
    }

    fn ends_initial_events(&self) -> bool {
        false
    }

    fn complete(&mut self, _: &TypeMeta) {}
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_api::Tree;

    use super::*;
    use crate::kind;

    fn page(text: &str) -> Result<ListPage<Tree>, String> {
        let spec = WatchSpec::all(kind::PODS);
        ListPage::parse(text.as_bytes(), &spec, "v1", |tree| tree)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_page_is_valid_or_rejected_as_a_whole() {
        let list = json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "9", "continue": "next", "remainingItemCount": 3},
            "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}],
        });
        let valid = page(&list.to_string()).unwrap();
        assert_eq!((valid.items.len(), &*valid.resource_version), (2, "9"));
        assert_eq!((valid.next.as_deref(), valid.remaining), (Some("next"), 3));
        assert_eq!(valid.items[0].kind(), Some("Pod"));
        let text = list.to_string();
        for end in 0..text.len() {
            assert!(page(&text[..end]).is_err(), "{}", &text[..end]);
        }
        for (key, value, why) in [
            ("kind", json!("Status"), "expected a PodList, found Status"),
            ("kind", json!("NodeList"), "expected a PodList, found NodeList"),
            ("kind", json!(null), "found no kind"),
            ("metadata", json!({}), "no resourceVersion"),
            ("metadata", json!({"resourceVersion": ""}), "no resourceVersion"),
            (
                "metadata",
                json!({"resourceVersion": "9", "remainingItemCount": 1}),
                "ends before its last object",
            ),
            ("items", json!([{"kind": "Node", "metadata": {}}]), "expected a Pod, found a Node"),
            ("items", json!({}), "invalid type"),
        ] {
            let mut other = list.clone();
            other[key] = value;
            let error = page(&other.to_string()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let mut without_items = list.clone();
        without_items.as_object_mut().unwrap().remove("items");
        assert!(page(&without_items.to_string()).unwrap_err().contains("no items"));
        let mut null = list;
        null["items"] = Value::Null;
        assert_eq!(page(&null.to_string()).unwrap().items.len(), 0);
    }
}
