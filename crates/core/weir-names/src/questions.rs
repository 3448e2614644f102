use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use crate::message::Question;

/// An answer that arrives later than this after its question teaches nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most open questions of a pod, and the most answered ones. Further ones are not recorded.
const MAX_QUESTIONS_PER_POD: usize = 512;

/// How an answer identifies its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuestionKey {
    pub(crate) pod: SocketAddr,
    pub(crate) resolver: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) id: u16,
}

/// A question, and the link that it arrived at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedQuestion {
    pub(crate) question: Question,
    pub(crate) link: Option<u32>,
}

/// The transport of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// The questions of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Those that wait for an answer.
    open: Recent<AskedQuestion>,
    /// Those that have got one.
    answered: Recent<()>,
}

/// The question of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Matched {
    /// This is the first answer to the question.
    Open(AskedQuestion),
    /// The question has got an answer before.
    Answered,
    /// No question of the last seconds.
    Unknown,
}

impl Questions {
    /// Records a question. A pod that uses an id again has asked the later question only. Too many
    /// open questions of a pod are not recorded.
    pub(crate) fn ask(&mut self, key: QuestionKey, question: AskedQuestion, now: Instant) {
        self.forget(&key);
        self.open.insert(key, question, now);
    }

    /// The question that an answer refers to. It is not open any more.
    pub(crate) fn answer(&mut self, key: &QuestionKey, now: Instant) -> Matched {
        self.open.expire(now);
        self.answered.expire(now);
        match self.open.remove(key) {
            Some(question) => {
                self.answered.insert(*key, (), now);
                Matched::Open(question)
            }
            None if self.answered.contains(key) => Matched::Answered,
            None => Matched::Unknown,
        }
    }

    /// Forgets a question.
    pub(crate) fn forget(&mut self, key: &QuestionKey) {
        self.open.remove(key);
        self.answered.remove(key);
    }
}

/// Questions in the order of their insertion, a limited number for each pod.
#[derive(Debug)]
struct Recent<T> {
    values: BTreeMap<QuestionKey, (T, Asked)>,
    by_time: BTreeMap<Asked, QuestionKey>,
    /// The number of questions of each pod.
    counts: BTreeMap<IpAddr, usize>,
    next: u64,
}

/// When a question was inserted, and its number.
type Asked = (Instant, u64);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        let (values, by_time, counts) = Default::default();
        Recent { values, by_time, counts, next: 0 }
    }
}

impl<T> Recent<T> {
    /// Inserts a question that is not there, unless its pod has too many.
    fn insert(&mut self, key: QuestionKey, value: T, now: Instant) {
        self.expire(now);
        let count = self.counts.entry(key.pod.ip()).or_default();
        if *count >= MAX_QUESTIONS_PER_POD {
            return;
        }
        *count += 1;
        self.next += 1;
        let asked = (now, self.next);
        self.by_time.insert(asked, key);
        self.values.insert(key, (value, asked));
    }

    fn contains(&self, key: &QuestionKey) -> bool {
        self.values.contains_key(key)
    }

    fn expire(&mut self, now: Instant) {
        while let Some((&(asked, _), &key)) = self.by_time.first_key_value() {
            if now.saturating_duration_since(asked) <= ANSWER_TIMEOUT {
                return;
            }
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &QuestionKey) -> Option<T> {
        let (value, asked) = self.values.remove(key)?;
        self.by_time.remove(&asked);
        let pod = key.pod.ip();
        if let Some(count) = self.counts.get_mut(&pod) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&pod);
            }
        }
        Some(value)
    }
}
