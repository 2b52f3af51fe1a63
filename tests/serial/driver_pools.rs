//! What pools of the driver give back, by the free memory of the whole device.

use crate::{alone, support};
use aquifer::{
    DeviceResource,
    mr::{AsyncResource, StackText},
};

const MIB: usize = 1 << 20;

#[test]
fn a_stack_over_a_driver_pool_gives_its_memory_back() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for text in ["async(initial=64MiB)", "pool(async)"] {
        let free_bytes = || device.memory_info().unwrap().free;
        let before = free_bytes();
        let stack = text.parse::<StackText>().unwrap().build(&device).unwrap();
        let block = stack.allocate(&stream, support::layout(64 * MIB)).unwrap();
        assert!(free_bytes() + (32 * MIB) <= before, "{text}: it has memory of the device");
        support::free(&stack, &stream, block);
        stream.synchronize().unwrap();
        stack.wait_and_trim(0).unwrap();
        assert_eq!(stack.wait_and_trim(0).unwrap(), 0);
        let kept = before.saturating_sub(free_bytes()) >> 20;
        assert!(kept < 32, "{text}: {kept} MiB are not back");
    }
}

#[test]
fn a_driver_pool_gives_back_what_is_above_its_threshold_when_its_stream_is_waited_for() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = AsyncResource::with_release_threshold(&device, 0).unwrap();
    let block = pool.allocate(&stream, support::layout(64 * MIB)).unwrap();
    support::free(&pool, &stream, block);
    stream.synchronize().unwrap();
    assert_eq!(pool.statistics().unwrap().reserved_bytes, 0);
}
