//! Streams: the default one, own ones, those of threads; and memory that changes from one to another.

use crate::blocks::{Held, free, layout};
use crate::fixture::{Fixture, each, each_alone};
use crate::kernels::add_one;
use crate::{KIB, MIB};
use aquifer::{DeviceVec, stream::PerThreadStream};

/// Elements that keep a stream of a GPU busy for a while. The simulated device needs none for that.
fn many() -> usize {
    if crate::support::on_gpu() { 4 * MIB } else { 16 * KIB }
}

#[test]
fn blocks_of_one_stream_are_freed_on_another_and_come_again_in_order() {
    each("blocks_of_one_stream_are_freed_on_another", |fixture| {
        let streams = [fixture.device.default_stream(), fixture.stream(), fixture.stream()];
        let bytes = fixture.modest(256 * KIB);
        for round in 0..3 {
            for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1)] {
                let mut held =
                    Held::take(fixture.resource(), &streams[from], bytes, round).unwrap();
                held.move_to(&streams[to]);
                held = held.check(fixture.resource()).write(fixture.resource(), round + 1);
                held.free(fixture.resource());
                // The next of this size may be the very same, on a stream that knows nothing yet.
                for stream in &streams {
                    let next = Held::take(fixture.resource(), stream, bytes, 100 + round).unwrap();
                    next.free(fixture.resource());
                }
            }
        }
    });
}

/// Nothing but the resource orders the next user after the work that the last one left behind.
#[test]
fn memory_that_is_freed_under_running_work_is_not_disturbed() {
    each("memory_that_is_freed_under_running_work", |fixture| {
        let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
        let length = fixture.modest(many() * 4) / 4;
        for round in 0..6_u32 {
            let of = |at: u32| &streams[((round + at) % 3) as usize];
            let mut first =
                DeviceVec::<u32>::zeroed_in(of(0), length, fixture.resource().clone()).unwrap();
            for _ in 0..4 {
                add_one(of(0), &mut first).unwrap();
            }
            drop(first);
            let mut next =
                DeviceVec::<u32>::zeroed_in(of(1), length, fixture.resource().clone()).unwrap();
            add_one(of(1), &mut next).unwrap();
            // A third one reads what the second wrote, while the second's home goes on.
            let copy = {
                let mut copy =
                    DeviceVec::<u32>::zeroed_in(of(2), length, fixture.resource().clone()).unwrap();
                copy.copy_from(&next).unwrap();
                copy
            };
            drop(next);
            let found = copy.to_vec().unwrap();
            assert!(found == vec![1; length], "round {round}");
        }
    });
}

#[test]
fn a_vector_moves_from_stream_to_stream() {
    each("a_vector_moves_from_stream_to_stream", |fixture| {
        let streams = [
            fixture.stream(),
            fixture.device.default_stream(),
            fixture.stream(),
            fixture.stream(),
            fixture.stream(),
        ];
        let length = fixture.modest(64 * KIB) / 4;
        let resource = fixture.resource().clone();
        let mut vec = DeviceVec::<u32>::zeroed_in(&streams[0], length, resource).unwrap();
        for (round, stream) in streams.iter().cycle().take(12).enumerate() {
            vec.set_stream(stream).unwrap();
            add_one(stream, &mut vec).unwrap();
            assert_eq!(vec.stream(), stream, "round {round}");
            if round % 3 == 0 {
                // A thread of its own has it for a while, and lets a smaller copy die.
                vec = std::thread::scope(|scope| {
                    let moved = scope.spawn(|| {
                        drop(vec.try_clone().unwrap());
                        vec
                    });
                    moved.join().unwrap()
                });
            }
        }
        assert!(vec.to_vec().unwrap() == vec![12; length]);
    });
}

#[test]
fn a_stream_may_be_gone_before_what_was_freed_on_it_comes_again() {
    each("a_stream_may_be_gone", |fixture| {
        let bytes = fixture.modest(KIB);
        let kept = fixture.stream();
        for tag in 0..4 {
            let gone = fixture.stream();
            Held::take(fixture.resource(), &gone, bytes, tag).unwrap().free(fixture.resource());
            drop(gone);
            for stream in [&fixture.device.default_stream(), &kept] {
                let next = Held::take(fixture.resource(), stream, bytes, 100 + tag).unwrap();
                next.free(fixture.resource());
            }
        }
    });
}

/// Writes `value` to all of `vec` on the thread's own stream, where there is a GPU to do so.
fn write_as_this_thread(
    _rig: &Fixture,
    vec: &mut DeviceVec<u8>,
    mine: &PerThreadStream,
    value: u8,
) {
    #[cfg(feature = "cuda")]
    if crate::support::on_gpu() {
        use aquifer::cudarc::driver::sys;
        const OF_THIS_THREAD: usize = 2;
        _rig.device.cuda_context().unwrap().bind_to_thread().unwrap();
        let lent = vec.on_mut(mine).unwrap();
        let stream = std::ptr::without_provenance_mut(OF_THIS_THREAD);
        // SAFETY: the vector is lent to this very stream, and has so many bytes.
        let wrote =
            unsafe { sys::cuMemsetD8Async(lent.as_device_ptr(), value, lent.len(), stream) };
        return wrote.result().unwrap();
    }
    // The simulated device has no work of others: the vector is lent, and home waits for the stream.
    assert!(!vec.on_mut(mine).unwrap().is_empty());
    vec.fill(value).unwrap();
}

/// Alone: driver 580 was seen to block for good on an H200 where one thread that had used its
/// per-thread stream ended while another waited on its own and thirty more worked on the device. All
/// of them stood in the driver, the ending one in its destructor of thread locals.
#[test]
fn each_threads_own_stream_borrows_memory_of_every_resource() {
    each_alone("each_threads_own_stream", |fixture| {
        let bytes = fixture.modest(64 * KIB);
        std::thread::scope(|scope| {
            for value in 1..5 {
                scope.spawn(move || {
                    let (home, mine) =
                        (fixture.stream(), fixture.device.per_thread_stream().unwrap());
                    for round in 0..5 {
                        let resource = fixture.resource().clone();
                        let mut vec = DeviceVec::<u8>::zeroed_in(&home, bytes, resource).unwrap();
                        write_as_this_thread(fixture, &mut vec, &mine, value + round);
                        assert!(vec.to_vec().unwrap() == vec![value + round; bytes]);
                    }
                    // Freed while the thread's stream has it still.
                    let resource = fixture.resource().clone();
                    let mut vec = DeviceVec::<u8>::zeroed_in(&home, bytes, resource).unwrap();
                    write_as_this_thread(fixture, &mut vec, &mine, value);
                });
            }
        });
    });
}

#[test]
fn a_stream_of_another_device_is_refused_and_harms_nothing() {
    each("a_stream_of_another_device_is_refused", |fixture| {
        let (elsewhere, _) = crate::support::simulated(aquifer::sim::SimConfig::default());
        let theirs = elsewhere.new_stream().unwrap();
        for bytes in [0, 8, KIB] {
            let refused = fixture.resource().allocate(&theirs, layout(bytes)).unwrap_err();
            assert_eq!(refused.kind(), aquifer::ErrorKind::WrongDevice, "{bytes}: {refused}");
        }
        let stream = fixture.stream();
        let block = fixture.resource().allocate(&stream, layout(8)).unwrap();
        free(&**fixture.resource(), &stream, block);
    });
}
