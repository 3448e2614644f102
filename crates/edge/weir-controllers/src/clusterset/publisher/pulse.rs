//! Signs of life: our own, and those of others.

use std::time::Instant;

use weir_clusterset::{Life, Rival};

use super::{GATHER, NAME, Publisher};
use crate::{
    Id,
    clusterset::{
        Settings, Sight,
        broker::{self, Holder},
        wire::{self, CLUSTER},
    },
};

impl Publisher<'_> {
    /// Takes in what another cluster asks for, if it is alive and what it says it is.
    pub(super) fn ask(&mut self, id: &Id) {
        if *id.name == *self.settings.cluster {
            return;
        }
        let told = self.members.get(id).and_then(|object| wire::read_member(object).ok());
        let told = told.filter(|told| {
            self.roster.holder(&told.cluster) == Some(&told.uid)
                && self.roster.life(&told.cluster) != Some(Life::Gone)
        });
        let interests = told.map(|told| told.interests.into_iter().collect()).unwrap_or_default();
        self.publication.interests(&id.name.as_str().into(), interests);
    }

    /// Looks who is alive, and says that we are.
    pub(super) async fn pulse(&mut self) {
        self.next_pulse = Instant::now() + self.settings.renewal;
        let Some(uid) = self.uid.clone() else {
            // It is among the namespaces.
            self.next_pulse = Instant::now() + GATHER;
            return;
        };
        let Settings { namespace, cluster, expiry, .. } = self.settings;
        let (pulses, lease) = match broker::pulses(&self.server, namespace, cluster).await {
            Ok(seen) => seen,
            Err(error) => {
                let text =
                    format!("the broker cannot be asked: {}; {}", error.text(), error.hint());
                return self.in_trouble("Lease", Some(text));
            }
        };
        self.roster.look(self.start.elapsed(), pulses.clone());
        let all: Vec<Id> = self.members.iter().map(Id::of).collect();
        all.iter().for_each(|id| self.ask(id));
        self.gather();
        let rival = self.roster.rival(cluster, &uid, &self.seat);
        if let Some(rival) = rival {
            let text = disowned(cluster, &rival);
            self.holds = false;
            self.sight.send_replace(Sight::Disowned(text.clone()));
            return self.in_trouble("Lease", Some(text));
        }
        let holder = Holder { cluster, uid: &uid, seat: &self.seat };
        match broker::renew(&self.server, namespace, holder, *expiry, lease).await {
            Ok(()) => {
                self.holds = true;
                self.in_trouble("Lease", None);
            }
            Err(error) => {
                let text =
                    format!("cannot give a sign of life: {}; {}", error.text(), error.hint());
                self.in_trouble("Lease", Some(text));
            }
        }
        self.context.report.note(NAME, self.aliases(cluster, &uid));
        // Whether the id is ours, only who has renewed the lease knows.
        if !self.holds {
            return;
        }
        let lives = pulses.keys().filter(|other| *other != cluster).filter_map(|other| {
            let holder = self.roster.holder(other)?.clone();
            Some((other.clone(), (holder, self.roster.life(other)?)))
        });
        let now = Sight::Lives(lives.collect());
        self.sight.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
        if self.next_flush.is_none() {
            self.next_flush = Some(Instant::now());
        }
    }

    /// Under which other names this cluster is on the broker.
    fn aliases(&self, cluster: &str, uid: &str) -> Vec<String> {
        let aliases = self.roster.aliases(cluster, uid).map(|alias| {
            format!(
                "this cluster is on the broker as {alias}, too, and so its addresses are allowed nowhere; if it is {cluster} now, remove what it told as {alias}: kubectl -n {} delete remotepods,remotenamespaces,clustersetmembers,leases -l {CLUSTER}={alias}",
                self.settings.namespace
            )
        });
        aliases.collect()
    }
}

/// Why an id is not ours.
fn disowned(cluster: &str, rival: &Rival) -> String {
    match rival {
        Rival::Cluster(uid) => format!(
            "another cluster, whose kube-system has the uid {uid}, goes by the id {cluster}: nothing is published, and who is allowed stays as it is; give one of the two another --cluster-id"
        ),
        Rival::Controller(seat) => format!(
            "another controller of this cluster, with the lease {seat}, is in charge of {cluster}: this one changes nothing; end one of the two"
        ),
    }
}
