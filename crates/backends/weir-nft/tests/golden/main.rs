//! Golden tables, as text for review. `UPDATE_EXPECT=1 cargo test -p weir-nft` accepts a change.

mod peers;
mod shared_sets;
mod skeleton;
mod tiers;

use expect_test::Expect;
use weir_engine::{Locality, compile};
use weir_model::World;
use weir_nft::NftTable;

#[track_caller]
fn check(case: &str, expected: Expect) {
    expected.assert_eq(&rendered(case).to_string());
}

#[track_caller]
fn rendered(case: &str) -> NftTable {
    let mut cases = weir_api::cases("case.yaml".into(), case.as_bytes());
    let case = cases.pop().expect("the text contains a case");
    assert!(case.findings.is_empty(), "{:?}", case.findings);
    let world: World = case.objects.into_iter().collect();
    weir_nft::render(&compile(&world, Locality::Everywhere))
}
