//! All pairs of ends. Addresses outside the cluster that the rules of a pod do not distinguish are
//! evaluated once for this pod: each policy of a cluster can have a block of its own, and each block
//! divides the addresses for all pods.

use std::ops::Range;

use weir_model::Direction;

use crate::{
    ends::Ends,
    evaluator::{EndClass, Evaluator, OpenPorts},
    outside::OutsideClass,
};

/// Sources and destinations with the same open ports, by index.
pub(crate) struct PairRange {
    pub(crate) from: Range<usize>,
    pub(crate) to: Range<usize>,
    pub(crate) open: OpenPorts,
}

/// Visits the pairs that are wanted and contain a pod. For each destination, the sources arrive in
/// order. For an outside class without a name, the pod alone must decide whether a pair is wanted.
/// Reports the progress as `(done, all)`.
pub(crate) fn visit<'a>(
    evaluator: &mut Evaluator<'a>,
    ends: &Ends<'a>,
    is_wanted: impl Fn(usize, usize) -> bool,
    mut progress: impl FnMut(usize, usize),
    mut each: impl FnMut(&Evaluator<'a>, PairRange),
) {
    let classes = ends.classes(evaluator);
    let pods = ends.groups.len();
    let unnamed = ends.outside.iter().take_while(|class| class.name.is_none()).count();
    let (unnamed, named) = (pods..pods + unnamed, pods + unnamed..classes.len());
    let mut evaluate = |evaluator: &mut Evaluator<'a>, from: Range<usize>, to: Range<usize>| {
        if is_wanted(from.start, to.start)
            && let Some(open) = evaluator.open(&classes[from.start], &classes[to.start])
        {
            each(evaluator, PairRange { from, to, open });
        }
    };
    let segments = |evaluator: &Evaluator<'a>, pod: usize, direction| {
        let outside = &ends.outside[..unnamed.len()];
        let ranges = segments(evaluator, &classes[pod], direction, outside);
        ranges.into_iter().map(|range| range.start + pods..range.end + pods)
    };
    let all = 2 * pods + named.len();
    let has_unnamed = !unnamed.is_empty();
    for from in 0..pods {
        progress(from, all);
        let own = from..from + 1;
        (0..pods).for_each(|to| evaluate(evaluator, own.clone(), to..to + 1));
        if has_unnamed && is_wanted(from, unnamed.start) {
            for to in segments(evaluator, from, Direction::Egress) {
                evaluate(evaluator, own.clone(), to);
            }
        }
        named.clone().for_each(|to| evaluate(evaluator, own.clone(), to..to + 1));
    }
    for to in 0..pods {
        progress(pods + to, all);
        if has_unnamed && is_wanted(unnamed.start, to) {
            for from in segments(evaluator, to, Direction::Ingress) {
                evaluate(evaluator, from, to..to + 1);
            }
        }
    }
    for from in named {
        (0..pods).for_each(|to| evaluate(evaluator, from..from + 1, to..to + 1));
    }
    progress(all, all);
}

/// Ranges of outside classes that the rules of a pod class do not distinguish.
fn segments<'a>(
    evaluator: &Evaluator<'a>,
    pod: &EndClass<'a>,
    direction: Direction,
    outside: &[OutsideClass],
) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(class) = outside.get(at) {
        let end = match evaluator.next_boundary(pod, direction, class.example) {
            None => outside.len(),
            Some(next) => outside.partition_point(|class| class.example < next),
        };
        // The boundary is after the example, so that every range has a class.
        ranges.push(at..end);
        at = end;
    }
    ranges
}
