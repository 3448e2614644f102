use std::{collections::BTreeMap, net::IpAddr};

use weir_model::{Block, Interval, IpFamily, address_number, numbered_address};

use crate::ElementKey;

/// The addresses of blocks in one family, divided wherever a block begins or ends. Each piece comes
/// with the blocks that contain it.
pub(crate) fn segments<'a>(
    blocks: impl IntoIterator<Item = &'a Block>,
    family: IpFamily,
) -> Vec<(ElementKey, Vec<&'a Block>)> {
    let ours = blocks.into_iter().filter(|block| IpFamily::from(block.net.addr()) == family);
    let mut parts: Vec<(Interval, &Block)> = ours
        .flat_map(|block| block.intervals().into_iter().map(move |part| (part, block)))
        .collect();
    let mut cuts: Vec<u128> = parts.iter().map(|((first, _), _)| *first).collect();
    cuts.extend(parts.iter().filter_map(|((_, last), _)| last.checked_add(1)));
    cuts.sort_unstable();
    cuts.dedup();
    let ends = cuts.iter().skip(1).map(|next| next - 1).chain([u128::MAX]);
    parts.sort_unstable_by_key(|(part, _)| *part);
    let mut coming = parts.iter().enumerate().peekable();
    // The parts that contain the current piece, by their end.
    let mut inside: BTreeMap<(u128, usize), &Block> = BTreeMap::new();
    let mut pieces = Vec::new();
    for piece in cuts.iter().copied().zip(ends) {
        inside = inside.split_off(&(piece.0, 0));
        while let Some((number, ((_, last), block))) =
            coming.next_if(|(_, ((first, _), _))| *first <= piece.0)
        {
            inside.insert((*last, number), block);
        }
        if !inside.is_empty() {
            pieces.push((interval_key(piece, family), inside.values().copied().collect()));
        }
    }
    pieces
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

    fn texts(blocks: &[Block], family: IpFamily) -> Vec<String> {
        segments(blocks, family).iter().map(|(key, _)| key.to_string()).collect()
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
        fn segments_contain_the_addresses_of_the_blocks(blocks in proptest::collection::vec(small(), 0..5), last in 0_u8..=255) {
            let address = IpAddr::from([10, 0, 0, last]);
            let inside = |(key, _): &(ElementKey, Vec<&Block>)| matches!(key, ElementKey::Block(first, last) if *first <= address && address <= *last);
            let held = segments(&blocks, IpFamily::V4).iter().any(inside);
            prop_assert_eq!(held, blocks.iter().any(|block| block.contains(address)));
        }
    }
}
