use std::collections::BTreeMap;

use crate::Id;

/// The objects that do not have what they ask for, and why.
#[derive(Debug, Default)]
pub(super) struct Unserved(BTreeMap<Id, String>);

/// What is new about an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    /// It does not have what it asks for, or for another reason than before.
    Worse(&'a str),
    /// It has it again.
    Better,
}

impl Unserved {
    /// Remembers what is wrong about an object, if anything is, and tells what is new about that.
    pub(super) fn judge(&mut self, id: Id, wrong: Option<String>) -> Option<Turn<'_>> {
        match wrong {
            Some(wrong) if self.0.get(&id) == Some(&wrong) => None,
            Some(wrong) => {
                let known = self.0.entry(id).or_default();
                *known = wrong;
                Some(Turn::Worse(known))
            }
            None => self.0.remove(&id).map(|_| Turn::Better),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_once_until_it_changes() {
        let mut unserved = Unserved::default();
        let id = |name: &str| Id { namespace: "shop".into(), name: name.into() };
        let wrong = |why: &str| Some(why.to_owned());
        assert_eq!(unserved.judge(id("a"), None), None);
        assert_eq!(unserved.judge(id("a"), wrong("taken")), Some(Turn::Worse("taken")));
        assert_eq!(unserved.judge(id("a"), wrong("taken")), None);
        assert_eq!(unserved.judge(id("b"), wrong("taken")), Some(Turn::Worse("taken")));
        assert_eq!(unserved.judge(id("a"), wrong("invalid")), Some(Turn::Worse("invalid")));
        assert_eq!(unserved.count(), 2);
        assert_eq!(unserved.judge(id("a"), None), Some(Turn::Better));
        assert_eq!(unserved.judge(id("a"), None), None);
        assert_eq!(unserved.count(), 1);
    }
}
