//! What the parts of netfilter share, as in `linux/netfilter/nfnetlink.h`.

/// The header between that of netlink and the attributes: the family, the version, and what is asked about.
pub(crate) fn header(family: u8, resource: u16) -> [u8; HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Its length.
pub(crate) const HEADER: usize = 4;

#[cfg(target_os = "linux")]
pub(crate) const UNSPECIFIED: u8 = 0;
pub(crate) const IPV4: u8 = 2;
pub(crate) const IPV6: u8 = 10;
