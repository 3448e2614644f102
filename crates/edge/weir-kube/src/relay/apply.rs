//! Transactions of a relay become changes of the model, as lists and events of the API server do.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use weir_api::Tree;
use weir_model::{Key, Name};

use super::{RelayError, Transaction, client::parts};
use crate::{
    WireObject, batch::FollowerMessage, follow::Closed, kind::ModelKind, version_cache::ReadObject,
    watch::ModelSink, wire,
};

/// Reports which server the sinks get their objects from.
pub(super) async fn name_server(sinks: &mut [ModelSink], name: &str) -> Result<(), Closed> {
    let sink = sinks.first_mut().ok_or(Closed)?;
    sink.queue(FollowerMessage::Server(name.into()));
    sink.flush().await
}

/// Reports that another server follows, whose objects count when it has listed all of them.
pub(super) async fn restart(sinks: &mut [ModelSink], name: &str) -> Result<(), Closed> {
    let known: BTreeSet<Key> = sinks.iter().flat_map(|sink| sink.cache.keys()).collect();
    let sink = sinks.first_mut().ok_or(Closed)?;
    sink.queue(FollowerMessage::Restarted(known));
    name_server(sinks, name).await
}

/// Sends the messages in all queues.
pub(super) async fn flush(sinks: &mut [ModelSink]) -> Result<(), Closed> {
    for sink in sinks {
        sink.flush().await?;
    }
    Ok(())
}

/// Waits until the receiver of the events is gone.
pub(super) async fn closed(sinks: &[ModelSink]) {
    if let Some(sink) = sinks.first() {
        sink.out.closed().await;
    }
}

/// Checks that all objects of a list can be read, and that the own node is one of them. Another source
/// stays in use until then.
pub(super) fn check_list(list: &[Transaction], node: &str) -> Result<(), RelayError> {
    let own = Key::Node(Name::from(node));
    let mut has_own = false;
    for transaction in list {
        for (kind, bytes) in &transaction.puts {
            has_own |= parse(*kind, bytes)?.0 == own;
        }
        has_own &= !transaction.gone.contains(&own);
    }
    if has_own { Ok(()) } else { Err(RelayError::UnknownNode) }
}

/// Applies all objects of a node: a list, and the transactions that followed it. Objects that are not
/// among them are gone.
pub(super) fn apply_list(
    sinks: &mut [ModelSink],
    list: &[Transaction],
    node: &str,
    relists: u64,
) -> Result<(), RelayError> {
    let mut converted = BTreeMap::new();
    for transaction in list {
        for (at, reading) in convert(sinks, transaction)? {
            converted.insert(reading.key.clone(), (at, reading));
        }
        for key in &transaction.gone {
            converted.remove(key);
        }
    }
    if !converted.contains_key(&Key::Node(Name::from(node))) {
        return Err(RelayError::UnknownNode);
    }
    sinks.iter_mut().for_each(|sink| sink.cache.begin_list());
    let mut changes = Vec::new();
    for (at, reading) in converted.into_values() {
        changes.extend(sinks[at].cache.put(reading));
    }
    let mut gone = Vec::new();
    for sink in sinks.iter_mut() {
        gone.extend(sink.cache.complete_list());
        sink.queue_findings_if_changed();
    }
    sinks[0].queue(FollowerMessage::List { changes, gone });
    list.iter().for_each(|transaction| reach(sinks, transaction));
    for sink in sinks {
        sink.relists_seen = relists;
        sink.queue(FollowerMessage::Problem(sink.kind, None));
        sink.queue(FollowerMessage::Listed(sink.kind, relists));
    }
    Ok(())
}

/// Applies a transaction.
pub(super) fn apply(sinks: &mut [ModelSink], transaction: Transaction) -> Result<(), RelayError> {
    let mut changes = Vec::new();
    for (at, reading) in convert(sinks, &transaction)? {
        changes.extend(sinks[at].cache.put(reading));
    }
    for key in &transaction.gone {
        let (namespace, name) = parts(key);
        let metadata = json!({"namespace": &*namespace, "name": &*name});
        let object = Tree::from(&json!({"metadata": metadata}));
        let sink = sinks.iter_mut().find(|sink| sink.kind.key(&object).as_ref() == Some(key));
        changes.extend(sink.and_then(|sink| sink.cache.remove(&object)));
    }
    sinks.iter_mut().for_each(ModelSink::queue_findings_if_changed);
    if let Some(first) = sinks.first_mut().filter(|_| !changes.is_empty()) {
        first.queue(FollowerMessage::Changes(changes, None));
    }
    reach(sinks, &transaction);
    Ok(())
}

/// Parses all objects of a transaction. Nothing changes if one of them cannot be read.
fn convert(
    sinks: &mut [ModelSink],
    transaction: &Transaction,
) -> Result<Vec<(usize, ReadObject)>, RelayError> {
    let puts = transaction.puts.iter().map(|(kind, bytes)| {
        let (_, tree) = parse(*kind, bytes)?;
        let mut sinks = sinks.iter_mut().enumerate();
        let sink = sinks.find(|(_, sink)| sink.kind == *kind);
        let reading = sink.and_then(|(at, sink)| Some((at, sink.cache.lower(tree)?)));
        reading.ok_or_else(|| garbled(*kind, "the kind is not followed"))
    });
    puts.collect()
}

/// Parses an object.
fn parse(kind: ModelKind, bytes: &[u8]) -> Result<(Key, Tree), RelayError> {
    let tree = tree(kind, bytes).map_err(|why| garbled(kind, &why))?;
    let key = kind.key(&tree).ok_or_else(|| garbled(kind, "it has no name"))?;
    Ok((key, tree))
}

fn tree(kind: ModelKind, bytes: &[u8]) -> Result<Tree, String> {
    let expected = kind.resource().kind;
    if kind.policy_kind().is_none() {
        return wire::reduced_object(expected, bytes);
    }
    let tree: Tree = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match tree.kind() {
        Some(found) if found == expected => Ok(tree),
        found => Err(format!("expected a {expected}, found {}", found.unwrap_or("no kind"))),
    }
}

fn garbled(kind: ModelKind, why: &str) -> RelayError {
    RelayError::Garbled(format!("an object of {}: {why}", kind.resource().name()))
}

/// Takes over the versions that a relay has reached, and those of objects that it sent before. A relay
/// has sent all policies up to the version that it has reached.
fn reach(sinks: &mut [ModelSink], Transaction { point, seen, .. }: &Transaction) {
    let Some(first) = sinks.first() else { return };
    let mut reached = first.sync_point();
    reached.advance_to(point);
    reached.advance_to(seen);
    first.set_sync_point(reached);
    for sink in sinks {
        let newest = sink.position().map_or(0, |kind| point.version(kind));
        if newest > sink.newest {
            sink.newest = newest;
            sink.queue_newest();
        }
    }
}
