//! Joins the rows of a large matrix that say the same.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use weir_model::PodId;

use super::Cell;

/// Cells, row by row; none where there is nothing to ask.
type Cells = Vec<Vec<Option<Rc<Cell>>>>;

/// A cell by number, so that comparing is cheap; 0 where there is nothing to ask.
type Numbered = Vec<Vec<u32>>;

/// Joins lines of one namespace whose rows and columns say the same, towards each other as well.
pub(crate) fn fold(lines: Vec<Vec<&PodId>>, cells: Cells) -> (Vec<Vec<&PodId>>, Cells) {
    let numbered = number(&cells);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Only lines with the same cells in any order can be alike.
    let mut candidates: BTreeMap<(Option<&str>, Vec<u32>), Vec<usize>> = BTreeMap::new();
    for (at, pods) in lines.iter().enumerate() {
        let namespace = pods.first().map(|id| &*id.namespace);
        let mut told: Vec<u32> = numbered[at].iter().copied().filter(|cell| *cell > 0).collect();
        told.sort_unstable();
        told.dedup();
        let known = candidates.entry((namespace, told)).or_default();
        match known.iter().find(|group| alike(&numbered, groups[**group][0], at)) {
            Some(group) => groups[*group].push(at),
            None => {
                known.push(groups.len());
                groups.push(vec![at]);
            }
        }
    }
    let cell = |from: &[usize], to: &[usize]| {
        let mut pairs = from.iter().flat_map(|f| to.iter().map(move |t| (*f, *t)));
        pairs.find_map(|(from, to)| cells[from][to].clone())
    };
    let folded =
        groups.iter().map(|from| groups.iter().map(|to| cell(from, to)).collect()).collect();
    let members = groups.iter().map(|group| {
        let mut pods: Vec<&PodId> = group.iter().flat_map(|at| lines[*at].clone()).collect();
        pods.sort();
        pods
    });
    (members.collect(), folded)
}

fn number(cells: &Cells) -> Numbered {
    let mut numbers: HashMap<&Cell, u32> = HashMap::new();
    let mut number = |cell| {
        let next = numbers.len() as u32 + 1;
        *numbers.entry(cell).or_insert(next)
    };
    cells
        .iter()
        .map(|row| row.iter().map(|c| c.as_deref().map_or(0, &mut number)).collect())
        .collect()
}

/// Whether two lines say the same about all others, and the same about each other as about themselves.
fn alike(cells: &Numbered, one: usize, two: usize) -> bool {
    let others = (0..cells.len()).filter(|other| *other != one && *other != two);
    let between = cells[one][two];
    let fits = |own: u32| own == 0 || own == between;
    between == cells[two][one]
        && fits(cells[one][one])
        && fits(cells[two][two])
        && others
            .into_iter()
            .all(|k| cells[one][k] == cells[two][k] && cells[k][one] == cells[k][two])
}

#[cfg(test)]
mod tests {
    use weir_model::{PortRange, Protocol};

    use super::*;

    #[test]
    fn lines_that_say_the_same_become_one() {
        let open =
            Some(Rc::new(Cell { allowed: vec![PortRange::all(Protocol::Tcp)], ..Cell::default() }));
        let shut =
            Some(Rc::new(Cell { denied: vec![PortRange::all(Protocol::Tcp)], ..Cell::default() }));
        let pods = ["a", "b", "c"].map(|name| PodId::new("shop", name));
        let lines = pods.iter().map(|id| vec![id]).collect();
        let cells = vec![
            vec![None, open.clone(), shut.clone()],
            vec![open.clone(), None, shut.clone()],
            vec![open.clone(), open.clone(), None],
        ];
        let (lines, cells) = fold(lines, cells);
        assert_eq!(lines, [vec![&pods[0], &pods[1]], vec![&pods[2]]]);
        assert!(cells == [vec![open.clone(), shut], vec![open, None]]);
    }
}
