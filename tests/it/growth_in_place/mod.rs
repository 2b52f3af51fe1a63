//! Vectors that grow and shrink where they are: memory is mapped behind them, and nothing is copied.

mod adaptors;
mod limits;
mod waits;

use crate::support;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceLayout, DeviceResource, DeviceVec, ErrorKind,
    PoolResource, Stream,
    container::Growth,
    mr::{Handles, PoolOptions, VirtualResource},
};

/// The granule of most devices here, so that little memory is touched.
const GRANULE: usize = 4096;
const MIB: usize = 1 << 20;

type Pool = PoolResource<VirtualResource>;

fn options(device: &Device) -> PoolOptions<VirtualResource> {
    PoolResource::builder(VirtualResource::new(device).unwrap())
}

struct Fixture {
    device: Device,
    simulator: Simulator,
    stream: Stream,
    pool: Pool,
}

impl Fixture {
    fn new() -> Self {
        Self::with(SimConfig::default(), |options| options)
    }

    fn with(
        config: SimConfig,
        set: impl FnOnce(PoolOptions<VirtualResource>) -> PoolOptions<VirtualResource>,
    ) -> Self {
        let (device, simulator) = support::simulated(config.granularity(GRANULE));
        let stream = device.new_stream().unwrap();
        let pool = set(options(&device)).build().unwrap();
        Self { device, simulator, stream, pool }
    }

    /// A vector of so many granules that has addresses of its own, and its former memory free.
    fn grown(&self, granules: usize) -> DeviceVec<u32> {
        let mut vec = DeviceVec::zeroed_in(&self.stream, 1000, self.pool.clone()).unwrap();
        // Something lies behind it.
        let neighbour = self.block(1000);
        vec.resize(granules * GRANULE / 4, 7).unwrap();
        assert_eq!(vec.growth(), Some(Growth::Moved));
        drop(neighbour);
        vec
    }

    fn block(&self, bytes: usize) -> DeviceVec<u8> {
        DeviceVec::zeroed_in(&self.stream, bytes, self.pool.clone()).unwrap()
    }

    fn copies(&self) -> u64 {
        self.simulator.call_count("cuMemcpyDtoDAsync")
    }

    /// Everything goes back when all vectors are gone.
    #[track_caller]
    fn end(self) {
        let Self { device, simulator, stream, pool } = self;
        simulator.check().unwrap();
        drop(pool);
        drop(stream);
        device.synchronize().unwrap();
        assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
        let [reserved, freed] =
            ["cuMemAddressReserve", "cuMemAddressFree"].map(|call| simulator.call_count(call));
        assert_eq!(reserved, freed);
        simulator.check().unwrap();
    }
}

#[track_caller]
fn assert_values(vec: &DeviceVec<u32>, parts: &[(usize, u32)]) {
    let values = vec.to_vec().unwrap();
    let mut start = 0;
    for &(end, value) in parts {
        assert!(values[start..end].iter().all(|it| *it == value), "{start} to {end}: {value}");
        start = end;
    }
    assert_eq!(values.len(), start);
}

/// From 1 MiB to 8 GiB: one copy of the first mebibyte, and hardly more memory than the vector has.
#[test]
fn a_vector_grows_to_gibibytes_without_a_copy() {
    for step in [None, Some(64 * MIB)] {
        let config = SimConfig::default().capacity(16 << 30).without_poison();
        let (device, simulator) = support::simulated(config);
        let stream = device.new_stream().unwrap();
        let pool = options(&device).build().unwrap();
        let mut buffer = DeviceBuffer::zeroed_in(&stream, MIB, pool.clone()).unwrap();
        let (mut pointer, mut worst) = (0, 0.0_f64);
        while buffer.len() < 8 << 30 {
            let length = step.map_or(buffer.len() * 2, |step| buffer.len() + step).min(8 << 30);
            // SAFETY: nothing reads it.
            unsafe { buffer.resize_uninit(length).unwrap() };
            if length > 2 * MIB {
                let own = if pointer == 0 { buffer.as_device_ptr() } else { pointer };
                pointer = own;
                assert_eq!(buffer.as_device_ptr(), pointer, "at {length}");
            }
            let reserved = pool.statistics().peak_reserved as f64;
            worst = if length >= 128 * MIB { worst.max(reserved / length as f64) } else { worst };
        }
        let copies = simulator.call_count("cuMemcpyDtoDAsync");
        let calls = simulator.calls();
        let calls: Vec<_> = calls.iter().filter(|call| call.0.starts_with("cuMem")).collect();
        println!("{step:?}: {worst:.4} times the length at most, {copies} copies, {calls:?}");
        assert!(copies <= 1 && worst <= 1.02, "{copies}, {worst}");
        // Those of a long block, also where each growth is short.
        let handles = simulator.call_count("cuMemCreate");
        assert!(handles <= 360, "{step:?}: {handles}");
        assert_eq!(buffer.growth(), Some(Growth::InPlace));
        simulator.check().unwrap();
    }
}

#[test]
fn the_pointer_and_the_values_stay() {
    let fixture = Fixture::new();
    let mut vec = fixture.grown(2);
    let (pointer, copies) = (vec.as_device_ptr(), fixture.copies());
    let mut parts = vec![(1000, 0), (2 * GRANULE / 4, 7)];
    for (round, granules) in [3, 4, 9, 40, 41, 300].into_iter().enumerate() {
        let before = vec.len();
        match round % 4 {
            0 => vec.resize(granules * GRANULE / 4, 9).unwrap(),
            1 => vec.extend_from_slice(&vec![9; granules * GRANULE / 4 - before]).unwrap(),
            2 => {
                vec.reserve_exact(granules * GRANULE / 4 - before).unwrap();
                assert_eq!(vec.capacity(), granules * GRANULE / 4);
                vec.resize(granules * GRANULE / 4, 9).unwrap();
            }
            _ => (before..granules * GRANULE / 4).step_by(512).for_each(|at| {
                vec.push(9).unwrap();
                vec.resize(at + 512, 9).unwrap();
            }),
        }
        parts.push((vec.len(), 9));
        assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
        assert_values(&vec, &parts);
    }
    assert_eq!(fixture.copies(), copies);
    drop(vec);
    fixture.end();
}

/// A push that grows the vector takes a part of it, so that a loop of them makes few calls.
#[test]
fn pushes_make_few_driver_calls() {
    let fixture = Fixture::new();
    let mut vec = DeviceVec::<[u32; 64]>::new_in(&fixture.stream, fixture.pool.clone()).unwrap();
    for value in 0..16 * 1024 {
        vec.push([value; 64]).unwrap();
        let bytes = vec.len() * 256;
        let most = bytes + bytes / 128 + 2 * GRANULE;
        assert!(bytes < 2 * GRANULE || vec.capacity() * 256 <= most, "{}", vec.capacity());
    }
    let created = fixture.simulator.call_count("cuMemCreate");
    println!("{created} handles for 4 MiB in granules of 4 KiB");
    assert!(created < 450, "{created} handles for 1024 granules");
    let values = vec.to_vec().unwrap();
    assert!(values.iter().enumerate().all(|(at, value)| *value == [at as u32; 64]));
    drop(vec);
    fixture.end();
}

#[test]
fn what_is_free_behind_a_vector_is_taken_first() {
    let fixture = Fixture::new();
    let mut vec = fixture.grown(64);
    let pointer = vec.as_device_ptr();
    vec.truncate(8 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.as_device_ptr(), vec.capacity()), (pointer, 8 * GRANULE / 4));
    assert_eq!(vec.growth(), Some(Growth::InPlace));
    let created = fixture.simulator.call_count("cuMemCreate");
    vec.resize(32 * GRANULE / 4, 3).unwrap();
    vec.resize(64 * GRANULE / 4, 4).unwrap();
    assert_eq!(fixture.simulator.call_count("cuMemCreate"), created, "the rest lay there");
    vec.resize(80 * GRANULE / 4, 5).unwrap();
    assert_eq!((vec.as_device_ptr(), fixture.pool.statistics().live), (pointer, 80 * GRANULE));
    assert!(fixture.simulator.call_count("cuMemCreate") > created);
    let quarter = GRANULE / 4;
    let all =
        [(1000, 0), (8 * quarter, 7), (32 * quarter, 3), (64 * quarter, 4), (80 * quarter, 5)];
    assert_values(&vec, &all);
    drop(vec);
    fixture.end();
}

/// What a vector gives up serves others; the vector moves when it grows past them.
#[test]
fn a_shrunk_vector_gives_its_end_away() {
    let fixture = Fixture::with(SimConfig::default(), |options| options.maximum_size(32 * GRANULE));
    let other = fixture.device.new_stream().unwrap();
    let mut vec = fixture.grown(28);
    assert!(fixture.pool.statistics().reserved > 28 * GRANULE);
    let pointer = vec.as_device_ptr();
    vec.truncate(4 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.as_device_ptr(), vec.capacity()), (pointer, 4 * GRANULE / 4));
    let on_other = |granules: usize| {
        DeviceVec::<u8>::zeroed_in(&other, granules * GRANULE, fixture.pool.clone())
    };
    let taken = on_other(20).unwrap();
    let before = [(1000, 0), (4 * GRANULE / 4, 7)];
    assert_values(&vec, &before);
    // There is no memory for as much.
    let error = vec.resize(20 * GRANULE / 4, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!((vec.as_device_ptr(), vec.len()), (pointer, GRANULE));
    assert_values(&vec, &before);
    drop(taken);
    vec.resize(30 * GRANULE / 4, 1).unwrap();
    assert_eq!(vec.as_device_ptr(), pointer, "room for twice as much there is none");
    assert_values(&vec, &[before[0], before[1], (30 * GRANULE / 4, 1)]);
    drop(vec);
    // And all of it is another stream's.
    assert_eq!(on_other(32).unwrap().to_vec().unwrap(), vec![0; 32 * GRANULE]);
    fixture.end();
}

#[test]
fn less_than_a_granule_moves_to_a_small_block() {
    let fixture = Fixture::new();
    let mut vec = fixture.grown(64);
    let pointer = vec.as_device_ptr();
    vec.truncate(100);
    vec.shrink_to_fit().unwrap();
    assert_ne!(vec.as_device_ptr(), pointer);
    assert_eq!(vec.growth(), Some(Growth::Moved));
    assert!((100..=128).contains(&vec.capacity()), "{}", vec.capacity());
    assert_values(&vec, &[(100, 0)]);
    vec.clear();
    vec.shrink_to_fit().unwrap();
    assert_eq!((vec.capacity(), fixture.pool.statistics().live), (0, 0));
    vec.resize(10, 1).unwrap();
    assert_eq!(vec.growth(), None, "its first memory");
    drop(vec);
    fixture.end();
}

/// Two vectors that grow in turns, on one stream and on two, and what others allocate meanwhile.
#[test]
fn vectors_that_grow_in_turns_keep_their_places() {
    let fixture = Fixture::new();
    let second = fixture.device.new_stream().unwrap();
    let mut vecs = [fixture.grown(2), fixture.grown(2), fixture.grown(2)];
    vecs[2].set_stream(&second).unwrap();
    let pointers: Vec<_> = vecs.iter().map(DeviceVec::as_device_ptr).collect();
    let mut others = Vec::new();
    for step in 1..30 {
        for vec in &mut vecs {
            vec.resize((2 + step * step / 3) * GRANULE / 4, step as u32).unwrap();
        }
        others.push(fixture.block(step * 700));
        if step % 5 == 0 {
            others.clear();
        }
    }
    for (vec, pointer) in vecs.iter().zip(pointers) {
        assert_eq!(vec.as_device_ptr(), pointer);
        let mut parts = vec![(1000, 0), (2 * GRANULE / 4, 7)];
        parts.extend((1..30).map(|step| ((2 + step * step / 3) * GRANULE / 4, step as u32)));
        assert_values(vec, &parts);
    }
    drop((vecs, others));
    fixture.end();
}

/// A vector that was made large takes what lies behind it, or moves once.
#[test]
fn a_vector_that_was_made_large_moves_once_at_most() {
    let fixture = Fixture::new();
    let large = |value: u32| {
        let mut vec =
            DeviceVec::zeroed_in(&fixture.stream, 16 * GRANULE / 4, fixture.pool.clone()).unwrap();
        vec.fill(value).unwrap();
        vec
    };
    let (mut first, mut last) = (large(1), large(2));
    let (before, copies) = (last.as_device_ptr(), fixture.copies());
    last.resize(40 * GRANULE / 4, 3).unwrap();
    assert_eq!((last.as_device_ptr(), fixture.copies()), (before, copies));
    let before = first.as_device_ptr();
    first.resize(17 * GRANULE / 4, 3).unwrap();
    assert_ne!(first.as_device_ptr(), before, "the other one lies behind it");
    assert_eq!((first.growth(), fixture.copies()), (Some(Growth::Moved), copies + 1));
    for (granules, value) in [(60, 4), (200, 5)] {
        first.resize(granules * GRANULE / 4, value).unwrap();
        last.resize(granules * GRANULE / 4, value).unwrap();
    }
    assert_eq!(fixture.copies(), copies + 1);
    let quarter = GRANULE / 4;
    assert_values(
        &first,
        &[(16 * quarter, 1), (17 * quarter, 3), (60 * quarter, 4), (200 * quarter, 5)],
    );
    assert_values(
        &last,
        &[(16 * quarter, 2), (40 * quarter, 3), (60 * quarter, 4), (200 * quarter, 5)],
    );
    drop((first, last));
    fixture.end();
}

/// A program that makes, grows and drops the same again makes no driver call for its memory.
#[test]
fn the_place_of_a_former_vector_serves_the_next() {
    let fixture = Fixture::new();
    let calls = || {
        let calls = ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemAddressReserve"];
        calls.map(|call| fixture.simulator.call_count(call))
    };
    let mut warm = [0; 4];
    for round in 0..6 {
        drop(fixture.grown(3));
        let mut vec = fixture.grown(3);
        vec.resize(50 * GRANULE / 4, 1).unwrap();
        if round == 1 {
            warm = calls();
        }
    }
    assert_eq!(calls(), warm);
    fixture.end();
}

#[test]
fn guards_on_other_streams_stay_right() {
    let fixture = Fixture::new();
    let [one, two] = [(); 2].map(|()| fixture.device.new_stream().unwrap());
    let mut vec = fixture.grown(4);
    for round in 0..20_u32 {
        let before = vec.len();
        // What the other stream does goes on while the vector grows.
        let mut part = vec.slice_mut(..before / 2).unwrap();
        crate::kernels::add_one(&one, &mut part).unwrap();
        let view = vec.slice(before / 4..).unwrap();
        #[allow(
            clippy::forget_non_drop,
            reason = "that a guard is forgotten has to change nothing"
        )]
        std::mem::forget(view.on(&two).unwrap());
        vec.reserve(GRANULE / 4 * round as usize).unwrap();
        vec.resize(before + 900, round).unwrap();
        crate::kernels::add_one(&two, &mut vec.slice_mut(before..).unwrap()).unwrap();
        if round % 7 == 6 {
            vec.set_stream(if round == 6 { &one } else { &two }).unwrap();
        }
        if round % 5 == 4 {
            vec.shrink_to_fit().unwrap();
        }
    }
    let values = vec.to_vec().unwrap();
    assert_eq!(values[0], 20);
    assert_eq!(values[values.len() - 900..], [20; 900]);
    drop(vec);
    fixture.end();
}

/// The checker finds work on another stream that is in no order with the growth.
#[test]
fn a_use_without_an_order_is_found() {
    let fixture = Fixture::new();
    if support::pool_checks() == Some(false) {
        return;
    }
    let other = fixture.device.new_stream().unwrap();
    let mut vec = fixture.grown(2);
    let end = vec.as_device_ptr() + 4 * vec.capacity() as u64;
    vec.reserve_exact(10 * GRANULE).unwrap();
    assert_eq!(vec.growth(), Some(Growth::InPlace));
    let stray = |address: u64| {
        let block = aquifer::DeviceBlock::new(address, 400, 0);
        let (home, resource) = (other.clone(), CudaResource::new(&fixture.device));
        // SAFETY: a bug that is planted.
        let stray = unsafe { DeviceVec::<u32>::from_raw_parts(home, block, 100, resource) };
        let mut stray = stray.unwrap();
        let _ = stray.fill(1);
        std::mem::forget(stray);
    };
    stray(end);
    let reports = fixture.simulator.take_reports();
    let has_growth =
        |report: &aquifer::sim::Report| report.to_string().contains("growth in a pool");
    assert!(reports.iter().any(has_growth), "{reports:?}");
    // What was there before has an order of its own.
    stray(end - 400);
    let reports = fixture.simulator.take_reports();
    assert!(!reports.is_empty() && !reports.iter().any(has_growth), "{reports:?}");
    // Behind the host's wait all of it is in order.
    fixture.device.synchronize().unwrap();
    fixture.simulator.take_reports();
    stray(end);
    stray(end - 400);
    assert_eq!(fixture.simulator.take_reports().len(), 0);
    fixture.device.synchronize().unwrap();
    drop(vec);
    fixture.end();
}

/// What growth adds has no value before it is written, and what was there keeps its own.
#[test]
fn a_read_of_what_was_added_is_found() {
    let fixture = Fixture::new();
    if support::pool_checks() == Some(false) {
        return;
    }
    let mut buffer = DeviceBuffer::zeroed_in(&fixture.stream, 100, fixture.pool.clone()).unwrap();
    let neighbour = fixture.block(100);
    buffer.resize_zeroed(GRANULE).unwrap();
    buffer.resize_zeroed(2 * GRANULE).unwrap();
    assert_eq!(buffer.growth(), Some(Growth::InPlace));
    // SAFETY: a bug that is planted.
    unsafe { buffer.resize_uninit(3 * GRANULE) }.unwrap();
    assert_eq!(
        buffer.view::<u8>().unwrap().slice(..2 * GRANULE).unwrap().to_vec().unwrap(),
        [0; 2 * GRANULE]
    );
    fixture.simulator.check().unwrap();
    let _ = buffer.to_vec();
    let reports = fixture.simulator.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    let text = reports[0].to_string();
    assert!(text.contains("DeviceBuffer of 12288 bytes"), "{text}");
    // Shrunk and grown again, it has no value either.
    buffer.resize_zeroed(GRANULE).unwrap();
    buffer.shrink_to_fit().unwrap();
    assert_eq!((buffer.capacity(), buffer.growth()), (GRANULE, Some(Growth::InPlace)));
    // SAFETY: a bug that is planted.
    unsafe { buffer.resize_uninit(3 * GRANULE) }.unwrap();
    let _ = buffer.to_vec();
    assert_eq!(fixture.simulator.take_reports().len(), 1);
    drop((buffer, neighbour));
    fixture.end();
}

/// The end that a vector gives up is still in use on another stream: home waits for that, and the next user of it, too.
#[test]
fn what_is_given_up_is_behind_its_uses() {
    let fixture = Fixture::new();
    let other = fixture.device.new_stream().unwrap();
    let mut vec = fixture.grown(40);
    crate::kernels::add_one(&other, &mut vec.slice_mut(..).unwrap()).unwrap();
    vec.truncate(4 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    assert_eq!(vec.growth(), Some(Growth::InPlace));
    let mut next = fixture.block(30 * GRANULE);
    next.fill(5).unwrap();
    assert_eq!(next.to_vec().unwrap(), vec![5; 30 * GRANULE]);
    assert_values(&vec, &[(1000, 1), (4 * GRANULE / 4, 8)]);
    drop((vec, next));
    fixture.end();
}

/// In a capture: what is added is complete memory, and no part of the graph is a copy or a wait.
#[test]
fn a_vector_grows_in_a_capture() {
    let fixture = Fixture::new();
    let other = fixture.device.new_stream().unwrap();
    let mut vec = fixture.grown(4);
    // Free memory, which work of the other stream still uses.
    let mut pending =
        DeviceVec::<u8>::zeroed_in(&other, 64 * GRANULE, fixture.pool.clone()).unwrap();
    pending.fill(1).unwrap();
    drop(pending);
    let (pointer, copies) = (vec.as_device_ptr(), fixture.copies());
    let (graph, mut vec) = fixture
        .stream
        .capture(&fixture.pool, |stream| {
            let before = vec.len();
            vec.resize(40 * GRANULE / 4, 5)?;
            crate::kernels::add_one(stream, &mut vec.slice_mut(before..)?)?;
            vec.truncate(20 * GRANULE / 4);
            // A graph may use all of it.
            assert_eq!(vec.shrink_to_fit().unwrap_err().kind(), ErrorKind::Capture);
            Ok(vec)
        })
        .unwrap();
    assert_eq!((vec.as_device_ptr(), vec.growth()), (pointer, Some(Growth::InPlace)));
    for _ in 0..2 {
        // SAFETY: the vector lives, and nothing else uses it meanwhile.
        unsafe { graph.launch(&fixture.stream) }.unwrap();
    }
    let quarter = GRANULE / 4;
    assert_values(&vec, &[(1000, 0), (4 * quarter, 7), (20 * quarter, 6)]);
    vec.resize(80 * quarter, 8).unwrap();
    // SAFETY: as above.
    unsafe { graph.launch(&fixture.stream) }.unwrap();
    let all = [(1000, 0), (4 * quarter, 7), (20 * quarter, 6), (80 * quarter, 8)];
    assert_eq!((vec.as_device_ptr(), fixture.copies()), (pointer, copies));
    // The graph wrote its part of the vector again, which is longer now.
    let values = vec.to_vec().unwrap();
    assert_eq!((values[0], values[19 * quarter], values[79 * quarter]), (0, all[2].1, 8));
    drop((graph, vec));
    fixture.end();
}

/// A vector that is made in a capture, grown after it, and dropped before the graph: the graph keeps all of it.
#[test]
fn a_graph_keeps_what_grew() {
    let fixture = Fixture::new();
    let (graph, mut vec) = fixture
        .stream
        .capture(&fixture.pool, |stream| {
            let mut vec =
                DeviceVec::<u32>::zeroed_in(stream, 8 * GRANULE / 4, fixture.pool.clone())?;
            vec.fill(3)?;
            Ok(vec)
        })
        .unwrap();
    // SAFETY: the vector lives, and nothing else uses it meanwhile.
    unsafe { graph.launch(&fixture.stream) }.unwrap();
    vec.resize(30 * GRANULE / 4, 4).unwrap();
    let in_place = vec.growth() == Some(Growth::InPlace);
    vec.shrink_to_fit().unwrap();
    vec.truncate(10 * GRANULE / 4);
    vec.shrink_to_fit().unwrap();
    // SAFETY: what the graph uses is the vector's, or the graph's by now.
    unsafe { graph.launch(&fixture.stream) }.unwrap();
    assert_eq!(vec.to_vec().unwrap()[9 * GRANULE / 4], 4);
    let (held, live) = (fixture.pool.statistics().held, vec.capacity() * 4);
    drop(vec);
    let after = fixture.pool.statistics().held;
    assert!(after >= 8 * GRANULE, "{in_place}: {held} held before, {after} after, of {live}");
    let beside = fixture.block(64 * GRANULE);
    // SAFETY: what the graph uses is the graph's.
    unsafe { graph.launch(&fixture.stream) }.unwrap();
    assert_eq!(beside.to_vec().unwrap(), vec![0; 64 * GRANULE]);
    drop((graph, beside));
    assert_eq!(fixture.pool.statistics().held, 0);
    fixture.end();
}
