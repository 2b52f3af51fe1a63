//! The frees that a table remembers.

use super::*;
use std::thread;
use std::time::Duration;

fn call(address: u64) -> BlockUse {
    let (thread_id, after) = (thread::current().id(), Duration::ZERO);
    BlockUse { address, bytes: 256, token: address, stream_id: 0, thread_id, after }
}

#[test]
fn remembered_frees_are_bounded_and_live_blocks_stay() {
    let mut shard = CheckedShard::default();
    assert!(shard.insert(call(1)).is_none());
    for address in 2..3 * REMEMBERED as u64 {
        // One address again and again, among others: its stale entries must not remove it.
        for address in [address, 2] {
            assert!(shard.insert(call(address)).is_none());
            assert_eq!(shard.free(&call(address)).unwrap(), call(address));
            assert!(matches!(shard.free(&call(address)), Err((MisuseKind::DoubleFree, Some(_)))));
        }
        assert!(shard.freed.len() <= REMEMBERED && shard.blocks.len() <= REMEMBERED + 1);
    }
    assert!(matches!(shard.free(&call(5)), Err((MisuseKind::ForeignPointer, None))));
    assert!(shard.free(&call(1)).is_ok());
}
