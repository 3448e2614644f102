//! The addresses of domain names.

use super::{Reporter, gauge_value};
use crate::report::NameReport;

impl Reporter {
    /// A DNS answer gave addresses.
    pub(crate) fn answer_observed(&self) {
        self.report.metrics.answers.inc();
    }

    /// These addresses are known.
    pub(crate) fn set_names(&self, names: Vec<NameReport>) {
        self.report.metrics.names.set(gauge_value(names.len()));
        self.report.names().names = names;
    }

    /// DNS answers cannot be observed, for this reason.
    pub(crate) fn set_names_unavailable(&mut self, why: Option<String>) {
        if self.warnings.names == why {
            return;
        }
        self.report.names().names_unavailable.clone_from(&why);
        self.warnings.names = why;
        self.update_warnings();
    }
}
