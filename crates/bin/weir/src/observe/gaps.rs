//! What the flows of an agent do not contain.

use std::time::{Duration, Instant};

use weir_flows::FlowsPage;

/// The shortest time between two reports of numbers, which can grow with every page.
const NUMBERS_INTERVAL: Duration = Duration::from_secs(60);

/// Sentences about what the flows of an agent do not contain.
pub(crate) fn gaps(page: &FlowsPage) -> Vec<String> {
    GapReport::default().changes(page, Instant::now())
}

/// The reason of an agent that does not observe connections, as a sentence.
pub(super) fn unavailable(why: &str) -> String {
    format!("the agent does not observe connections: {why}")
}

/// What was reported about an agent that is followed.
#[derive(Debug, Default)]
pub(super) struct GapReport {
    unavailable: Option<String>,
    lost: u64,
    evicted: u64,
    /// The time of the last report of numbers.
    reported: Option<Instant>,
}

impl GapReport {
    /// Sentences about what changed since the last report.
    pub(super) fn changes(&mut self, page: &FlowsPage, now: Instant) -> Vec<String> {
        let mut sentences = Vec::new();
        if self.unavailable != page.flows_unavailable {
            self.unavailable.clone_from(&page.flows_unavailable);
            sentences.push(match &page.flows_unavailable {
                Some(why) => unavailable(why),
                None => "the agent observes connections now".to_owned(),
            });
        }
        if self.reported.is_some_and(|last| now.saturating_duration_since(last) < NUMBERS_INTERVAL)
        {
            return sentences;
        }
        let numbers = sentences.len();
        if page.lost > 0 && page.lost != self.lost {
            sentences.push(format!("at least {} connections were not observed", page.lost));
        }
        if page.evicted > 0 && page.evicted != self.evicted {
            sentences.push(format!("{} flows made room for others", page.evicted));
        }
        if sentences.len() > numbers {
            (self.lost, self.evicted, self.reported) = (page.lost, page.evicted, Some(now));
        }
        sentences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_lacks_is_reported_when_it_changes() {
        let start = Instant::now();
        let mut report = GapReport::default();
        let mut changes = |seconds: u64, why: Option<&str>, lost: u64, evicted: u64| {
            let flows_unavailable = why.map(str::to_owned);
            let page = FlowsPage { lost, evicted, flows_unavailable, ..FlowsPage::default() };
            report.changes(&page, start + Duration::from_secs(seconds)).join("; ")
        };
        assert_eq!(changes(0, None, 0, 0), "");
        let why = Some("no conntrack");
        assert_eq!(changes(1, why, 0, 0), "the agent does not observe connections: no conntrack");
        assert_eq!(changes(2, why, 0, 0), "");
        assert_eq!(changes(3, None, 0, 0), "the agent observes connections now");
        assert_eq!(changes(4, None, 2, 0), "at least 2 connections were not observed");
        assert_eq!(changes(5, None, 3, 7), "", "numbers are reported once a minute");
        let both = "at least 3 connections were not observed; 7 flows made room for others";
        assert_eq!(changes(64, None, 3, 7), both);
        assert_eq!(changes(200, None, 3, 7), "");
    }
}
