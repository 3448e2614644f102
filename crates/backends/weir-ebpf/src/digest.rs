//! Digests of contents, by which the next agent recognises them.

use std::hash::{Hash, Hasher};

use sha2::{Digest as _, Sha256};

/// A digest of a tier, of a kind or of the programs.
pub type Digest = [u8; 16];

/// The digest of a value.
pub(crate) fn digest(value: &impl Hash) -> Digest {
    struct Collect(Sha256);
    impl Hasher for Collect {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut collect = Collect(Sha256::new());
    value.hash(&mut collect);
    let mut digest = [0; 16];
    digest.copy_from_slice(&collect.0.finalize()[..16]);
    digest
}
