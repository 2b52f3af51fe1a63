use super::PoolHandles;
use crate::device::Device;
use crate::sim::SimConfig;
use crate::sync::trusted::{AtomicBool, Ordering};

/// Pools that come and go count their handles in and out. A pool that asks meanwhile must not take one of theirs for
/// the user's.
#[test]
fn a_stream_that_its_user_holds_is_never_abandoned() {
    let device = Device::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let kept = stream.clone_for_pool();
    let stop = AtomicBool::new(false);
    let abandoned = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                stream.clone_for_pool().drop_for_pool();
            }
        });
        let abandoned = (0..200_000).filter(|_| kept.is_abandoned()).count();
        stop.store(true, Ordering::Relaxed);
        abandoned
    });
    assert_eq!(abandoned, 0, "of 200,000 looks");
    drop(stream);
    assert!(kept.is_abandoned(), "the pool alone has it");
    kept.drop_for_pool();
}
