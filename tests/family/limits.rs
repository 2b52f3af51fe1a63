//! Limits and failures: typed errors, after which the resource goes on.

use crate::blocks::{Held, layout};
use crate::fixture::{each, each_simulated};
use crate::{KIB, MIB, support};
use aquifer::{Error, ErrorKind};
use std::cell::Cell;

/// No device and no address space has so much. Some sizes are an invalid argument to CUDA.
pub(crate) fn is_too_much(error: &Error) -> bool {
    let typed = matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument);
    typed || (support::on_gpu() && error.kind() == ErrorKind::Driver)
}

#[test]
fn more_than_the_device_has_is_a_typed_error_and_no_end() {
    each("more_than_the_device_has", |fixture| {
        let total = fixture.device.memory_info().unwrap().total;
        let pebibyte = (total * 1024).max(1 << 50);
        for stream in [fixture.device.default_stream(), fixture.stream()] {
            for bytes in [pebibyte, 1 << 60, isize::MAX as usize - 4095] {
                let error = fixture.resource().allocate(&stream, layout(bytes)).unwrap_err();
                assert!(is_too_much(&error), "{bytes} bytes: {:?}: {error}", error.kind());
                let held = Held::take(fixture.resource(), &stream, fixture.modest(KIB), 1).unwrap();
                held.free(fixture.resource());
            }
        }
    });
}

/// Bytes of a small device.
const FULL: usize = 160 * MIB;

/// All that a small device has is given, refused beyond, and given again.
#[test]
fn a_device_that_is_full_refuses_and_serves_again() {
    each_simulated("a_device_that_is_full", FULL, |fixture, _| {
        if !fixture.made.of_device {
            return;
        }
        let stream = fixture.stream();
        let bytes = fixture.made.largest.min(4 * MIB);
        let fill = || {
            let mut live = Vec::new();
            let error = loop {
                match Held::take(fixture.resource(), &stream, bytes, live.len() as u8) {
                    Ok(held) => live.push(held),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            let blocks = live.len();
            live.into_iter().for_each(|held| held.free(fixture.resource()));
            blocks
        };
        let first = fill();
        // A pool that grows by an eighth leaves the rest of some steps unused while all lives.
        let least = fixture.made.room.min(FULL) / 4 * 3;
        assert!(first * bytes >= least, "{first} blocks of {bytes} bytes");
        assert_eq!(fill(), first, "blocks of {bytes} bytes, the second time");
    });
}

/// The first driver call for memory fails once.
#[test]
fn a_driver_call_that_fails_is_out_of_memory_and_the_next_is_served() {
    let refused = Cell::new(0);
    each_simulated("a_driver_call_that_fails", 4 << 30, |fixture, simulator| {
        let stream = fixture.stream();
        for call in ["cuMemAlloc", "cuMemAllocManaged", "cuMemAllocFromPoolAsync"] {
            simulator.fail_call(call, 1, 2).unwrap();
        }
        match Held::take(fixture.resource(), &stream, fixture.modest(MIB), 1) {
            Ok(held) => held.free(fixture.resource()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                refused.set(refused.get() + 1);
            }
        }
        for tag in 2..5 {
            let held = Held::take(fixture.resource(), &stream, fixture.modest(MIB), tag).unwrap();
            held.free(fixture.resource());
        }
    });
    // The plain ones at least; a pool may make do with less, an arena has its memory already.
    assert!(refused.get() >= 5, "{} rows were refused", refused.get());
}
