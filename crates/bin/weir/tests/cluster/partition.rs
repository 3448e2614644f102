use std::process::{Command, Output};

use weir_lab::Lab;

/// Drops all packets of a TCP port on a node, until this is dropped.
pub(crate) struct Partition<'l> {
    lab: &'l Lab,
    node: &'static str,
}

impl<'l> Partition<'l> {
    pub(crate) fn start(lab: &'l Lab, node: &'static str, port: u16) -> Self {
        let partition = Partition { lab, node };
        let rules = format!(
            "table inet partition {{ chain input {{ type filter hook input priority 0; \
                 tcp dport {port} drop; tcp sport {port} drop; }}; }}"
        );
        let done = partition.nft(&rules);
        assert!(done.status.success(), "{rules}: {}", String::from_utf8_lossy(&done.stderr));
        partition
    }

    /// Runs commands of nft on the node.
    fn nft(&self, commands: &str) -> Output {
        let mut nft = Command::new("nft");
        nft.arg(commands);
        self.lab.on_node(self.node, || nft.output()).unwrap().unwrap()
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        // Without a panic: the test can have failed already.
        _ = self.nft("delete table inet partition");
    }
}
