//! The lab on systems without network namespaces. Every call fails with [`LabError::Unsupported`].

use std::{net::IpAddr, time::Duration};

use weir_model::{Flow, Verdict};

use crate::{LabError, Layout};

/// Linux only: see [`LabError::Unsupported`].
pub fn enter() -> Result<(), LabError> {
    Err(LabError::Unsupported)
}

/// Fails.
pub fn enter_with_bpf() -> Result<(), LabError> {
    Err(LabError::Unsupported)
}

/// Fails.
pub fn separate_bpf() -> Result<(), LabError> {
    Err(LabError::Unsupported)
}

/// A running cluster of network namespaces. Linux only: it cannot be built here.
#[derive(Debug)]
pub struct Lab(());

impl Lab {
    /// Linux only: see [`LabError::Unsupported`].
    pub fn build(_layout: &Layout) -> Result<Lab, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: runs a function in the node's namespace.
    pub fn on_node<T: Send>(
        &self,
        _node: &str,
        _work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: runs a function in the namespace that owns the address.
    pub fn at<T: Send>(
        &self,
        _address: IpAddr,
        _work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: the name of a node's link to a pod.
    pub fn link_to(&self, _address: IpAddr) -> Option<String> {
        None
    }

    /// Linux only: probes all flows concurrently.
    pub fn probe(&self, _flows: &[Flow], _timeout: Duration) -> Result<Vec<Verdict>, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: sends an echo request.
    pub fn ping(
        &self,
        _from: IpAddr,
        _to: IpAddr,
        _timeout: Duration,
    ) -> Result<Verdict, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: opens a flow and keeps it open.
    pub fn converse(&self, _flow: Flow, _timeout: Duration) -> Result<Conversation, LabError> {
        Err(LabError::Unsupported)
    }
}

/// A connection, or an exchange of datagrams, between two ends of a lab. Linux only.
#[derive(Debug)]
pub struct Conversation(());

impl Conversation {
    /// Linux only: the near end sends one byte, and waits for its echo.
    pub fn exchange(&mut self, _timeout: Duration) -> Result<Verdict, LabError> {
        Err(LabError::Unsupported)
    }

    /// Linux only: the far end sends one byte.
    pub fn call_back(&mut self, _timeout: Duration) -> Result<Verdict, LabError> {
        Err(LabError::Unsupported)
    }
}
