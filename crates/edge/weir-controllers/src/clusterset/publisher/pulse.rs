//! Signs of life: our own, and those of others.

use std::time::Instant;

use weir_clusterset::Life;

use super::{GATHER, Publisher};
use crate::{
    Id,
    clusterset::{Lives, Settings, broker, wire},
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
        if let Some(rival) = self.roster.rival(cluster, &uid) {
            let text = format!(
                "another cluster, whose kube-system has the uid {rival}, goes by the id {cluster}: nothing is published; give one of the two another --cluster-id"
            );
            self.holds = false;
            self.in_trouble("Lease", Some(text));
        } else {
            match broker::renew(&self.server, namespace, cluster, &uid, *expiry, lease).await {
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
        }
        let lives = pulses.keys().filter(|other| *other != cluster).filter_map(|other| {
            let holder = self.roster.holder(other)?.clone();
            Some((other.clone(), (holder, self.roster.life(other)?)))
        });
        let lives: Lives = lives.collect();
        self.lives.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&lives);
            *known = Some(lives);
            is_new
        });
        if self.next_flush.is_none() {
            self.next_flush = Some(Instant::now());
        }
    }
}
