use std::{collections::BTreeMap, time::Duration};

use weir_model::Name;

/// By how much the clocks of two machines may differ before it matters.
const SKEW: Duration = Duration::from_secs(10 * 60);

/// For how long a cluster may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How often a cluster gives a sign of life.
    pub renewal: Duration,
    /// After this long without one, it is gone, and so are its addresses.
    pub expiry: Duration,
}

/// A sign of life, as somebody saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// The cluster that gave it, by something that no other has: two of one name differ in it.
    pub holder: Name,
    /// Which of its controllers gave it: where that has its place in the cluster. Empty if that was not told.
    pub seat: Name,
    /// Which sign: another text is another sign.
    pub renewal: Name,
    /// How old it is by the clocks of two machines. Only asked when a cluster is seen for the first time.
    pub age: Duration,
}

/// How a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// It gives signs of life.
    Alive,
    /// It misses some, and what it told still counts.
    Late,
    /// It is silent for too long.
    Gone,
}

/// Who else goes by a name, so that it is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Another cluster, by what tells it from ours.
    Cluster(Name),
    /// Another controller of our own cluster, by its seat.
    Controller(Name),
}

/// Who of the set is alive.
///
/// Time is counted by our own clock, and only while we hear anything at all: while the broker is away nobody expires.
#[derive(Clone, Debug)]
pub struct Roster {
    limits: Limits,
    clusters: BTreeMap<Name, Seen>,
    last: Option<Duration>,
}

#[derive(Clone, Debug)]
struct Seen {
    holder: Name,
    seat: Name,
    renewal: Name,
    /// For how long it was silent, at the last look.
    silent: Duration,
    /// For how much of that we looked ourselves.
    watched: Duration,
}

impl Roster {
    /// A roster that has seen nobody.
    pub fn new(limits: Limits) -> Self {
        Roster { limits, clusters: BTreeMap::new(), last: None }
    }

    /// Takes in all signs of life, at a time of our own clock.
    pub fn look(&mut self, now: Duration, pulses: BTreeMap<Name, Pulse>) {
        // A gap between two looks is a broker that was away: it counts as little as if there had been none.
        let most = self.limits.renewal * 3;
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last)).min(most);
        self.last = Some(now);
        self.clusters.retain(|cluster, _| pulses.contains_key(cluster));
        for (cluster, pulse) in pulses {
            match self.clusters.get_mut(&cluster) {
                Some(seen)
                    if seen.renewal == pulse.renewal
                        && seen.holder == pulse.holder
                        && seen.seat == pulse.seat =>
                {
                    seen.silent += passed;
                    seen.watched += passed;
                }
                Some(seen) => {
                    (seen.holder, seen.seat, seen.renewal) =
                        (pulse.holder, pulse.seat, pulse.renewal);
                    (seen.silent, seen.watched) = (Duration::ZERO, Duration::ZERO);
                }
                None => {
                    // Who expired before we looked stays so, however often we begin anew. Clocks differ: who is just over has some
                    // time to prove otherwise, and the next sign brings anybody back.
                    let expiry = self.limits.expiry;
                    let silent = match pulse.age >= expiry.saturating_add(SKEW) {
                        true => expiry,
                        false => pulse.age.min(expiry.saturating_sub(most)),
                    };
                    let Pulse { holder, seat, renewal, .. } = pulse;
                    let watched = Duration::ZERO;
                    self.clusters.insert(cluster, Seen { holder, seat, renewal, silent, watched });
                }
            }
        }
    }

    /// How a cluster is; `None` if it never gave a sign, or has left.
    pub fn life(&self, cluster: &str) -> Option<Life> {
        let seen = self.clusters.get(cluster)?;
        Some(match seen.silent {
            silent if silent >= self.limits.expiry => Life::Gone,
            silent if silent >= self.limits.renewal * 3 => Life::Late,
            _ => Life::Alive,
        })
    }

    /// Who gives the signs of a cluster.
    pub fn holder(&self, cluster: &str) -> Option<&Name> {
        self.clusters.get(cluster).map(|seen| &seen.holder)
    }

    /// Who else goes by this name, if anybody, and is not gone: then it is not ours. That it is gone we must have seen for ourselves for a
    /// while: by a clock that is wrong, every other is. Another cluster is gone when it has expired; another controller of our own
    /// cluster, as soon as it is late.
    pub fn rival(&self, cluster: &str, holder: &str, seat: &str) -> Option<Rival> {
        let late = self.limits.renewal * 3;
        let seen = self.clusters.get(cluster)?;
        let (limit, rival) = match *seen.holder == *holder {
            false => (self.limits.expiry, Rival::Cluster(seen.holder.clone())),
            true if seen.seat.is_empty() || *seen.seat == *seat => return None,
            true => (late, Rival::Controller(seen.seat.clone())),
        };
        let is_gone = seen.silent >= limit && seen.watched >= late;
        (!is_gone).then_some(rival)
    }

    /// Under which other names a cluster gives signs of life.
    pub fn aliases(&self, cluster: &str, holder: &str) -> impl Iterator<Item = &Name> {
        let others = self.clusters.iter().filter(move |(name, _)| ***name != *cluster);
        let its = others.filter(move |(_, seen)| *seen.holder == *holder);
        its.filter(|(_, seen)| seen.silent < self.limits.expiry).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn roster() -> Roster {
        Roster::new(Limits { renewal: SECOND * 10, expiry: SECOND * 100 })
    }

    /// A sign of life of `holder@seat`.
    fn pulse(holder: &str, renewal: u32, age: u64) -> BTreeMap<Name, Pulse> {
        let (holder, seat) = holder.split_once('@').unwrap_or((holder, ""));
        let pulse = Pulse {
            holder: holder.into(),
            seat: seat.into(),
            renewal: renewal.to_string().into(),
            age: Duration::from_secs(age),
        };
        BTreeMap::from([("east".into(), pulse)])
    }

    #[test]
    fn a_silent_cluster_is_late_and_then_gone_and_a_sign_brings_it_back() {
        let mut roster = roster();
        let mut lives = Vec::new();
        for at in 0..=11 {
            roster.look(SECOND * at * 10, pulse("h", 0, 0));
            lives.extend(roster.life("east"));
        }
        assert_eq!(lives[..3], [Life::Alive; 3]);
        assert_eq!(lives[3..10], [Life::Late; 7]);
        assert_eq!(lives[10..], [Life::Gone; 2]);
        roster.look(SECOND * 120, pulse("h", 1, 0));
        assert_eq!(roster.life("east"), Some(Life::Alive));
        roster.look(SECOND * 130, BTreeMap::new());
        assert_eq!(roster.life("east"), None);
    }

    #[test]
    fn nobody_expires_while_the_broker_is_away() {
        let mut roster = roster();
        roster.look(SECOND, pulse("h", 0, 0));
        roster.look(SECOND * 100_000, pulse("h", 0, 0));
        assert_eq!(roster.life("east"), Some(Life::Late));
    }

    #[test]
    fn who_expired_before_we_came_is_gone_until_its_next_sign() {
        let mut roster = roster();
        roster.look(SECOND, pulse("h", 0, 1_000_000));
        assert_eq!(roster.life("east"), Some(Life::Gone));
        roster.look(SECOND * 2, pulse("h", 1, 1_000_000));
        assert_eq!(roster.life("east"), Some(Life::Alive), "whatever its clock says");
    }

    #[test]
    fn who_was_silent_a_little_too_long_before_we_came_has_some_time_to_prove_otherwise() {
        let mut roster = roster();
        roster.look(SECOND, pulse("h", 0, 100 + 599));
        assert_eq!(roster.life("east"), Some(Life::Late));
        for at in 2..6 {
            roster.look(SECOND * at * 10, pulse("h", 0, 100 + 599));
        }
        assert_eq!(roster.life("east"), Some(Life::Gone));
    }

    #[test]
    fn a_name_is_not_taken_from_another_by_a_clock_that_is_wrong() {
        let mut roster = roster();
        roster.look(SECOND, pulse("other", 0, 1_000_000));
        assert_eq!(roster.rival("east", "me", "here"), Some(Rival::Cluster("other".into())));
        for at in 1..=4 {
            roster.look(SECOND * at * 10, pulse("other", 0, 1_000_000));
        }
        assert_eq!(
            roster.rival("east", "me", "here"),
            None,
            "we saw for ourselves that it is silent"
        );
    }

    #[test]
    fn a_name_belongs_to_who_is_alive_under_it() {
        let mut roster = roster();
        roster.look(SECOND, pulse("other", 0, 0));
        assert_eq!(roster.rival("east", "me", "here"), Some(Rival::Cluster("other".into())));
        assert_eq!(roster.rival("east", "other", "here"), None);
        for at in 1..=12 {
            roster.look(SECOND * at * 10, pulse("other", 0, 0));
        }
        assert_eq!(roster.rival("east", "me", "here"), None, "it is gone, and the name is free");
    }

    #[test]
    fn of_two_controllers_of_one_cluster_the_first_is_in_charge_until_it_is_late() {
        let mut roster = roster();
        roster.look(SECOND, pulse("me@there", 0, 0));
        assert_eq!(roster.rival("east", "me", "there"), None, "the same one, started anew");
        let other = Some(Rival::Controller("there".into()));
        assert_eq!(roster.rival("east", "me", "here"), other);
        for at in 1..=30 {
            roster.look(SECOND * at * 10, pulse("me@there", at, 0));
            assert_eq!(roster.rival("east", "me", "here"), other);
        }
        for at in 31..=33 {
            roster.look(SECOND * at * 10, pulse("me@there", 30, 0));
        }
        assert_eq!(roster.rival("east", "me", "here"), None, "it is late, and we take over");
        roster.look(SECOND * 340, pulse("me@here", 34, 0));
        assert_eq!(roster.rival("east", "me", "there"), Some(Rival::Controller("here".into())));
    }

    #[test]
    fn a_cluster_that_goes_by_two_names_is_noticed() {
        let mut roster = roster();
        roster.look(SECOND, pulse("me", 0, 0));
        let names = |roster: &Roster| roster.aliases("new", "me").cloned().collect::<Vec<_>>();
        assert_eq!(names(&roster), ["east".into()]);
        assert_eq!(roster.aliases("east", "me").count(), 0);
        for at in 1..=12 {
            roster.look(SECOND * at * 10, pulse("me", 0, 0));
        }
        assert_eq!(names(&roster), [], "the other has expired");
    }
}
