//! Where growth in place ends: maxima, refusals, sizes, owners of other kinds.

use super::*;

/// A maximum is not passed, and a refusal leaves all as it was.
#[test]
fn a_maximum_holds_while_vectors_grow() {
    let fixture = Fixture::with(SimConfig::default(), |options| options.maximum_size(64 * GRANULE));
    let mut vec = fixture.grown(4);
    let pointer = vec.as_device_ptr();
    let rest = fixture.block(20 * GRANULE);
    let mut length = vec.len();
    let error = loop {
        match vec.resize(length + GRANULE / 4, 7) {
            Ok(()) => length += GRANULE / 4,
            Err(error) => break error,
        }
        assert!(fixture.pool.statistics().reserved <= 64 * GRANULE);
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(length >= 42 * GRANULE / 4, "{length}");
    assert_eq!((vec.len(), vec.as_device_ptr()), (length, pointer));
    assert_values(&vec, &[(1000, 0), (length, 7)]);
    drop(rest);
    vec.resize(63 * GRANULE / 4, 8).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
    drop(vec);
    fixture.end();
}

#[test]
fn sizes_that_no_device_has_change_nothing() {
    let fixture = Fixture::new();
    let mut vec = fixture.grown(4);
    let (pointer, capacity) = (vec.as_device_ptr(), vec.capacity());
    let reserved = fixture.pool.statistics().reserved;
    let created = fixture.simulator.call_count("cuMemCreate");
    for (more, kind) in [
        (usize::MAX, ErrorKind::InvalidArgument),
        (usize::MAX / 4 - capacity, ErrorKind::InvalidArgument),
        (1 << 40, ErrorKind::OutOfMemory),
        ((1 << 38) - capacity - 64, ErrorKind::OutOfMemory),
        (1 << 33, ErrorKind::OutOfMemory),
    ] {
        for refused in [vec.reserve(more), vec.reserve_exact(more)] {
            assert_eq!(refused.unwrap_err().kind(), kind, "{more}");
        }
    }
    assert_eq!((vec.as_device_ptr(), vec.capacity(), vec.len()), (pointer, capacity, capacity));
    assert_eq!(fixture.pool.statistics().reserved, reserved);
    let tried = fixture.simulator.call_count("cuMemCreate") - created;
    assert!(tried < 64, "{tried}");
    vec.reserve(0).unwrap();
    vec.reserve_exact(0).unwrap();
    vec.resize(5 * GRANULE / 4, 1).unwrap();
    assert_eq!(vec.as_device_ptr(), pointer);
    drop(vec);
    fixture.simulator.check().unwrap();
}

/// A call of the driver that fails costs a growth at most: nothing is lost, and the next one succeeds.
#[test]
fn a_call_that_fails_loses_nothing() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"] {
        for code in [2, 999] {
            for nth in 1..5 {
                let fixture = Fixture::with(SimConfig::default(), |options| {
                    options.maximum_size(200 * GRANULE)
                });
                let kept: Vec<_> = (0..8).map(|_| fixture.block(6 * GRANULE)).step_by(2).collect();
                fixture.stream.synchronize().unwrap();
                let mut vec = fixture.grown(3);
                fixture.simulator.fail_call(call, nth, code).unwrap();
                for granules in [20, 40, 60] {
                    let before = (vec.as_device_ptr(), vec.len());
                    if vec.resize(granules * GRANULE / 4, 9).is_err() {
                        assert_eq!((vec.as_device_ptr(), vec.len()), before);
                    }
                    assert_eq!(vec.to_vec().unwrap()[999..1001], [0, 7]);
                    assert!(fixture.pool.statistics().reserved <= 200 * GRANULE);
                }
                vec.resize(80 * GRANULE / 4, 9).unwrap();
                assert_eq!(vec.to_vec().unwrap()[80 * GRANULE / 4 - 1], 9);
                drop((vec, kept));
                // The first one may be the call that fails.
                let _ = (fixture.pool.trim(0), fixture.pool.trim(0));
                assert_eq!(fixture.pool.statistics().reserved, 0, "{call} {code} {nth}");
                fixture.end();
            }
        }
    }
}

/// Vectors that outlive the pool's handles, and each other, in any order.
#[test]
fn a_pool_ends_behind_vectors_that_grew() {
    for order in 0..3 {
        let fixture = Fixture::new();
        let mut vecs = vec![fixture.grown(3), fixture.grown(5), fixture.grown(9)];
        for (round, vec) in vecs.iter_mut().enumerate() {
            vec.resize((30 + round) * GRANULE / 4, 1).unwrap();
        }
        let Fixture { device, simulator, stream, pool } = fixture;
        drop(pool);
        vecs.rotate_left(order);
        while let Some(mut vec) = vecs.pop() {
            vec.resize(50 * GRANULE / 4, 2).unwrap();
            assert_eq!(vec.growth(), Some(Growth::InPlace));
            drop(vec);
        }
        drop(stream);
        device.synchronize().unwrap();
        assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
        simulator.check().unwrap();
    }
}

#[test]
fn buffers_grow_in_place_and_keep_their_alignment() {
    let fixture = Fixture::new();
    let layout = DeviceLayout::with_alignment(100, 4096).unwrap();
    let mut buffer =
        DeviceBuffer::with_layout_in(&fixture.stream, layout, fixture.pool.clone()).unwrap();
    assert_eq!(buffer.growth(), None);
    let neighbour = fixture.block(100);
    buffer.resize_zeroed(GRANULE + 1).unwrap();
    assert_eq!((buffer.growth(), buffer.capacity()), (Some(Growth::Moved), 2 * GRANULE));
    let pointer = buffer.as_device_ptr();
    for granules in [3, 30, 31] {
        buffer.reserve(granules * GRANULE - 7 - buffer.len()).unwrap();
        assert_eq!(buffer.capacity(), granules * GRANULE, "whole granules, and just enough");
        buffer.resize_zeroed(granules * GRANULE - 7).unwrap();
    }
    assert_eq!((buffer.as_device_ptr(), buffer.growth()), (pointer, Some(Growth::InPlace)));
    assert_eq!(buffer.to_vec().unwrap(), vec![0; 31 * GRANULE - 7]);
    buffer.resize_zeroed(2 * GRANULE + 3).unwrap();
    buffer.shrink_to_fit().unwrap();
    assert!(buffer.capacity() < 2 * GRANULE + 3 + 256, "{}", buffer.capacity());
    let mut words = buffer.into_vec::<u8>().unwrap();
    words.resize(9 * GRANULE, 1).unwrap();
    assert_eq!(words.as_device_ptr(), pointer);
    // An alignment past the granule's: as before.
    let layout = DeviceLayout::with_alignment(100, 1 << 16).unwrap();
    let mut wide =
        DeviceBuffer::with_layout_in(&fixture.stream, layout, fixture.pool.clone()).unwrap();
    for granules in [3, 40, 200] {
        wide.resize_zeroed(granules * GRANULE).unwrap();
        assert!(wide.as_device_ptr().is_multiple_of(1 << 16));
    }
    drop((words, wide, neighbour));
    fixture.end();
}

/// Parts of a vector that was split move when they grow; the vector that they are joined to grows in place again.
#[test]
fn split_vectors_move() {
    let fixture = Fixture::new();
    let mut vec = fixture.grown(16);
    let pointer = vec.as_device_ptr();
    let mut tail = vec.split_off(8 * GRANULE / 4).unwrap();
    tail.resize(9 * GRANULE / 4, 1).unwrap();
    assert_eq!(tail.growth(), Some(Growth::Moved));
    let moved = tail.as_device_ptr();
    tail.resize(90 * GRANULE / 4, 1).unwrap();
    assert_eq!((tail.as_device_ptr(), tail.growth()), (moved, Some(Growth::InPlace)));
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, None));
    drop((vec, tail));
    let mut vec = fixture.grown(16);
    let tail = vec.split_off(8 * GRANULE / 4).unwrap();
    vec.unsplit(tail).unwrap();
    let pointer = vec.as_device_ptr();
    vec.resize(17 * GRANULE / 4, 1).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
    drop(vec);
    fixture.end();
}

/// Of raw parts the resource says whether the block is its own, and as long as it is said to be.
#[test]
fn vectors_of_raw_parts_grow_by_what_their_resource_knows() {
    let fixture = Fixture::new();
    let vec = fixture.grown(4);
    let pointer = vec.as_device_ptr();
    let (home, block, length, resource) = vec.into_raw_parts().unwrap();
    // SAFETY: the parts of a vector, put together once.
    let vec = unsafe { DeviceVec::<u32>::from_raw_parts(home, block, length, resource) };
    let mut vec = vec.unwrap();
    assert_eq!(vec.growth(), None);
    vec.resize(20 * GRANULE / 4, 1).unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
    drop(vec);
    // Blocks of others, and blocks of other sizes, are left alone.
    let elsewhere = PoolResource::new(VirtualResource::new(&fixture.device).unwrap()).unwrap();
    let block = fixture.pool.allocate(&fixture.stream, support::layout(4 * GRANULE)).unwrap();
    let (address, token) = (block.address(), block.token());
    let resize = |pool: &Pool, address: u64, bytes: usize, token: u64, to: usize| {
        let mut block = aquifer::DeviceBlock::new(address, bytes, token);
        // SAFETY: the block is the pool's, or the pool finds out that it is not.
        let resized = unsafe { pool.resize_in_place(&fixture.stream, &mut block, to) };
        assert_eq!((block.address(), block.bytes(), block.token()), (address, bytes, token));
        resized
    };
    for to in [2 * GRANULE, 10 * GRANULE] {
        assert!(!resize(&elsewhere, address, 4 * GRANULE, token, to).unwrap());
        assert!(!resize(&fixture.pool, address, 3 * GRANULE, token, to).unwrap());
        assert!(!resize(&fixture.pool, address + 256, 4 * GRANULE, token, to).unwrap());
        assert!(!resize(&fixture.pool, address, 4 * GRANULE, token + 1, to).unwrap());
    }
    assert!(!resize(&fixture.pool, address, 4 * GRANULE, token, 0).unwrap());
    assert!(!resize(&fixture.pool, 256, 0, 0, GRANULE).unwrap());
    assert!(!resize(&fixture.pool, 256, 0, 0, 0).unwrap());
    assert!(resize(&fixture.pool, address, 4 * GRANULE, token, 4 * GRANULE).unwrap());
    let stranger = Device::simulated(SimConfig::default()).new_stream().unwrap();
    let mut strange = aquifer::DeviceBlock::new(address, 4 * GRANULE, token);
    // SAFETY: the block is the pool's, and no work uses it.
    let refused = unsafe { fixture.pool.resize_in_place(&stranger, &mut strange, 9 * GRANULE) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::WrongDevice);
    support::free(&fixture.pool, &fixture.stream, block);
    drop(elsewhere);
    fixture.end();
}

/// Other resources move a vector's memory, and say so.
#[test]
fn other_resources_move() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::builder(CudaResource::new(&device)).handles(Handles::Off);
    let pool = pool.build().unwrap();
    let mut resources: Vec<std::sync::Arc<dyn DeviceResource>> =
        vec![std::sync::Arc::new(pool), std::sync::Arc::new(CudaResource::new(&device))];
    if let Ok(memory) = VirtualResource::new(&device) {
        resources.push(std::sync::Arc::new(memory));
    }
    for resource in resources {
        let mut vec = DeviceVec::<u8>::new_in(&stream, resource).unwrap();
        vec.resize(3 * MIB, 1).unwrap();
        assert_eq!(vec.growth(), None);
        vec.resize(9 * MIB, 1).unwrap();
        assert_eq!(vec.growth(), Some(Growth::Moved));
        vec.truncate(3 * MIB);
        vec.shrink_to_fit().unwrap();
        assert_eq!((vec.growth(), vec.capacity()), (Some(Growth::Moved), 3 * MIB));
        assert_eq!(vec.to_vec().unwrap(), vec![1; 3 * MIB]);
    }
}

/// Threads that grow vectors on streams of their own, in one pool with a maximum.
#[test]
fn threads_grow_vectors_side_by_side() {
    let fixture =
        Fixture::with(SimConfig::default(), |options| options.maximum_size(400 * GRANULE));
    let shared = fixture.device.new_stream().unwrap();
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3_u32].map(|thread| {
            let (device, pool, shared) = (&fixture.device, &fixture.pool, &shared);
            scope.spawn(move || {
                let own = device.new_stream().unwrap();
                for round in 0..12 {
                    let home = if (thread + round) % 3 == 0 { shared } else { &own };
                    let mut vec = DeviceVec::<u32>::zeroed_in(home, 10, pool.clone()).unwrap();
                    for granules in [1, 2, 4, 9, 30, 70, 20, 60] {
                        let value = thread + round;
                        vec.truncate(granules * GRANULE / 4);
                        vec.shrink_to_fit().unwrap();
                        let resized = vec.resize(granules * GRANULE / 4, value);
                        if let Err(error) = resized {
                            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                            break;
                        }
                        assert!(vec.to_vec().unwrap()[10..].iter().all(|it| *it == value));
                    }
                }
            })
        });
        // The scope alone waits for no thread locals, which keep the pool.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(fixture.pool.statistics().peak_reserved <= 400 * GRANULE);
    assert_eq!(fixture.pool.statistics().live, 0);
    drop(shared);
    fixture.end();
}

/// Nothing else is mapped behind a vector that grew: neither where it lay, nor where it moved.
#[test]
fn others_stay_out_of_the_room() {
    let fixture = Fixture::new();
    let large = || DeviceVec::<u8>::zeroed_in(&fixture.stream, 4 * GRANULE, fixture.pool.clone());
    // The second one lies behind the first, so that the first moves.
    let mut vecs = [large().unwrap(), large().unwrap()];
    let mut others = Vec::new();
    let mut pointers = [0; 2];
    for granules in [6, 7, 9, 14, 30] {
        for (vec, pointer) in vecs.iter_mut().zip(&mut pointers) {
            vec.resize(granules * GRANULE, 1).unwrap();
            if granules == 6 {
                *pointer = vec.as_device_ptr();
            }
            assert_eq!(vec.as_device_ptr(), *pointer, "at {granules} granules");
        }
        others.extend([(); 3].map(|()| fixture.block(3 * GRANULE)));
    }
    drop((vecs, others));
    fixture.end();
}
