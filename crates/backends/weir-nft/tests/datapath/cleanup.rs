//! Removing the backend's rules restores the previous state.

use libtest_mimic::Trial;
use weir_datapath::Mode;
use weir_engine::{Locality, compile};

use weir_trials::random;

use crate::{backend::trial, drift::OTHERS, node};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_removal_leaves_nothing_behind", leaves_nothing_behind),
        trial("removing_from_an_empty_kernel_succeeds", nothing_to_remove),
        trial("rules_can_be_installed_again_after_a_removal", install_again),
    ]
}

fn leaves_nothing_behind() {
    let lab = node::without_pods();
    node::run(&lab, OTHERS);
    let before = node::list(&lab, &["list", "ruleset"]);
    for seed in 0..10 {
        let program = compile(&random::draw(seed).0, Locality::Everywhere);
        let mut nft = node::open(&lab, "n1", Mode::Enforce);
        node::sync(&mut nft, &program);
        assert_ne!(node::list(&lab, &["list", "ruleset"]), before);
        nft.remove().unwrap();
        assert_eq!(node::list(&lab, &["list", "ruleset"]), before);
        nft.remove().unwrap();
        assert_eq!(node::list(&lab, &["list", "ruleset"]), before);
    }
}

fn nothing_to_remove() {
    let lab = node::without_pods();
    node::open(&lab, "n1", Mode::Enforce).remove().unwrap();
    assert_eq!(node::list(&lab, &["list", "ruleset"]), "");
}

fn install_again() {
    let lab = node::without_pods();
    let program = compile(&random::draw(1).0, Locality::Everywhere);
    let mut nft = node::open(&lab, "n1", Mode::Enforce);
    node::sync(&mut nft, &program);
    let before = node::ours(&lab);
    nft.remove().unwrap();
    assert!(!nft.drifted().unwrap(), "our own removal is not drift");
    node::sync(&mut nft, &program);
    assert_eq!(node::ours(&lab), before);
}
