//! Other people's code that panics inside of an allocation.

use super::{alone, not_ready, pinned_vec, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::pinned::{HostBuffer, HostRead, PinnedPool, PinnedResource, Registered};
use aquifer::sim::SimConfig;
use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::time::Duration;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const MIB: usize = 1 << 20;

/// A subscriber that cannot be told anything.
struct Panics;

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
        panic!("a subscriber fails");
    }
}

/// A buffer whose drop panics, which the crate reports.
#[derive(Debug)]
struct Thrower(Vec<u32>);

impl Drop for Thrower {
    fn drop(&mut self) {
        panic!("an owner fails");
    }
}

// SAFETY: the vector's memory, which stays where it is until the owner is dropped.
unsafe impl HostRead for Thrower {
    type Item = u32;

    fn parts(&mut self) -> (NonNull<u32>, usize) {
        self.0.parts()
    }
}

// SAFETY: and writable.
unsafe impl HostBuffer for Thrower {}

#[test]
fn a_subscriber_that_panics_is_in_no_growths_way() {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    let pool = PinnedPool::builder(pinned.clone()).maximum_size(MIB).build().unwrap();
    drop(Registered::new(&device, Thrower(vec![0; 1024])).unwrap());
    // Its fence is recorded here, and not passed: the pool's growth finds that it is.
    not_ready(&simulator);
    drop(pinned_vec(&pinned, 1));

    let mut vec = AllocVec::<u8, PinnedPool>::new_in(pool.clone());
    let subscriber = tracing_subscriber::registry().with(Panics);
    let grown = tracing::subscriber::with_default(subscriber, || vec.try_reserve_exact(MIB));
    assert!(grown.is_ok(), "the allocation neither fails nor unwinds");
    assert_eq!(pool.statistics().reserved, MIB);
    drop(vec);

    // Nobody is asking upstream any more, whom others would wait for.
    let (done, answer) = channel();
    std::thread::spawn(move || {
        let mut vec = AllocVec::<u8, PinnedPool>::new_in(pool);
        let _ = done.send(vec.try_reserve_exact(MIB).is_ok());
    });
    assert_eq!(answer.recv_timeout(Duration::from_secs(20)), Ok(true));
}
