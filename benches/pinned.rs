//! A vector in page-locked memory, made and dropped: pairs of an allocation and a free.
//!
//! `cargo bench --bench pinned`. One row a case: nanoseconds a pair (the least and the median of the
//! rounds), and the driver calls a pair where the device is simulated. A word after `--` runs the cases whose row it
//! is part of.

use allocator_api2::alloc::Allocator;
use aquifer::{
    Device, PinnedAlloc,
    pinned::{
        PinnedPool, PinnedResource, reset_current_pinned_resource, set_current_pinned_resource,
    },
};
use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

const ROUNDS: usize = 15;

/// Nanoseconds a pair, and driver calls a pair.
fn measure(device: &Device, pairs: usize, mut pair: impl FnMut()) -> String {
    let calls = || {
        let simulator = device.simulator();
        simulator.map_or(0, |simulator| simulator.calls().iter().map(|(_, count)| count).sum())
    };
    (0..pairs).for_each(|_| pair());
    let before = calls();
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..pairs).for_each(|_| pair());
            start.elapsed().as_nanos() as f64 / pairs as f64
        })
        .collect();
    let made = (calls() - before) as f64 / (ROUNDS * pairs) as f64;
    times.sort_by(f64::total_cmp);
    format!("{:.1},{:.1},{made:.4}", times[0], times[ROUNDS / 2])
}

/// A block made and dropped.
fn alone(allocator: &impl Allocator, layout: Layout) {
    if let Ok(block) = allocator.allocate(black_box(layout)) {
        // SAFETY: allocated above.
        unsafe { allocator.deallocate(black_box(block).cast(), layout) };
    }
}

/// Blocks that live, the oldest of which is dropped for each that is made.
struct Ring {
    blocks: Vec<NonNull<u8>>,
    next: usize,
    layout: Layout,
}

impl Ring {
    fn new(allocator: &impl Allocator, length: usize, layout: Layout) -> Self {
        let make = |_| allocator.allocate(layout).map(NonNull::cast);
        let blocks = (0..length).map(make).collect::<Result<_, _>>();
        Self { blocks: blocks.unwrap_or_default(), next: 0, layout }
    }

    fn turn(&mut self, allocator: &impl Allocator) {
        let Some(place) = self.blocks.get_mut(self.next) else { return };
        // SAFETY: the ring's own block, freed once and replaced.
        unsafe { allocator.deallocate(*place, self.layout) };
        if let Ok(block) = allocator.allocate(black_box(self.layout)) {
            *place = block.cast();
        }
        self.next = (self.next + 1) % self.blocks.len();
    }

    fn end(self, allocator: &impl Allocator) {
        // SAFETY: the ring's own blocks, freed once.
        self.blocks.iter().for_each(|block| unsafe { allocator.deallocate(*block, self.layout) });
    }
}

fn wanted(row: &str) -> bool {
    std::env::args()
        .skip(1)
        .find(|word| !word.starts_with('-'))
        .is_none_or(|word| row.contains(&word))
}

fn cases(name: &str, device: &Device, allocator: &impl Allocator) {
    for bytes in [256, 1 << 20] {
        let Ok(layout) = Layout::from_size_align(bytes, 8) else { continue };
        let row = format!("{name},alone,{bytes}");
        if wanted(&row) {
            let measured = measure(device, 100_000, || alone(allocator, layout));
            println!("{row},{measured}");
        }
        let row = format!("{name},64 in turn,{bytes}");
        if wanted(&row) {
            let mut ring = Ring::new(allocator, 64, layout);
            let measured = measure(device, 100_000, || ring.turn(allocator));
            println!("{row},{measured}");
            ring.end(allocator);
        }
    }
}

fn main() -> aquifer::Result<()> {
    let device = Device::detect_or_simulate()?;
    let pinned = PinnedResource::new(&device)?;
    println!("# {device}");
    println!("allocator,case,bytes,ns a pair at least,ns a pair,driver calls a pair");
    let fenced = PinnedPool::new(pinned.clone())?;
    cases("PinnedPool", &device, &fenced);
    set_current_pinned_resource(fenced);
    cases("PinnedAlloc", &device, &PinnedAlloc);
    // SAFETY: no device work is given here.
    let unfenced = unsafe { PinnedPool::builder(pinned).unfenced() }.build()?;
    cases("PinnedPool unfenced", &device, &unfenced);
    set_current_pinned_resource(unfenced);
    cases("PinnedAlloc unfenced", &device, &PinnedAlloc);
    reset_current_pinned_resource();
    Ok(())
}
