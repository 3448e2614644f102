//! A map of addresses that is changed by bare bpf(2): no backend can change one for less.

#![allow(unsafe_code, reason = "the baselines of weir-ebpf call bpf(2) by themselves")]

use std::{
    io, mem,
    net::Ipv4Addr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use anyhow::{Context, Result};

const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const HASH: u64 = 1;
const NO_PREALLOC: u64 = 1;
const KEY_BYTES: u64 = 4;
const VALUE_BYTES: u64 = 8;

/// A hash map from an address to 8 bytes, as weir-ebpf has one for IPv4.
pub(super) struct BareMap(OwnedFd);

impl BareMap {
    pub(super) fn create(capacity: usize) -> Result<Self> {
        let attributes =
            [HASH | KEY_BYTES << 32, VALUE_BYTES | (capacity as u64) << 32, NO_PREALLOC, 0];
        let fd = call(MAP_CREATE, &attributes).context("cannot create a map")?;
        // SAFETY: the kernel returned this descriptor to this call, and nothing else owns it.
        Ok(BareMap(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn set(&self, address: Ipv4Addr) -> Result<()> {
        let (key, value) = (address.octets(), [1_u64]);
        self.element(MAP_UPDATE_ELEM, &key, value.as_ptr())
    }

    pub(super) fn delete(&self, address: Ipv4Addr) -> Result<()> {
        self.element(MAP_DELETE_ELEM, &address.octets(), std::ptr::null())
    }

    fn element(&self, command: u32, key: &[u8; 4], value: *const u64) -> Result<()> {
        let attributes = [self.0.as_raw_fd() as u64, key.as_ptr() as u64, value as u64, 0];
        call(command, &attributes).context("cannot change a map")?;
        Ok(())
    }
}

/// Calls bpf(2).
fn call(command: u32, attributes: &[u64; 4]) -> io::Result<i32> {
    let size = mem::size_of_val(attributes);
    // SAFETY: the attributes are as long as stated. Their pointers are valid while the callers run, for
    // the lengths of the map.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
