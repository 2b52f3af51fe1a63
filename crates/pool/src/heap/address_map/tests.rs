use super::*;
use std::collections::HashSet;
use std::hash::BuildHasher;

/// The table looks at the lowest bits and at the highest seven.
#[test]
fn addresses_that_differ_by_much_differ_in_the_bits_that_are_looked_at() {
    let hasher = BuildHasherDefault::<AddressHasher>::default();
    for stride in [64_u64, 256, 4096, 2 << 20, 64 << 20, 1 << 30] {
        let hashes = (0..4096).map(|block| hasher.hash_one(0x7f00_0000_0000 + block * stride));
        let (mut low, mut high) = (HashSet::new(), HashSet::new());
        for hash in hashes {
            low.insert(hash & 4095);
            high.insert(hash >> 57);
        }
        // Of numbers by chance, about 63 of 100 places have one.
        assert!(low.len() > 2200 && high.len() > 100, "{stride}: {} {}", low.len(), high.len());
    }
}
