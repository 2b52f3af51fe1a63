//! Sizes: around every border, the largest that a resource may serve, and above it.

use crate::blocks::{Held, disjoint, layout};
use crate::fixture::each;
use crate::{GIB, MIB};
use aquifer::{DeviceLayout, ErrorKind};

#[test]
fn every_size_is_served_or_out_of_memory() {
    each("every_size_is_served_or_out_of_memory", |fixture| {
        let stream = fixture.stream();
        let sizes = [0, 1, 4, 255, 256, 257, 1024, MIB - 1, MIB, MIB + 1, 4 * MIB, GIB];
        let mut live = Vec::new();
        for (tag, bytes) in sizes.into_iter().enumerate() {
            match Held::take(fixture.resource(), &stream, bytes, tag as u8) {
                // A gibibyte is more than some have; what is small is there.
                Err(error) => {
                    let may = bytes > fixture.made.largest || bytes == GIB;
                    assert!(may, "{bytes} bytes: {error}");
                    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{bytes} bytes: {error}");
                }
                Ok(held) => {
                    assert!(bytes <= fixture.made.largest, "{bytes} bytes were given");
                    live.push(held);
                }
            }
        }
        disjoint(&live);
        live.into_iter().rev().for_each(|held| held.free(fixture.resource()));
    });
}

#[test]
fn the_largest_is_served_and_a_byte_more_is_out_of_memory() {
    each("the_largest_is_served", |fixture| {
        let (stream, largest) = (fixture.stream(), fixture.made.largest);
        if largest == usize::MAX {
            // Only the device limits it: what no device has.
            let error = fixture.resource().allocate(&stream, layout(1 << 60)).unwrap_err();
            assert!(crate::limits::is_too_much(&error), "{:?}: {error}", error.kind());
            return;
        }
        for tag in 0..2 {
            let held = Held::take(fixture.resource(), &stream, largest, tag).unwrap();
            held.free(fixture.resource());
            let error = fixture.resource().allocate(&stream, layout(largest + 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        }
    });
}

#[test]
fn every_alignment_to_2_mib_is_kept() {
    each("every_alignment_to_2_mib_is_kept", |fixture| {
        let stream = fixture.stream();
        let mut live = Vec::new();
        for power in (0..=21).rev() {
            let wanted = DeviceLayout::with_alignment(fixture.modest(1000), 1 << power).unwrap();
            let block = fixture.resource().allocate(&stream, wanted).unwrap();
            assert!(block.address().is_multiple_of(1 << power), "{wanted:?}: {block:?}");
            live.push(Held::over(block, fixture.resource(), &stream, power));
        }
        disjoint(&live);
        live.into_iter().for_each(|held| held.free(fixture.resource()));
    });
}

#[test]
fn empty_blocks_are_freed_anywhere_and_as_often_as_asked() {
    each("empty_blocks_are_freed_anywhere", |fixture| {
        for stream in [fixture.device.default_stream(), fixture.stream(), fixture.stream()] {
            let blocks = [(); 3].map(|()| Held::take(fixture.resource(), &stream, 0, 0).unwrap());
            blocks.into_iter().for_each(|held| held.free(fixture.resource()));
        }
    });
}
