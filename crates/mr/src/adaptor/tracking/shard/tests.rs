//! A shard by itself.

use super::*;

fn block(address: u64, bytes: usize) -> TrackedBlock {
    let thread_id = std::thread::current().id();
    let (number, stream_id, ticks) = (0, 0, 0);
    TrackedBlock { address, number, bytes, stream_id, thread_id, ticks, backtrace: None }
}

#[test]
fn insertions_allocate_no_host_memory() {
    let mut shard = TrackingShard::default();
    for address in 0..10_000 {
        let needed = shard.needed_capacity();
        assert_eq!(needed == 0, shard.has_room());
        if needed > 0 {
            shard.grow_into(&mut map_with_capacity(needed));
        }
        let capacity = shard.blocks.capacity();
        assert!(shard.insert(block(address, 2)).is_none());
        assert_eq!(shard.blocks.capacity(), capacity);
    }
    assert_eq!((shard.bytes(), shard.blocks().count()), (20_000, 10_000));
    assert_eq!(shard.insert(block(7, 5)).map(|removed| removed.0), Some(2));
    assert_eq!(shard.remove(7).map(|removed| removed.0), Some(5));
    assert!(shard.remove(7).is_none());
    assert_eq!(shard.bytes(), 19_998);
    assert_eq!(shard.take().count(), 9999);
    assert_eq!((shard.bytes(), shard.blocks().count()), (0, 0));
}
