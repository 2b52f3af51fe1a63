//! A pool of page-locked memory: what it hands out, what it takes and gives back.

use super::{alone, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{ErrorKind, PinnedPool, PinnedResource};

fn pool(pinned: &PinnedResource) -> PinnedPool {
    PinnedPool::new(pinned.clone()).unwrap()
}

#[test]
fn a_warm_pool_asks_the_driver_once_in_many_frees() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pool = pool(&PinnedResource::new(&device).unwrap());
    let run = |pairs: usize| {
        for _ in 0..pairs {
            drop(AllocVec::<u8, _>::with_capacity_in(1 << 20, pool.clone()));
        }
    };
    for n in 0..400 {
        run(1);
        if n % 16 == 0 {
            println!("{n} {:?}", pool.statistics());
        }
    }
    run(600);
    let before = simulator.calls();
    let count = |calls: &[(&str, u64)]| calls.iter().map(|(_, count)| count).sum::<u64>();
    run(6400);
    let after = simulator.calls();
    println!("{} calls; {:?}\n{:?}", count(&after) - count(&before), before, after);
    println!("{:?}", pool.statistics());
    let _ = ErrorKind::Capture;
}
