//! A program that accepts every packet where the node forwards: no program costs less.

#![allow(unsafe_code, reason = "the baselines of weir-ebpf call bpf(2) by themselves")]

use std::{ffi::CStr, io, mem};

use anyhow::{Context, Result};

const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;
const PROG_TYPE_NETFILTER: u32 = 32;
const ATTACH_NETFILTER: u32 = 45;
const FORWARD: u32 = 2;
const PRIORITY: i32 = -31;
const DEFRAGMENT: u32 = 1;
const FAMILIES: [u32; 2] = [2, 10];

/// `r0 = NF_ACCEPT; exit`
const INSTRUCTIONS: [u64; 2] = [0x1_0000_00b7, 0x95];
const LICENSE: &CStr = c"Dual BSD/GPL";

/// Attaches the program in the namespace of this thread, until this process ends.
pub(super) fn attach() -> Result<()> {
    let mut load = [0_u32; 32];
    load[0] = PROG_TYPE_NETFILTER;
    load[1] = INSTRUCTIONS.len() as u32;
    set_pointer(&mut load[2..4], INSTRUCTIONS.as_ptr() as u64);
    set_pointer(&mut load[4..6], LICENSE.as_ptr() as u64);
    load[17] = ATTACH_NETFILTER;
    let program = call(PROG_LOAD, &load).context("cannot load the bare hook")?;
    for family in FAMILIES {
        let mut link = [0_u32; 32];
        link[0] = program as u32;
        link[2] = ATTACH_NETFILTER;
        link[4..8].copy_from_slice(&[family, FORWARD, PRIORITY as u32, DEFRAGMENT]);
        call(LINK_CREATE, &link).context("cannot attach the bare hook")?;
    }
    Ok(())
}

fn set_pointer(words: &mut [u32], pointer: u64) {
    for (word, bytes) in words.iter_mut().zip(pointer.to_ne_bytes().chunks_exact(4)) {
        *word = bytes.try_into().map_or(0, u32::from_ne_bytes);
    }
}

/// Calls bpf(2). The new file descriptor stays open, because the program runs as long as its link.
fn call(command: u32, attributes: &[u32; 32]) -> io::Result<i32> {
    let size = mem::size_of_val(attributes);
    // SAFETY: the attributes are as long as stated, and their pointers are to constants.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
