use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Direction, Flow, Peers, Program, Protocol, Rule, Verdict};

use crate::{ApplyError, EnforceGuard, FormerAddresses, Guard, Journal, PacketPath, Planner};

/// A machine that enforces plans. All I/O of a backend is here, and no decision.
pub trait Datapath {
    /// The planner whose plans this datapath applies.
    type Planner: Planner;

    /// A planner for this datapath that knows no program yet.
    fn planner(&self) -> Self::Planner;

    /// Reads the installed state, so that a restarted agent compares instead of rewriting it.
    fn installed(&mut self) -> Result<<Self::Planner as Planner>::Installed, ApplyError>;

    /// Applies a plan as a whole or not at all, unless the error is
    /// [`ApplyErrorKind::Partial`](crate::ApplyErrorKind::Partial).
    ///
    /// After any other error the caller reads `installed` and replans.
    fn apply(&mut self, plan: &<Self::Planner as Planner>::Plan) -> Result<(), ApplyError>;

    /// Compares the machine with the planner's current program. Cheap, and never blocks.
    fn drift(&mut self, planner: &Self::Planner) -> Result<Drift, ApplyError>;

    /// Removes everything that weir installed, and nothing else.
    fn remove(&mut self) -> Result<(), ApplyError>;

    /// The machine's counters of packets that policies or the guard denied, always in the same
    /// order. Each starts again from 0 when its rules are replaced. A machine that counts nothing
    /// has none.
    fn denied(&mut self) -> Result<Vec<u64>, ApplyError> {
        Ok(Vec::new())
    }

    /// The means to end established connections, if the machine has one.
    fn flows(&mut self) -> Option<&mut dyn TerminateFlows<Self::Planner>> {
        None
    }

    /// The means to check packets of pods beyond policies, if the machine has one.
    fn guard(&mut self) -> Option<&mut dyn EnforceGuard> {
        None
    }

    /// Takes note of a guard that another datapath is about to enforce beside the rules of this one. A
    /// datapath whose packets can skip that guard must not let them.
    fn respect_guard(&mut self, _guard: &Guard) -> Result<(), ApplyError> {
        Ok(())
    }

    /// The means to keep records for the next agent, if the machine has one.
    fn journal(&mut self) -> Option<&mut dyn Journal> {
        None
    }

    /// Further facts for the agent's status and metrics, if the backend has any.
    fn diagnostics(&self) -> Option<&dyn Diagnostics<Self::Planner>> {
        None
    }
}

/// How the machine differs from the last plan, since the previous check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// No difference was found.
    None,
    /// Another program changed something that weir installed.
    Changed,
    /// The machine can now take steps that the last plan had to leave out.
    Resumable,
}

/// Ends established connections. Backends whose machine tracks connections implement it.
pub trait TerminateFlows<P> {
    /// Whether all packets have left the rules that were inside at the first call since the last
    /// `terminate`. It does not wait.
    ///
    /// Such a packet can open a connection that the previous rules accepted and that is not listed
    /// yet. A machine that needs no list need not wait.
    fn have_packets_left(&mut self) -> bool {
        true
    }

    /// Ends the connections that must end. Returns how many it ended. First it waits as long as
    /// `have_packets_left` would deny.
    fn terminate(&mut self, planner: &mut P, ending: &EndingFlows<'_>)
    -> Result<usize, ApplyError>;

    /// How many more connections ended since the last call, on a machine that ends a connection with
    /// its next packet.
    fn ended_since(&mut self) -> Result<usize, ApplyError> {
        Ok(0)
    }
}

/// The connections that must end after a change.
#[derive(Clone, Copy, Debug)]
pub struct EndingFlows<'a> {
    pub(crate) program: &'a Program,
    /// The addresses that take part in connections which the rules may forbid now.
    pub(crate) touched: &'a BTreeSet<IpAddr>,
    /// The addresses that no longer belong to the pod that they belonged to.
    pub(crate) released: &'a BTreeSet<IpAddr>,
    /// The addresses that domain names had before.
    pub(crate) former: &'a FormerAddresses,
}

impl EndingFlows<'_> {
    /// Whether a connection between two addresses may have to end.
    pub fn concern(&self, from: IpAddr, to: IpAddr) -> bool {
        let concern = |address| self.touched.contains(&address) || self.released.contains(&address);
        concern(from) || concern(to)
    }

    /// Whether a connection belonged to a pod that no longer has its address. A new pod with the
    /// address must not inherit it.
    pub fn are_of_released(&self, from: IpAddr, to: IpAddr) -> bool {
        self.released.contains(&from) || self.released.contains(&to)
    }

    /// Whether policies forbid a connection to a port, or, without one, of a protocol that has no
    /// ports.
    pub fn are_forbidden(&self, from: IpAddr, to: IpAddr, port: Option<(Protocol, u16)>) -> bool {
        let verdict = match port {
            Some((protocol, port)) => self.verdict(&Flow { from, to, protocol, port }),
            None => self.program.verdict_without_ports(from, to),
        };
        verdict == Verdict::Deny
    }

    /// The verdict on an established connection. A rule about a domain name also matches the
    /// addresses that the name had before.
    fn verdict(&self, flow: &Flow) -> Verdict {
        let had_name = |rule: &Rule| match &rule.peers {
            Peers::Set(set) if rule.ports.contains(flow.protocol, flow.port) => {
                self.former.contain(set, flow.ends(rule.origin.direction).1)
            }
            _ => false,
        };
        let matches = |rule: &Rule| self.program.matches(rule, flow) || had_name(rule);
        let side = |direction| self.program.side_by(flow, direction, &matches);
        Direction::BOTH.into_iter().map(side).fold(Verdict::Allow, Verdict::and)
    }
}

/// Facts about the machine that only some backends have.
pub trait Diagnostics<P> {
    /// Conditions that keep rules out of force without being errors.
    fn warnings(&self, planner: &P) -> Vec<String>;

    /// The number of weir's rules on the machine, in the backend's own terms, as last read; `None` if
    /// the backend does not count them.
    fn rule_count(&self) -> Option<usize>;

    /// The way of packets, as last read, on a machine whose datapath remembers connections itself.
    fn packet_path(&self) -> Option<PacketPath> {
        None
    }
}
