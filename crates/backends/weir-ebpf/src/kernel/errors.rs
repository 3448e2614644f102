//! Why the kernel cannot run the datapath.

use std::io;

use rustix::io::Errno;
use thiserror::Error;
use weir_model::IpFamily;

use super::{BPFFS, numbers::BTF};
use crate::{
    btf::BtfError,
    program::HookPoint,
    sys::{ProgramError, ProgramKind},
};

/// The lines of the verifier's log in an error.
const LOG_LINES: usize = 40;

/// Why the kernel cannot run the datapath, or rejected a part of it.
#[derive(Debug, Error)]
pub(crate) enum KernelError {
    #[error("no BPF file system is mounted at {BPFFS}: mount it, or use `--datapath nftables`")]
    NoFileSystem,
    #[error("this kernel has no type information ({BTF}): use `--datapath nftables`")]
    NoBtf(#[source] io::Error),
    #[error("this kernel lacks a feature (Linux 6.6 has all): use `--datapath nftables`")]
    Feature(#[from] BtfError),
    #[error(
        "this kernel cannot load programs for netfilter (CONFIG_NETFILTER_BPF_LINK): use `--datapath nftables`"
    )]
    NoPrograms(#[source] io::Error),
    #[error(
        "this kernel cannot reassemble fragments for programs of netfilter (Linux 6.6 with CONFIG_NF_DEFRAG_IPV4 and CONFIG_NF_DEFRAG_IPV6 can): use `--datapath nftables`"
    )]
    NoReassembly(#[source] io::Error),
    #[error("cannot use eBPF: run as root, or use `--datapath nftables`")]
    Permission(#[source] io::Error),
    #[error("the kernel rejects the program for {family}: {error}; the end of its log:\n{log}")]
    Program { family: IpFamily, error: io::Error, log: String },
    #[error("cannot {action}")]
    Io { action: String, source: io::Error },
}

/// An error of a call.
pub(super) fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> KernelError {
    move |source| {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return KernelError::Permission(source);
        }
        KernelError::Io { action: action.into(), source }
    }
}

/// The error of a program that could not be loaded.
pub(super) fn load_failed(
    kind: ProgramKind,
    family: IpFamily,
    ProgramError { error, log }: ProgramError,
) -> KernelError {
    if log.is_empty() {
        // The kernel looks for the type of a program before it verifies the program.
        if kind == ProgramKind::Netfilter && is(&error, &[Errno::INVAL]) {
            return KernelError::NoPrograms(error);
        }
        if error.kind() == io::ErrorKind::PermissionDenied {
            return KernelError::Permission(error);
        }
    }
    let lines: Vec<&str> = log.lines().collect();
    let log = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    KernelError::Program { family, error, log }
}

/// The error of a program that could not be attached.
pub(super) fn attach_failed(family: IpFamily, hook: HookPoint, error: io::Error) -> KernelError {
    // The kernel does not know the flag (before 6.6), was built without reassembly, or cannot load its
    // module.
    let missing = [Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::INVAL, Errno::NOENT];
    if is(&error, &missing) {
        return KernelError::NoReassembly(error);
    }
    failed(format!("attach the program for {family} at {}", hook.name()))(error)
}

fn is(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use rustix::io::Errno;
    use weir_datapath::{ApplyError, ApplyErrorKind};

    use super::*;

    fn check(error: KernelError, expected: Expect) {
        let (kind, what) = (ApplyErrorKind::Unavailable, "cannot open eBPF".into());
        expected.assert_eq(&ApplyError { kind, what, source: error.into() }.with_causes());
    }

    fn load(kind: ProgramKind, error: Errno, log: &str) -> KernelError {
        load_failed(kind, IpFamily::V4, ProgramError { error: error.into(), log: log.into() })
    }

    #[test]
    fn a_kernel_without_programs_of_netfilter_is_named() {
        check(
            load(ProgramKind::Netfilter, Errno::INVAL, ""),
            expect![[
                r#"cannot open eBPF: this kernel cannot load programs for netfilter (CONFIG_NETFILTER_BPF_LINK): use `--datapath nftables`: Invalid argument (os error 22)"#
            ]],
        );
    }

    #[test]
    fn a_rejection_ends_with_the_log() {
        let log: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let error = load(ProgramKind::Netfilter, Errno::INVAL, &log.join("\n")).to_string();
        assert!(error.ends_with("line 99"), "{error}");
        assert!(!error.contains("line 59\n") && error.contains("line 60\n"), "{error}");
        check(
            load(ProgramKind::Netfilter, Errno::ACCESS, "R1 type=inv"),
            expect![[r#"
                cannot open eBPF: the kernel rejects the program for IPv4: Permission denied (os error 13); the end of its log:
                R1 type=inv"#]],
        );
        check(
            load(ProgramKind::LinkIngress, Errno::INVAL, ""),
            expect![[r#"
                cannot open eBPF: the kernel rejects the program for IPv4: Invalid argument (os error 22); the end of its log:
            "#]],
        );
        check(
            load(ProgramKind::Netfilter, Errno::PERM, ""),
            expect![[
                r#"cannot open eBPF: cannot use eBPF: run as root, or use `--datapath nftables`: Operation not permitted (os error 1)"#
            ]],
        );
    }

    #[test]
    fn a_kernel_that_cannot_reassemble_fragments_is_named() {
        let attach = |error: Errno| attach_failed(IpFamily::V6, HookPoint::Forward, error.into());
        for error in [Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::INVAL, Errno::NOENT] {
            assert!(matches!(attach(error), KernelError::NoReassembly(_)), "{error}");
        }
        check(
            attach(Errno::OPNOTSUPP),
            expect![[
                r#"cannot open eBPF: this kernel cannot reassemble fragments for programs of netfilter (Linux 6.6 with CONFIG_NF_DEFRAG_IPV4 and CONFIG_NF_DEFRAG_IPV6 can): use `--datapath nftables`: Operation not supported (os error 95)"#
            ]],
        );
        check(
            attach(Errno::BUSY),
            expect![[
                r#"cannot open eBPF: cannot attach the program for IPv6 at forward: Device or resource busy (os error 16)"#
            ]],
        );
        check(
            attach(Errno::PERM),
            expect![[
                r#"cannot open eBPF: cannot use eBPF: run as root, or use `--datapath nftables`: Operation not permitted (os error 1)"#
            ]],
        );
    }
}
