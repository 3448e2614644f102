use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    io::Errno,
};
use weir_model::Flow;

use super::{
    client::Client,
    lab::Lab,
    server::{Server, ServerAddress},
};
use crate::{LabError, plan::LabNamespace};

/// A flow to probe, and its source port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) flow: Flow,
    pub(super) port: u16,
}

/// Probes flows concurrently. The calling thread must be free to change its namespace. Returns the
/// time to each answer, or `None` after the timeout.
pub(super) fn run(
    lab: &Lab,
    attempts: &[Attempt],
    timeout: Duration,
) -> Result<Vec<Option<Duration>>, LabError> {
    let far = servers(lab, attempts)?;
    let mut near = clients(lab, attempts)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(wait)?;
    let watch = |fd: BorrowedFd<'_>, number: usize| {
        epoll::add(&epoll, fd, EventData::new_u64(number as u64), EventFlags::IN).map_err(wait)
    };
    for (number, client) in near.iter().enumerate() {
        if let Some(client) = client {
            watch(client.as_fd(), number)?;
        }
    }
    for (number, (_, server)) in far.iter().enumerate() {
        watch(server.as_fd(), near.len() + number)?;
    }

    let mut answers: Vec<Option<Duration>> = vec![None; attempts.len()];
    let mut waiting = attempts.len();
    let mut events = Vec::with_capacity(256);
    let began = Instant::now();
    while waiting > 0 {
        // After the timeout, only process events that are already pending.
        let left = timeout.saturating_sub(began.elapsed());
        events.clear();
        let remaining =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&remaining)) {
            Ok(_) | Err(Errno::INTR) => (),
            Err(errno) => return Err(wait(errno)),
        }
        if events.is_empty() && left.is_zero() {
            break;
        }
        for event in &events {
            let number = event.data.u64() as usize;
            match near.get_mut(number) {
                Some(slot) => {
                    let Some(client) = slot else { continue };
                    let flow = attempts[number].flow;
                    let failed = |errno: Errno| LabError::Probe { flow, source: errno.into() };
                    if client.is_answered().map_err(failed)? {
                        answers[number] = Some(began.elapsed());
                        waiting -= 1;
                        *slot = None;
                    }
                }
                None => {
                    let (flow, server) = &far[number - near.len()];
                    let failed =
                        |errno: Errno| LabError::Answer { flow: *flow, source: errno.into() };
                    server.serve().map_err(failed)?;
                }
            }
        }
    }
    Ok(answers)
}

/// The servers at the far ends, each with one flow that uses it.
fn servers(lab: &Lab, attempts: &[Attempt]) -> Result<Vec<(Flow, Server)>, LabError> {
    let mut needed: BTreeMap<(LabNamespace, ServerAddress), Flow> = BTreeMap::new();
    for Attempt { flow, .. } in attempts {
        needed
            .entry((lab.plan.namespace_of(flow.to), ServerAddress::for_flow(flow)))
            .or_insert(*flow);
    }
    let mut here = None;
    let mut servers = Vec::with_capacity(needed.len());
    for ((namespace, service), flow) in needed {
        enter_namespace(lab, &mut here, namespace)?;
        let server = Server::open(service)
            .map_err(|errno| LabError::Answer { flow, source: errno.into() })?;
        servers.push((flow, server));
    }
    Ok(servers)
}

/// The clients in the order of the attempts. Each has sent its first packet.
fn clients(lab: &Lab, attempts: &[Attempt]) -> Result<Vec<Option<Client>>, LabError> {
    let mut order: Vec<usize> = (0..attempts.len()).collect();
    order.sort_by_key(|&number| lab.plan.namespace_of(attempts[number].flow.from));
    let mut here = None;
    let mut clients: Vec<Option<Client>> = attempts.iter().map(|_| None).collect();
    for number in order {
        let Attempt { flow, port } = attempts[number];
        enter_namespace(lab, &mut here, lab.plan.namespace_of(flow.from))?;
        let client = Client::start(flow, port)
            .map_err(|errno| LabError::Probe { flow, source: errno.into() })?;
        clients[number] = Some(client);
    }
    Ok(clients)
}

/// Moves this thread to a namespace, if it is in another one.
fn enter_namespace(
    lab: &Lab,
    here: &mut Option<LabNamespace>,
    namespace: LabNamespace,
) -> Result<(), LabError> {
    if here.replace(namespace) != Some(namespace) {
        lab.namespace(namespace).enter()?;
    }
    Ok(())
}

fn wait(errno: Errno) -> LabError {
    LabError::Wait { source: errno.into() }
}
