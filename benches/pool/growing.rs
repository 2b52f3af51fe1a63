//! Vectors that grow step by step: what they copy, what their pool holds, and what it takes. The pool
//! starts empty.

use crate::card::{KINDS, pool, unless_refused};
use crate::rows::{MIB, nanoseconds, number};
use crate::subject::{Bench, Plain, must};
use aquifer::{DeviceBuffer, DeviceVec, Result, Stream, container::Growth};
use std::time::Instant;

/// A name, and the next length.
type Way = (&'static str, fn(u64) -> u64);

const WAYS: [Way; 2] =
    [("by doubling", |length| 2 * length), ("by 64MiB", |length| length + 64 * MIB)];

/// Copies of vectors up to this long do not count.
const SMALL: u64 = 2 * MIB;

trait Vector: Sized {
    const NAME: &'static str;

    fn new(stream: &Stream, pool: &Plain) -> Result<Self>;

    fn resize(&mut self, bytes: u64) -> Result<()>;

    fn capacity(&self) -> usize;

    fn growth(&self) -> Option<Growth>;
}

/// Nothing is written to what is added, as in RMM's `device_uvector`.
impl Vector for DeviceBuffer {
    const NAME: &'static str = "growing vector";

    fn new(stream: &Stream, pool: &Plain) -> Result<Self> {
        // SAFETY: nobody reads it.
        unsafe { Self::uninit_in(stream, MIB as usize, pool.clone()) }
    }

    fn resize(&mut self, bytes: u64) -> Result<()> {
        // SAFETY: nobody reads it.
        unsafe { self.resize_uninit(bytes as usize) }
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn growth(&self) -> Option<Growth> {
        self.growth()
    }
}

/// What is added is written, and the vector takes spare capacity.
impl Vector for DeviceVec<u8> {
    const NAME: &'static str = "growing filled vector";

    fn new(stream: &Stream, pool: &Plain) -> Result<Self> {
        Self::zeroed_in(stream, MIB as usize, pool.clone())
    }

    fn resize(&mut self, bytes: u64) -> Result<()> {
        self.resize(bytes as usize, 1)
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn growth(&self) -> Option<Growth> {
        self.growth()
    }
}

struct Grown {
    /// How far it came.
    length: u64,
    copied: u64,
    refused: bool,
    nanoseconds: f64,
}

/// Grows a vector of 1 MiB up to `longest`, and drops it.
fn grow<V: Vector>(pool: &Plain, stream: &Stream, longest: u64, longer: fn(u64) -> u64) -> Grown {
    let mut vector = must(V::new(stream, pool));
    let mut grown = Grown { length: MIB, copied: 0, refused: false, nanoseconds: 0.0 };
    must(stream.synchronize());
    let start = Instant::now();
    while grown.length < longest {
        let next = longer(grown.length).min(longest);
        let capacity = vector.capacity();
        if unless_refused(vector.resize(next)).is_none() {
            grown.refused = true;
            break;
        }
        let moved = vector.capacity() != capacity && vector.growth() == Some(Growth::Moved);
        if moved && grown.length > SMALL {
            grown.copied += grown.length;
        }
        grown.length = next;
    }
    // The copies are part of it.
    must(stream.synchronize());
    grown.nanoseconds = start.elapsed().as_secs_f64() * 1e9;
    grown
}

fn rows<V: Vector>(bench: &Bench) {
    // On a simulated device the host has the memory that is copied.
    let longest = if bench.quick || bench.simulated() { 256 * MIB } else { 8 << 30 };
    for (peer, handles) in KINDS {
        for (way, longer) in WAYS {
            let Some(pool) = pool(&bench.device, handles) else { continue };
            let name = format!("{} {way}", V::NAME);
            let first = grow::<V>(&pool, &bench.streams()[0], longest, longer);
            let reserved = pool.statistics().peak_reserved as f64;
            let over = format!("{name} peak reserved over length");
            number(peer, &over, reserved / first.length as f64);
            // Now the pool has the memory.
            let second = grow::<V>(&pool, &bench.streams()[0], longest, longer);
            let refused = u32::from(first.refused) + u32::from(second.refused);
            let copied = first.copied.max(second.copied) as f64 / MIB as f64;
            number(peer, &format!("{name} copied MiB"), copied);
            number(peer, &format!("{name} refused"), f64::from(refused));
            nanoseconds(peer, &name, first.nanoseconds);
            nanoseconds(peer, &format!("{name} again"), second.nanoseconds);
            bench.synchronize();
        }
    }
}

pub(crate) fn growing(bench: &Bench) {
    rows::<DeviceBuffer>(bench);
    rows::<DeviceVec<u8>>(bench);
}
