//! The header that all netfilter subsystems share, as in `linux/netfilter/nfnetlink.h`.

/// The header before the attributes: the family, the version and the resource.
pub(crate) fn header(family: u8, resource: u16) -> [u8; HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// The length of the header.
pub(crate) const HEADER: usize = 4;

#[cfg(target_os = "linux")]
pub(crate) const UNSPECIFIED: u8 = 0;
pub(crate) const IPV4: u8 = 2;
pub(crate) const IPV6: u8 = 10;
