//! Joins the rows of a large matrix that are equal.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use weir_model::PodId;

use crate::Cell;

/// Cells, row by row; `None` where there is no connection to evaluate.
type Cells = Vec<Vec<Option<Rc<Cell>>>>;

/// Cells by number, for cheap comparison; 0 where there is no connection to evaluate.
type Numbered = Vec<Vec<u32>>;

/// Joins lines of one namespace whose rows and columns are equal, including towards each other.
pub(crate) fn fold(lines: Vec<Vec<&PodId>>, cells: Cells) -> (Vec<Vec<&PodId>>, Cells) {
    let numbered = number(&cells);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // Only lines with the same cells, in any order, can be equal.
    let mut candidates: BTreeMap<(&str, Vec<u32>), Vec<usize>> = BTreeMap::new();
    for (at, pods) in lines.iter().enumerate() {
        let Some(namespace) = pods.first().map(|id| &*id.namespace) else {
            groups.push(vec![at]);
            continue;
        };
        let mut distinct: Vec<u32> =
            numbered[at].iter().copied().filter(|cell| *cell > 0).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let known = candidates.entry((namespace, distinct)).or_default();
        match known.iter().find(|group| are_alike(&numbered, groups[**group][0], at)) {
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

/// Whether two lines have equal cells for all other lines, and the same cell for each other as for
/// themselves.
fn are_alike(cells: &Numbered, one: usize, two: usize) -> bool {
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
    fn equal_lines_become_one() {
        let open =
            Some(Rc::new(Cell { allowed: vec![PortRange::all(Protocol::Tcp)], ..Cell::default() }));
        let closed =
            Some(Rc::new(Cell { denied: vec![PortRange::all(Protocol::Tcp)], ..Cell::default() }));
        let pods = ["a", "b", "c"].map(|name| PodId::new("shop", name));
        let lines = pods.iter().map(|id| vec![id]).collect();
        let cells = vec![
            vec![None, open.clone(), closed.clone()],
            vec![open.clone(), None, closed.clone()],
            vec![open.clone(), open.clone(), None],
        ];
        let (lines, cells) = fold(lines, cells);
        assert_eq!(lines, [vec![&pods[0], &pods[1]], vec![&pods[2]]]);
        assert!(cells == [vec![open.clone(), closed], vec![open, None]]);
    }
}
