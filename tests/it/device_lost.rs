//! A device whose context is lost: every call is an error, nothing panics, and everything drops.

#![allow(clippy::forget_non_drop, reason = "that a guard is forgotten has to change nothing")]

use crate::{kernels, log, support};
use aquifer::allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind, HostArgs,
    Kernel, LaunchConfig, PoolResource, Result, Stream,
    mr::{AsyncResource, ManagedResource, OnStream, VirtualResource},
    pinned::{PinnedResource, Registered},
};
use kernels::{add_one, idle_entry, kind};
use log::Log;
use std::fmt::Debug;
use std::sync::Arc;

/// How a context ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// It is destroyed, as when the process exits.
    Destroyed,
    /// A kernel traps.
    Trap,
}

static TRAP: Kernel = Kernel::new(
    "traps",
    idle_entry!("traps"),
    |_config: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
        args.scalar::<[u8; 16]>().map(drop)
    },
);

pub(crate) fn end(device: &Device, how: End) {
    let simulator = device.simulator().unwrap();
    match how {
        End::Destroyed => simulator.lose_context(),
        End::Trap => {
            let stream = device.new_stream().unwrap();
            // SAFETY: it touches nothing; its host form fails.
            unsafe { stream.launch(&TRAP).launch(LaunchConfig::for_elements(1)).unwrap() };
            // The fault itself goes to who asks first, and that may be a thread of another test, which
            // looks after what the process has buried.
            let told = kind(stream.synchronize());
            assert!([ErrorKind::Simulation, ErrorKind::ContextLost].contains(&told), "{told:?}");
            let kinds: Vec<_> = simulator.take_reports().iter().map(|one| one.kind()).collect();
            assert_eq!(kinds, [Violation::KernelFault]);
        }
    }
}

/// Both debug forms of a value, which must not need the driver.
fn shown(value: &dyn Debug) {
    assert!(!format!("{value:?}").is_empty());
    assert!(!format!("{value:#?}").is_empty());
}

#[track_caller]
fn lost<T>(what: &str, result: Result<T>) {
    match result {
        Ok(_) => panic!("{what} worked on a device that is lost"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ContextLost, "{what}: {error}");
            assert!(error.driver().is_some(), "{what}: {error}");
        }
    }
}

pub(crate) fn ends() -> [End; 2] {
    [End::Destroyed, End::Trap]
}

#[test]
fn devices_streams_and_events_give_errors() {
    for how in ends() {
        let (device, _) = support::simulated(SimConfig::default());
        let (stream, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mine = device.per_thread_stream().unwrap();
        let event = stream.record().unwrap();
        end(&device, how);
        lost("new_stream", device.new_stream());
        lost("per_thread_stream", device.per_thread_stream());
        lost("memory_info", device.memory_info());
        lost("device.synchronize", device.synchronize());
        lost("record", stream.record());
        lost("synchronize", stream.synchronize());
        assert!(!stream.is_capturing().unwrap(), "known without the device");
        lost("wait", other.wait(&event));
        lost("wait_for", other.wait_for(&stream));
        lost("is_complete", event.is_complete());
        lost("event.synchronize", event.synchronize());
        lost("mine.wait", mine.wait(&event));
        lost("mine.synchronize", mine.synchronize());
        lost("default_stream", device.default_stream().synchronize());
        lost("scope", stream.scope(|_| Ok::<_, Error>(())));
        let things: [&dyn Debug; 5] = [&device, &stream, &mine, &event, &device.simulator()];
        things.into_iter().for_each(shown);
        assert!(!stream.to_string().is_empty() && !device.name().is_empty());
        drop((device, stream, other, mine, event));
    }
}

#[test]
fn vectors_give_errors_and_drop() {
    for how in ends() {
        let (device, _) = support::simulated(SimConfig::default());
        let (home, other) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
        let mut target = DeviceVec::<u32>::zeroed(&home, 8).unwrap();
        let mut owing = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
        add_one(&other, &mut owing).unwrap();
        let forgotten = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
        std::mem::forget(forgotten.on(&other).unwrap());
        end(&device, how);

        lost("zeroed", DeviceVec::<u32>::zeroed(&home, 8));
        lost("from_slice", DeviceVec::from_slice(&home, &[1]));
        lost("from_vec", DeviceVec::from_vec(&home, vec![1]));
        lost("fill", vec.fill(1));
        lost("get", vec.get(0));
        lost("set", vec.set(0, 1));
        lost("to_vec", vec.to_vec());
        lost("copy_to_slice", vec.copy_to_slice(&mut [0; 8]));
        lost("copy_from_slice", vec.copy_from_slice(&[0; 8]));
        lost("copy_from", target.copy_from(&vec));
        lost("try_clone", vec.try_clone());
        lost("push", vec.push(1));
        lost("extend", vec.extend_from_slice(&[1, 2]));
        lost("reserve", vec.reserve(100));
        lost("on", vec.on(&other));
        lost("on_mut", vec.on_mut(&other));
        lost("set_stream", vec.set_stream(&other));
        lost("launch", add_one(&home, &mut vec));
        lost("pay", owing.fill(1));
        assert_eq!((vec.len(), target.len(), owing.len()), (8, 8, 8));
        shown(&vec);
        shown(&vec.as_slice());
        shown(&vec.as_mut_slice());
        shown(&home.launch(&TRAP));
        let refused = owing.into_raw_parts().unwrap_err();
        let (error, owing) = (refused.error, refused.value);
        assert_eq!(error.kind(), ErrorKind::ContextLost);
        shown(&owing);
        drop((device, home, other, vec, target, owing, forgotten));
    }
}

#[test]
fn resources_give_errors_and_drop() {
    for how in ends() {
        let (device, _) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let pool = Arc::new(AsyncResource::new(&device).unwrap());
        let pinned = PinnedResource::new(&device).unwrap();
        let mapped = VirtualResource::new(&device).unwrap();
        let resources: [Arc<dyn DeviceResource>; 5] = [
            Arc::new(CudaResource::new(&device)),
            pool.clone(),
            Arc::new(ManagedResource::new(&device).unwrap()),
            Arc::new(pinned.clone()),
            Arc::new(mapped.clone()),
        ];
        let layout = DeviceLayout::new(64).unwrap();
        let blocks = resources.clone().map(|resource| resource.allocate(&stream, layout).unwrap());
        let mut on_host = AllocVec::new_in(OnStream::new(pinned.clone(), &stream).unwrap());
        on_host.extend([1, 2, 3]);
        end(&device, how);
        for (resource, block) in resources.iter().zip(blocks) {
            lost(&format!("{resource:?}"), resource.allocate(&stream, layout));
            shown(resource);
            shown(&block);
            // SAFETY: the block is the resource's, and no work uses it.
            unsafe { resource.deallocate(&stream, block) };
        }
        lost("AsyncResource::new", AsyncResource::new(&device));
        lost("pool.trim", pool.trim(0));
        assert!(on_host.try_reserve(1000).is_err());
        assert_eq!(on_host.as_slice(), [1, 2, 3]);
        shown(&on_host.allocator());
        let _ = pinned.trim();
        drop((device, stream, pool, resources, on_host, pinned));
    }
}

/// Nothing is unmapped: the device may be at work there still, for all that the driver says.
#[test]
fn mapped_pools_give_errors_and_drop() {
    const MIB: usize = 1 << 20;
    for how in ends() {
        let (device, simulator) = support::simulated(SimConfig::default());
        let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let zeroed =
            |stream: &Stream, bytes| DeviceVec::<u8>::zeroed_in(stream, bytes, pool.clone());
        let mut vec = zeroed(&stream, 8 * MIB).unwrap();
        vec.resize(16 * MIB, 1).unwrap();
        drop(zeroed(&other, 40 * MIB).unwrap());
        let unmapped = simulator.call_count("cuMemUnmap");
        end(&device, how);
        lost("growth", zeroed(&stream, 64 * MIB));
        lost("growth in place", vec.resize(100 * MIB, 2));
        lost("a move", zeroed(&stream, 30 * MIB));
        lost("VirtualResource::new", VirtualResource::new(&device));
        let _ = pool.wait_and_trim(0);
        shown(&pool);
        assert_eq!(vec.len(), 16 * MIB);
        drop((vec, pool, stream, other, device));
        assert_eq!(simulator.call_count("cuMemUnmap"), unmapped, "{how:?}");
    }
}

#[test]
fn transfers_and_registered_memory_give_errors_and_drop() {
    for how in ends() {
        let (device, _) = support::simulated(SimConfig::default());
        let stream = device.new_stream().unwrap();
        let new = || DeviceVec::from_slice(&stream, &[1_u32; 8]).unwrap();
        let (kept, dropped) = (new(), new());
        let registered = Registered::new(&device, vec![1_u32; 100]).unwrap();
        let going_up = stream.upload(vec![2_u32; 8], new()).unwrap();
        let coming_down = stream.download(new(), vec![0_u32; 8]).unwrap();
        let early = stream.download(dropped, vec![0_u32; 8]).unwrap();
        drop(early);
        end(&device, how);
        lost("upload", stream.upload(vec![0_u32; 8], kept).map_err(|failed| failed.error));
        shown(&going_up);
        let _ = going_up.is_complete();
        lost("wait for an upload", going_up.wait().map_err(|failed| failed.error));
        lost("wait for a download", coming_down.wait().map_err(|failed| failed.error));
        let again = Registered::new(&device, vec![1_u32; 100]);
        lost("Registered::new", again.map_err(|failed| failed.error));
        shown(&registered);
        assert_eq!(registered.len(), 100);
        drop(registered);
        drop((device, stream));
    }
}

#[test]
fn what_is_gone_with_its_context_is_dropped_without_a_word() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let (home, other): (Stream, Stream) =
        (device.new_stream().unwrap(), device.new_stream().unwrap());
    let mut vec = DeviceVec::from_slice(&home, &[1_u32; 8]).unwrap();
    add_one(&other, &mut vec).unwrap();
    let plain = Arc::new(CudaResource::new(&device));
    let plain = DeviceVec::<u32>::zeroed_in(&home, 8, plain).unwrap();
    let mapped = VirtualResource::new(&device).unwrap();
    let pool = PoolResource::new(mapped.clone()).unwrap();
    let mapped = DeviceVec::<u32>::zeroed_in(&home, 8, mapped).unwrap();
    let pooled = DeviceVec::<u32>::zeroed_in(&home, 8, pool).unwrap();
    let event = other.record().unwrap();
    simulator.lose_context();
    let ((), log) = Log::of(|| drop((vec, plain, mapped, pooled, event, home, other, device)));
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}
