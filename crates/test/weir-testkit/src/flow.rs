use proptest::{prelude::*, sample::select};
use weir_model::Flow;

use crate::pool;

/// A connection between two addresses of one family: pods, nodes or external. They may be equal.
pub fn flow() -> impl Strategy<Value = Flow> {
    let ends = prop_oneof![3 => (pool::v4(), pool::v4()), 2 => (pool::v6(), pool::v6())];
    (ends, pool::protocol(), select(pool::PORTS)).prop_map(|((from, to), protocol, port)| Flow {
        from,
        to,
        protocol,
        port,
    })
}
