//! The option `handles`: what a pool maps, over which resource, and where it cannot.

use super::{KIB, MIB, allocate, free, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, Error, ErrorKind, PoolResource,
    mr::{
        AlignedAdaptor, ArenaResource, AsyncResource, FixedSizeResource, Handles, ManagedResource,
        PoolOptions, StackText, VirtualResource, default_device_pool,
    },
};
use std::sync::Arc;

fn plain(device: &Device) -> PoolOptions<CudaResource> {
    PoolResource::builder(CudaResource::new(device))
}

/// Whether a pool maps handles, which it says and does.
fn maps<U: DeviceResource + 'static>(device: &Device, options: PoolOptions<U>) -> bool {
    let (simulator, stream) = (device.simulator().unwrap(), device.new_stream().unwrap());
    let creates = || simulator.call_count("cuMemCreate");
    let pool = options.build().unwrap();
    let before = creates();
    let block = allocate(&pool, &stream, MIB).unwrap();
    let statistics = pool.statistics();
    free(&pool, &stream, block);
    let creates = creates() - before;
    assert_eq!(creates > 0, pool.maps_handles(), "{pool:?}");
    assert!(!pool.maps_handles() || statistics.reserved.is_multiple_of(2 * MIB), "{statistics:?}");
    pool.maps_handles()
}

fn refused<U: DeviceResource + 'static>(options: PoolOptions<U>) -> Error {
    let error = options.handles(Handles::On).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().starts_with("a pool was asked to map handles"), "{error}");
    error
}

/// The row of each value, over the resources that have a choice.
#[test]
fn each_value_over_plain_and_over_mapped_memory() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let erased = || CudaResource::new(&device).into_shared();
    let mapped = || VirtualResource::new(&device).unwrap();
    assert_eq!(Handles::default(), Handles::Auto);
    for (value, wanted) in [(Handles::Auto, false), (Handles::On, true), (Handles::Off, false)] {
        assert_eq!(maps(&device, plain(&device).handles(value)), wanted, "{value:?}");
        let shared = Arc::new(CudaResource::new(&device));
        assert_eq!(maps(&device, PoolResource::builder(shared).handles(value)), wanted);
        assert_eq!(maps(&device, PoolResource::builder(erased()).handles(value)), wanted);
        let pool = PoolResource::builder(mapped()).handles(value).build().unwrap();
        assert_eq!(pool.maps_handles(), value != Handles::Off, "{value:?}");
    }
    assert!(!maps(&device, plain(&device)));
    assert!(!default_device_pool(&device).unwrap().maps_handles());
    // Blocks of mapped memory are whole granules each.
    let pool = PoolResource::builder(mapped()).handles(Handles::Off).growth_step(3 * MIB);
    let pool = pool.build().unwrap();
    let stream = device.new_stream().unwrap();
    let before = simulator.live_bytes();
    let block = allocate(&pool, &stream, MIB).unwrap();
    assert_eq!(pool.statistics().upstream_blocks, 1);
    assert_eq!((pool.statistics().reserved, simulator.live_bytes() - before), (3 * MIB, 4 << 20));
    free(&pool, &stream, block);
    drop(pool);
    simulator.check().unwrap();
}

#[test]
fn a_pool_over_another_resource_takes_its_blocks() {
    let (device, _) = support::simulated(SimConfig::default());
    let managed = || ManagedResource::new(&device).unwrap();
    let pooled = || AsyncResource::new(&device).unwrap();
    let around = || AlignedAdaptor::new(CudaResource::new(&device), 256, 0).unwrap();
    for value in [Handles::Auto, Handles::Off] {
        assert!(!maps(&device, PoolResource::builder(managed()).handles(value)));
        assert!(!maps(&device, PoolResource::builder(pooled()).handles(value)));
        assert!(!maps(&device, PoolResource::builder(around()).handles(value)));
        let below = plain(&device).handles(Handles::Off).build().unwrap();
        assert!(!maps(&device, PoolResource::builder(below).handles(value)));
    }
    let wrong = refused(PoolResource::builder(managed()));
    assert!(wrong.to_string().contains("ManagedResource"), "{wrong}");
    assert!(wrong.advice().unwrap().contains("CudaResource or VirtualResource"), "{wrong}");
    refused(PoolResource::builder(pooled()));
    refused(PoolResource::builder(around()));
}

/// A device without handles has blocks in their place, unless handles are asked for.
#[test]
fn a_device_without_virtual_memory_has_blocks() {
    let (device, simulator) = support::simulated(SimConfig::default().without_virtual_memory());
    assert!(!maps(&device, plain(&device)));
    assert!(!default_device_pool(&device).unwrap().maps_handles());
    let wrong = refused(plain(&device));
    assert!(wrong.to_string().contains("has no virtual memory management"), "{wrong}");
    assert!(wrong.advice().unwrap().contains("Handles::Auto"), "{wrong}");
    simulator.check().unwrap();
    // The device says yes, and the driver has no such call.
    let (device, simulator) = support::simulated(SimConfig::default());
    simulator.fail_call("cuMemGetAllocationGranularity", 1, 801).unwrap();
    refused(plain(&device));
}

/// A maximum is whole granules, at least one.
#[test]
fn the_maximum_of_a_pool_on_handles_is_of_whole_granules() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = plain(&device).maximum_size(3 * MIB).handles(Handles::On).build().unwrap();
    assert_eq!(pool.maximum_size(), Some(2 * MIB));
    let least = plain(&device).maximum_size(MIB).handles(Handles::On).build().unwrap_err();
    assert_eq!(least.kind(), ErrorKind::InvalidArgument);
}

/// Arenas and resources of one size take chunks of their upstream, as they say.
#[test]
fn arenas_and_blocks_of_one_size_take_chunks() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let arena = ArenaResource::builder(CudaResource::new(&device)).arena_size(3 * MIB);
    let arena = arena.build().unwrap();
    let fixed = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    let [first, second] = [&arena as &dyn DeviceResource, &fixed]
        .map(|resource| resource.allocate(&stream, support::layout(1024)).unwrap());
    assert_eq!(simulator.call_count("cuMemCreate"), 0);
    assert_eq!(simulator.call_count("cuMemAlloc"), 2);
    free(&arena, &stream, first);
    free(&fixed, &stream, second);
}

#[test]
fn a_text_names_the_values() {
    let (device, _) = support::simulated(SimConfig::default());
    let build = |text: &str| text.parse::<StackText>().unwrap().build(&device);
    for (text, canonical, wanted) in [
        ("pool", "pool(cuda)", false),
        ("pool(handles=auto)", "pool(cuda, handles=auto)", false),
        ("pool(handles=on)", "pool(cuda, handles=on)", true),
        ("pool(cuda, handles=off)", "pool(cuda, handles=off)", false),
        ("pool(virtual, handles=off)", "pool(virtual, handles=off)", false),
        ("pool(handles=off, max=1GiB)", "pool(cuda, maximum_size=1GiB, handles=off)", false),
        ("pool(managed)", "pool(managed)", false),
        ("pool(managed, handles=auto)", "pool(managed, handles=auto)", false),
    ] {
        let stack = build(text).unwrap();
        assert_eq!(stack.text().unwrap().to_string(), canonical);
        assert_eq!(stack.pool().unwrap().maps_handles(), wanted, "{text}");
        assert_eq!(canonical.parse::<StackText>().unwrap(), text.parse().unwrap());
    }
    let error = build("pool(managed, handles=on)").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().starts_with("making `pool`, at column 1"), "{error}");
    let error = "pool(handles=yes)".parse::<StackText>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("write `auto`, `on` or `off`"), "{error}");
    let around = build("cuda").unwrap().with("pool(handles=off) | statistics").unwrap();
    assert!(!around.pool().unwrap().maps_handles());
    let around = build("cuda").unwrap().with("pool(handles=on)").unwrap();
    assert!(around.pool().unwrap().maps_handles());
}

/// What C and Python make of a text: memory that their hosts can share.
#[test]
fn a_shareable_text_takes_blocks_where_nothing_is_said() {
    let (device, _) = support::simulated(SimConfig::default());
    for (text, canonical) in [
        ("pool", "pool(cuda, handles=off)"),
        (
            "pool(cuda, max=1GiB) | statistics",
            "pool(cuda, maximum_size=1GiB, handles=off) | statistics",
        ),
        ("pool(handles=auto)", "pool(cuda, handles=auto)"),
        ("pool(handles=on)", "pool(cuda, handles=on)"),
        ("pool(pool(cuda))", "pool(pool(cuda, handles=off))"),
        ("pool(virtual)", "pool(virtual)"),
        ("pool(managed)", "pool(managed)"),
        ("pool(cuda | limiting(1GiB))", "pool(cuda | limiting(1GiB))"),
        ("fixed_size(cuda)", "fixed_size(cuda)"),
        ("cuda", "cuda"),
    ] {
        let read = text.parse::<StackText>().unwrap().shareable();
        assert_eq!(read.to_string(), canonical);
        assert_eq!(read.build(&device).unwrap().text(), Some(&read));
    }
    let build = |text: &str| text.parse::<StackText>().unwrap().build(&device).unwrap();
    for (below, text, wanted) in [
        ("cuda", "pool", "pool(cuda, handles=off)"),
        ("cuda", "statistics | pool", "pool(cuda | statistics)"),
        ("cuda", "pool(handles=on)", "pool(cuda, handles=on)"),
        ("virtual", "pool", "pool(virtual)"),
        ("pool(cuda)", "pool", "pool(pool(cuda))"),
    ] {
        let stack = build(below).with_shareable(text).unwrap();
        assert_eq!(stack.text().unwrap().to_string(), wanted);
    }
    let options = PoolResource::builder(CudaResource::new(&device)).shareable();
    assert!(!options.build().unwrap().maps_handles());
    let options = PoolResource::builder(VirtualResource::new(&device).unwrap()).shareable();
    assert!(options.build().unwrap().maps_handles());
}

/// Peers reach the memory that the pool maps, and by the driver's own switch its blocks alone.
#[test]
fn peers_reach_what_the_pool_takes() {
    let (one, _) = support::simulated(SimConfig::default());
    let (two, simulator) = support::simulated(SimConfig::default().ordinal(1));
    let handles = plain(&one).handles(Handles::On).build().unwrap();
    let blocks = plain(&one).handles(Handles::Off).build().unwrap();
    handles.enable_peer_access(&two).unwrap();
    assert!(handles.has_peer_access(&two) && !blocks.has_peer_access(&two));
    blocks.enable_peer_access(&two).unwrap();
    assert!(blocks.has_peer_access(&two));
    let there = two.new_stream().unwrap();
    for pool in [handles, blocks] {
        let vec = DeviceVec::from_slice_in(&one.new_stream().unwrap(), &[7_u32; 64], pool).unwrap();
        assert!(vec.on(&there).is_ok());
        assert_eq!(vec.to_vec().unwrap(), [7; 64]);
    }
    simulator.check().unwrap();
}

/// 256 KiB longer each time; the last one goes when the next is there.
#[test]
fn a_pool_on_handles_holds_little_more_than_a_growing_buffer() {
    let (device, _) = support::simulated(SimConfig::default());
    let pool = plain(&device).handles(Handles::On).build().unwrap();
    let stream = device.new_stream().unwrap();
    let mut last = None;
    for count in 1..=512 {
        let next = DeviceVec::<u8>::zeroed_in(&stream, count * 256 * KIB, pool.clone()).unwrap();
        last = Some(next);
    }
    drop(last);
    let (held, peak) = (pool.statistics().peak_reserved, (512 + 511) * 256 * KIB);
    assert!(held >= peak && held <= peak + peak / 10, "{held} for {peak}");
}
