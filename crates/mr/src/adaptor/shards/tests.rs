//! How addresses are spread.

use super::*;

#[test]
fn neighbours_are_spread() {
    for stride in [256, 4096, 2 << 20, 64 << 20] {
        let shards = Shards::<usize>::default();
        for block in 0..1600_u64 {
            *shards.of(0x7f00_0000_0000 + block * stride) += 1;
        }
        let counts = shards.all().map(|count| *count);
        assert_eq!(counts.iter().sum::<usize>(), 1600);
        assert!(counts.iter().all(|count| (20..400).contains(count)), "{stride}: {counts:?}");
    }
}
