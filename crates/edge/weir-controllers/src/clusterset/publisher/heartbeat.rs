//! Heartbeats: renews the lease of this cluster, and reads those of the others.

use std::time::Instant;

use weir_clusterset::{Liveness, Rival};
use weir_kube::ObjectId;

use super::{BATCH_WINDOW, NAME, Publisher};
use crate::{
    clusterset::{
        BrokerContact, BrokerView, ClusterSetSettings,
        lease::{self, Holder},
        wire::{self, CLUSTER},
    },
    condition,
};

/// The broker is unreachable after this many renewals without an answer, like a cluster that missed
/// as many.
const MISSED_RENEWALS: u32 = 3;

impl Publisher<'_> {
    /// Applies the interests of another cluster, if its lease is valid and held by that very
    /// cluster.
    pub(super) fn apply_member(&mut self, id: &ObjectId) {
        if *id.name == *self.settings.cluster {
            return;
        }
        let roster = &self.membership.roster;
        let member = self.broker.members.get(id);
        let limits = self.settings.network_limits;
        let member = member.and_then(|object| wire::read_member(object).ok()).filter(|member| {
            member.check(limits).is_ok()
                && roster.holder(&member.cluster) == Some(&member.uid)
                && roster.liveness(&member.cluster) != Some(Liveness::Expired)
        });
        let interests = member.map(|member| member.interests.into_iter().collect());
        let cluster = id.name.as_str().into();
        self.local.publication.set_interests(&cluster, interests.unwrap_or_default());
    }

    /// Reads the leases of all clusters, and renews the one of this cluster.
    pub(super) async fn heartbeat(&mut self) {
        self.membership.next_renewal = Instant::now() + self.settings.renewal;
        let Some(uid) = self.local.uid.clone() else {
            // The list of namespaces contains it.
            self.membership.next_renewal = Instant::now() + BATCH_WINDOW;
            return;
        };
        let ClusterSetSettings { namespace, cluster, expiry, .. } = self.settings;
        let (heartbeats, own) = match lease::list(&self.broker.client, namespace, cluster).await {
            Ok(listed) => listed,
            Err(error) => {
                let (cause, hint) = (error.text(), error.hint());
                let problem = format!("cannot list the leases on the broker: {cause}; {hint}");
                self.report_outage();
                return self.set_problem(Some(problem));
            }
        };
        self.membership.last_contact = Some((Instant::now(), condition::now()));
        let elapsed = self.membership.started.elapsed();
        self.membership.roster.observe(elapsed, heartbeats.clone());
        let members: Vec<ObjectId> =
            self.broker.members.iter().map(|member| member.id().clone()).collect();
        members.iter().for_each(|id| self.apply_member(id));
        self.collect_changes();
        let rival = self.membership.roster.rival(cluster, &uid, &self.membership.controller);
        if let Some(rival) = rival {
            let problem = disowned(cluster, &rival);
            self.membership.holds_lease = false;
            self.report_contact(BrokerView::Disowned(problem.clone()));
            return self.set_problem(Some(problem));
        }
        let holder = Holder { cluster, uid: &uid, controller: &self.membership.controller };
        match lease::renew(&self.broker.client, namespace, holder, *expiry, own).await {
            Ok(()) => {
                self.membership.holds_lease = true;
                self.set_problem(None);
            }
            Err(error) => {
                let (cause, hint) = (error.text(), error.hint());
                let problem = format!("cannot renew the lease on the broker: {cause}; {hint}");
                self.set_problem(Some(problem));
            }
        }
        self.context.report.set_warnings(NAME, self.aliases(cluster, &uid));
        // Without a renewed lease, the id of this cluster may belong to another.
        if !self.membership.holds_lease {
            return;
        }
        let roster = &self.membership.roster;
        let alive = heartbeats.keys().filter(|other| *other != cluster).filter_map(|other| {
            let holder = roster.holder(other)?.clone();
            Some((other.clone(), (holder, roster.liveness(other)?)))
        });
        let view = BrokerView::Clusters(alive.collect());
        self.report_contact(view);
        if self.pending.next_flush.is_none() {
            self.pending.next_flush = Some(Instant::now());
        }
    }

    /// Sends the current view of the broker to the translator.
    fn report_contact(&self, view: BrokerView) {
        let contact = BrokerContact { view, lost_since: None };
        self.membership.contact.send_if_modified(|current| {
            let is_new = *current != contact;
            *current = contact;
            is_new
        });
    }

    /// Reports a failed heartbeat to the translator, unless the last contact is recent.
    fn report_outage(&self) {
        let Some((at, time)) = &self.membership.last_contact else { return };
        if at.elapsed() < self.settings.renewal * MISSED_RENEWALS {
            return;
        }
        self.membership.contact.send_if_modified(|current| {
            let is_new = current.lost_since.as_ref() != Some(time);
            current.lost_since = Some(time.clone());
            is_new
        });
    }

    /// Warnings about other ids that this cluster has on the broker.
    fn aliases(&self, cluster: &str, uid: &str) -> Vec<String> {
        let aliases = self.membership.roster.aliases(cluster, uid).map(|alias| {
            format!(
                "this cluster is also on the broker as {alias}, so no cluster allows its \
                 addresses; if its id is now {cluster}, delete the objects of {alias}: kubectl \
                 -n {} delete remotepods,remotenamespaces,clustersetmembers,leases -l \
                 {CLUSTER}={alias}",
                self.settings.namespace
            )
        });
        aliases.collect()
    }
}

/// Why the id does not belong to this controller.
fn disowned(cluster: &str, rival: &Rival) -> String {
    match rival {
        Rival::Cluster(uid) => format!(
            "another cluster, whose kube-system has the uid {uid}, uses the id {cluster}: this \
             controller publishes nothing and keeps the allowed addresses; give one of the two \
             another --cluster-id"
        ),
        Rival::Controller(controller) => format!(
            "another controller of this cluster, with the lease {controller}, is the leader for \
             {cluster}: this one changes nothing; stop one of the two"
        ),
    }
}
