use super::super::batch::{BATCH_BLOCKS, UNIT_SHIFT};
use super::*;

#[test]
fn a_cache_gives_full_batches_out_and_takes_one_back() {
    let mut cache = ThreadCache::new(1000);
    let block = |n: usize| FreedBlock { address: n << UNIT_SHIFT, units: 1 + (n % 2) as u32 };
    for n in 1..BATCH_BLOCKS {
        assert!(cache.free(block(n)).is_none());
    }
    let batch = cache.free(block(BATCH_BLOCKS)).unwrap();
    assert_eq!((batch.blocks().len(), batch.units()), (BATCH_BLOCKS, 96));
    assert!(cache.replace_ready(batch).is_none());
    let ready = &mut cache.ready;
    let memory = ready.blocks().as_ptr();
    assert_eq!(ready.take(1, 0), Some(BATCH_BLOCKS << UNIT_SHIFT), "the last one first");
    assert_eq!(ready.take(1, 4095), None, "63 lines and no page");
    assert_eq!(ready.take(3, 0), None);
    let mut seen = vec![BATCH_BLOCKS << UNIT_SHIFT];
    while let Some(address) = ready.take(1, 0).or_else(|| ready.take(2, 0)) {
        seen.push(address);
    }
    assert_eq!(ready.units(), 0);
    seen.sort_unstable();
    assert!(seen.into_iter().eq((1..=BATCH_BLOCKS).map(|n| n << UNIT_SHIFT)));
    let mut one = Batch::default();
    assert!(!one.push(block(1), 1000));
    assert!(cache.replace_ready(one).is_none());
    assert_eq!(cache.spare.blocks().as_ptr(), memory, "the empty one is kept to be filled");
    assert_eq!(
        cache.replace_ready(Batch::default()).unwrap().units(),
        2,
        "what did not serve goes"
    );
    let large = FreedBlock { address: 64, units: 2000 };
    assert!(cache.free(large).is_some(), "full by its bytes");
}
