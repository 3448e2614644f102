use std::{collections::BTreeSet, net::IpAddr};

use weir_model::{Block, Interval, IpFamily, address_number, numbered_address};

use crate::ElementKey;

/// The addresses of numbered intervals, divided wherever an interval begins or ends. Each piece
/// comes with the numbers of the intervals that contain it, sorted.
pub(crate) fn segments(
    mut parts: Vec<(Interval, usize)>,
    family: IpFamily,
) -> Vec<(ElementKey, Vec<usize>)> {
    let mut cuts: Vec<u128> = parts.iter().map(|((first, _), _)| *first).collect();
    cuts.extend(parts.iter().filter_map(|((_, last), _)| last.checked_add(1)));
    cuts.sort_unstable();
    cuts.dedup();
    let ends = cuts.iter().skip(1).map(|next| next - 1).chain([u128::MAX]);
    parts.sort_unstable();
    let mut coming = parts.iter().peekable();
    // The ends of the parts that contain the current piece, and the numbers of these parts.
    let mut leaving: BTreeSet<(u128, usize)> = BTreeSet::new();
    let mut inside: BTreeSet<usize> = BTreeSet::new();
    let mut pieces = Vec::new();
    for piece in cuts.iter().copied().zip(ends) {
        while let Some((last, number)) =
            leaving.first().copied().filter(|(last, _)| *last < piece.0)
        {
            leaving.remove(&(last, number));
            inside.remove(&number);
        }
        while let Some(((_, last), number)) = coming.next_if(|((first, _), _)| *first <= piece.0) {
            leaving.insert((*last, *number));
            inside.insert(*number);
        }
        if !inside.is_empty() {
            pieces.push((interval_key(piece, family), inside.iter().copied().collect()));
        }
    }
    pieces
}

/// The intervals of some blocks of one family, joined where they touch or overlap.
pub(crate) fn union<'a>(
    blocks: impl IntoIterator<Item = &'a Block>,
    family: IpFamily,
) -> Vec<Interval> {
    let ours = blocks.into_iter().filter(|block| IpFamily::from(block.net.addr()) == family);
    let mut parts: Vec<Interval> = ours.flat_map(Block::intervals).collect();
    parts.sort_unstable();
    parts.dedup_by(|next, last| {
        let touches = last.1.checked_add(1).is_none_or(|end| next.0 <= end);
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    parts
}

/// The number of ranges in all pieces into which ranges divide each other. A range has its begin
/// and the begin of what follows.
pub(crate) fn overlaps<T: Ord>(ranges: impl IntoIterator<Item = (T, T)>) -> usize {
    let edges = |(begin, end)| [(begin, true), (end, false)];
    let mut edges: Vec<(T, bool)> = ranges.into_iter().flat_map(edges).collect();
    edges.sort_unstable();
    let (mut open, mut all) = (0_usize, 0_usize);
    for same in edges.chunk_by(|(one, _), (other, _)| one == other) {
        let begins = same.iter().filter(|(_, is_begin)| *is_begin).count();
        open = (open + begins).saturating_sub(same.len() - begins);
        all += open;
    }
    all
}

/// The key of an interval. The last piece may exceed the addresses of the family.
pub(crate) fn interval_key((first, last): Interval, family: IpFamily) -> ElementKey {
    ElementKey::Block(numbered_address(first, family), numbered_address(last, family))
}

/// An interval as nft prints it: as an address, a prefix or a range.
pub(crate) fn text(first: IpAddr, last: IpAddr) -> String {
    let size = address_number(last).saturating_sub(address_number(first));
    let bits = if first.is_ipv4() { 32 } else { 128 };
    if size == 0 {
        return first.to_string();
    }
    if size & (size.wrapping_add(1)) == 0 && address_number(first) & size == 0 {
        return format!("{first}/{}", bits - size.count_ones());
    }
    format!("{first}-{last}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(net: &str, except: &[&str]) -> Block {
        Block::new(net.parse().unwrap(), except.iter().map(|net| net.parse().unwrap()))
    }

    /// The pieces of blocks, with the numbers of the blocks that contain each.
    fn pieces(blocks: &[Block], family: IpFamily) -> Vec<(ElementKey, Vec<usize>)> {
        let numbered = blocks.iter().enumerate();
        let parts = numbered.flat_map(|(number, block)| {
            union([block], family).into_iter().map(move |part| (part, number))
        });
        segments(parts.collect(), family)
    }

    fn texts(blocks: &[Block], family: IpFamily) -> Vec<String> {
        pieces(blocks, family).iter().map(|(key, _)| key.to_string()).collect()
    }

    #[test]
    fn an_exception_applies_to_its_own_block_only() {
        let blocks = [
            block("10.0.0.0/8", &["10.1.0.0/16"]),
            block("10.1.2.0/24", &[]),
            block("fd00::/8", &[]),
        ];
        assert_eq!(
            texts(&blocks, IpFamily::V4),
            ["10.0.0.0/16", "10.1.2.0/24", "10.2.0.0-10.255.255.255"]
        );
        assert_eq!(texts(&blocks, IpFamily::V6), ["fd00::/8"]);
        assert_eq!(
            texts(&[block("0.0.0.0/0", &["0.0.0.0/1", "128.0.0.0/1"])], IpFamily::V4),
            [""; 0]
        );
        assert_eq!(texts(&[block("::/0", &[])], IpFamily::V6), ["::/0"]);
    }

    fn small() -> impl Strategy<Value = Block> {
        let hole = (0_u8..=255, 25_u8..=32);
        let holes = proptest::collection::vec(hole, 0..4);
        (24_u8..=32, 0_u8..=255, holes).prop_map(|(length, last, holes)| {
            let net = |last: u8, length: u8| {
                format!("10.0.0.{last}/{length}").parse::<ipnet::IpNet>().unwrap().trunc()
            };
            let outer = net(last, length);
            let inside = holes
                .into_iter()
                .map(|(last, length)| net(last, length))
                .filter(|hole| outer.contains(hole) && *hole != outer);
            Block::new(outer, inside)
        })
    }

    proptest! {
        #[test]
        fn a_piece_lists_the_blocks_that_contain_it(
            blocks in proptest::collection::vec(small(), 0..5),
            last in 0_u8..=255,
        ) {
            let address = IpAddr::from([10, 0, 0, last]);
            let holds = |key: &ElementKey| {
                matches!(key, ElementKey::Block(first, last) if (first..=last).contains(&&address))
            };
            let pieces = pieces(&blocks, IpFamily::V4);
            let mut around = pieces.iter().filter(|(key, _)| holds(key));
            let listed = around.next().map(|(_, numbers)| numbers.clone()).unwrap_or_default();
            prop_assert!(around.next().is_none());
            let numbered = blocks.iter().enumerate();
            let expected = numbered.filter(|(_, block)| block.contains(address));
            let expected: Vec<usize> = expected.map(|(number, _)| number).collect();
            prop_assert_eq!(&listed, &expected);
            let number = address_number(address);
            let joined = union(&blocks, IpFamily::V4);
            let joined = joined.iter().any(|(first, last)| (first..=last).contains(&&number));
            prop_assert_eq!(joined, !expected.is_empty());
            let all = pieces.iter().map(|(_, numbers)| numbers.len()).sum::<usize>();
            let parts = blocks.iter().flat_map(|block| union([block], IpFamily::V4));
            prop_assert_eq!(overlaps(parts.map(|(first, last)| (first, last + 1))), all);
        }
    }
}
