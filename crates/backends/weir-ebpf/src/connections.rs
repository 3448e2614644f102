//! The connections in the table of the programs.

use std::{io, path::PathBuf};

use weir_datapath::{ApplyError, ApplyErrorKind, ConnectionTable, TrackedConnection};
use weir_model::IpFamily;

use crate::{
    kernel,
    layout::{FlowEntry, MapId},
    sys::{Map, Position},
};

/// The connections of the network namespace of the thread that reads them.
#[derive(Debug, Default)]
pub struct EbpfConnections;

impl ConnectionTable for EbpfConnections {
    fn read(&mut self, each: &mut dyn FnMut(TrackedConnection)) -> Result<(), ApplyError> {
        let read = |family| match kernel::flow_table(family) {
            Ok(path) => read_map(family, path, each),
            Err(error) => Err(error),
        };
        IpFamily::BOTH.into_iter().try_for_each(read).map_err(|error| ApplyError {
            kind: ApplyErrorKind::Unavailable,
            what: "cannot read the connections of the eBPF programs".into(),
            source: error.into(),
        })
    }
}

fn read_map(
    family: IpFamily,
    path: PathBuf,
    each: &mut dyn FnMut(TrackedConnection),
) -> io::Result<()> {
    let map = match Map::open(&path, MapId::Flows(family).declaration(0)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        map => map?,
    };
    let (mut position, mut count) = (Position::Start, 0);
    while position != Position::End {
        let some = map.next_elements(&mut position)?;
        for (key, value) in some.iter() {
            count += 1;
            let Some(flow) = FlowEntry::from_bytes(family, key, value) else { continue };
            if !flow.is_cut {
                let FlowEntry { client, server, protocol, .. } = flow;
                each(TrackedConnection { client, server, protocol });
            }
        }
        // A map that changes meanwhile can start again from its first key.
        if count > 2 * map.declaration().max_entries as usize {
            return Err(io::Error::other("the map changes while it is read"));
        }
    }
    Ok(())
}
