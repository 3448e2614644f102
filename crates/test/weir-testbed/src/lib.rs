//! A Kubernetes cluster with real nodes on this machine: `cargo xtask cluster up` and the end-to-end
//! tests use it.
//!
//! ```text
//!  rack: one namespace each for processes, network and mounts
//!   ├─ bridge ─ 172.31.77.1, fd31:77::1
//!   ├─ etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!   ├─ node n1: nested namespaces, a root and cgroups of its own
//!   │    containerd, kubelet, kube-proxy; pods in 10.244.1.0/24 and fd44:1::/64
//!   └─ node n2 …
//! ```
//!
//! *Invariant*: killing the first process of the rack kills every process of the testbed. The kernel
//! then removes its namespaces and mounts. Only cgroups and one folder remain, which `down.sh` removes.
//!
//! *Invariant*: it changes no network settings, mounts or files of the machine outside its folder.
//!
//! *Invariant*: only tests and xtask link it.

mod cgroups;
mod config;
mod control;
mod error;
mod image;
mod namespaces;
mod node;
mod programs;
mod relay;
mod testbed;

pub use error::TestbedError;
pub use image::{Architecture, Image, libraries_of, sha256, write_layout};
pub use node::TestNode;
pub use programs::{CNI_PLUGINS, KUBERNETES_PROGRAMS, NodePrograms, kubernetes_folder};
pub use relay::relay;
pub use testbed::{Options, Testbed, remove};
