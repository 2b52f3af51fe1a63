//! Managers that do what none should.

use super::{Asked, STOCK, Stocked};
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, Result, Stream,
    device::MemoryInfo,
    nbep7::{
        DeferCleanup, DeviceMemoryManager, HostAllocFlags, HostOnly, MemoryManager, MemoryPointer,
        PinnedMemory, set_memory_manager,
    },
    pinned::{PinnedResource, Registered},
};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// How a manager goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Panics,
    TooFew,
    Misaligned,
    Itself,
}

#[derive(Debug)]
struct Bad {
    wrong: Wrong,
    stock: Stocked,
}

// SAFETY: what is wrong here is refused, or is the test's.
unsafe impl MemoryManager for Bad {
    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        let asked = self.stock.asked.clone();
        let free = move |_: &Stream| asked.note("free");
        match self.wrong {
            Wrong::Panics => panic!("no memory for you"),
            Wrong::TooFew => Ok(MemoryPointer::new(stream, 1 << 20, layout.bytes() - 1, free)),
            Wrong::Misaligned => Ok(MemoryPointer::new(stream, (1 << 20) + 8, 4096, free)),
            Wrong::Itself => {
                drop(DeviceVec::<u8>::zeroed(stream, 10)?);
                Ok(MemoryPointer::new(stream, 4096, 10, free))
            }
        }
    }

    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory> {
        match self.wrong {
            Wrong::Panics => panic!("no memory for you"),
            _ => self.stock.memhostalloc(bytes / 2, flags),
        }
    }

    unsafe fn mempin(&self, memory: NonNull<[u8]>, _: bool) -> Result<PinnedMemory> {
        match self.wrong {
            Wrong::Panics => panic!("no memory for you"),
            _ => {
                let half = NonNull::slice_from_raw_parts(memory.cast(), memory.len() / 2);
                Ok(PinnedMemory::new(half, || {}))
            }
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.stock.memory_info()
    }

    fn reset(&self) -> Result<()> {
        Ok(())
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        DeferCleanup::none()
    }
}

fn refusals(wrong: Wrong) -> (Asked, [aquifer::Error; 3]) {
    let asked = Asked::default();
    let its = asked.clone();
    set_memory_manager(move |device| Ok(Bad { wrong, stock: Stocked::new(device, &its)? }))
        .unwrap();
    let (device, _) = support::simulated(SimConfig::default());
    let _manager = aquifer::nbep7::memory_manager(&device).unwrap();
    let stream = device.new_stream().unwrap();
    let vector = DeviceVec::<u8>::zeroed(&stream, 100).unwrap_err();
    let mut pinned = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
    assert!(pinned.try_reserve(STOCK / 16).is_err());
    let host = aquifer::pinned::last_error().unwrap();
    let registered = Registered::new(&device, vec![0_u8; 100]).err().unwrap();
    assert!(registered.buffer.is_some());
    (asked, [vector, host, registered.error])
}

#[test]
fn a_panic_of_a_manager_is_an_error() {
    if !support::in_own_process(module_path!(), "a_panic_of_a_manager_is_an_error") {
        return;
    }
    for error in refusals(Wrong::Panics).1 {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("Bad") && error.to_string().contains("no memory for you")
        );
    }
}

#[test]
fn too_little_memory_is_refused_and_given_back() {
    if !support::in_own_process(module_path!(), "too_little_memory_is_refused_and_given_back") {
        return;
    }
    let (asked, errors) = refusals(Wrong::TooFew);
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!((asked.count("free"), asked.count("host free")), (1, 1));
}

#[test]
fn memory_at_another_alignment_is_refused() {
    if !support::in_own_process(module_path!(), "memory_at_another_alignment_is_refused") {
        return;
    }
    let (asked, errors) = refusals(Wrong::Misaligned);
    assert_eq!(errors[0].kind(), ErrorKind::Unsupported, "{}", errors[0]);
    assert_eq!(asked.count("free"), 1);
}

#[test]
fn a_manager_that_asks_itself_is_told() {
    if !support::in_own_process(module_path!(), "a_manager_that_asks_itself_is_told") {
        return;
    }
    let (_, [vector, ..]) = refusals(Wrong::Itself);
    assert_eq!(vector.kind(), ErrorKind::Reentered, "{vector}");
}

#[test]
fn another_version_of_the_interface_is_refused() {
    if !support::in_own_process(module_path!(), "another_version_of_the_interface_is_refused") {
        return;
    }
    set_memory_manager(|device| {
        Ok(Stocked { version: 2, ..Stocked::new(device, &Asked::default())? })
    })
    .unwrap();
    let (device, _) = support::simulated(SimConfig::default());
    for _ in 0..2 {
        let refused = DeviceVec::<u8>::zeroed(&device.new_stream().unwrap(), 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("version 2"), "{refused}");
    }
}

/// A manager of device memory whose `initialize` fails at first.
#[derive(Debug)]
struct SlowStart {
    resource: CudaResource,
    starts: Arc<Mutex<u32>>,
}

// SAFETY: each block is a `CudaResource`'s.
unsafe impl DeviceMemoryManager for SlowStart {
    fn initialize(&self) -> Result<()> {
        let mut starts = self.starts.lock().unwrap();
        *starts += 1;
        match *starts {
            1 => Err(aquifer::Error::new(ErrorKind::Driver, "not yet")),
            _ => Ok(()),
        }
    }

    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        let block = self.resource.allocate(stream, layout)?;
        let resource = self.resource.clone();
        Ok(MemoryPointer::new(stream, block.address(), block.bytes(), move |stream| {
            support::free(&resource, stream, block);
        }))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.resource.device().memory_info()
    }
}

#[test]
fn a_manager_that_cannot_start_is_asked_again() {
    if !support::in_own_process(module_path!(), "a_manager_that_cannot_start_is_asked_again") {
        return;
    }
    let starts = Arc::<Mutex<u32>>::default();
    let its = Arc::clone(&starts);
    set_memory_manager(move |device: &Device| {
        HostOnly::new(
            device,
            SlowStart { resource: CudaResource::new(device), starts: its.clone() },
        )
    })
    .unwrap();
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    assert_eq!(DeviceVec::<u8>::zeroed(&stream, 1).unwrap_err().kind(), ErrorKind::Driver);
    drop(DeviceVec::<u8>::zeroed(&stream, 1).unwrap());
    assert_eq!((*starts.lock().unwrap(), simulator.live_blocks()), (2, 0));
}

#[test]
fn page_locked_memory_waits_for_its_deallocation_and_is_freed_where_it_runs_out() {
    let name = "page_locked_memory_waits_for_its_deallocation_and_is_freed_where_it_runs_out";
    if !support::in_own_process(module_path!(), name) {
        return;
    }
    let (device, simulator) = support::simulated(SimConfig::default().capacity(1 << 20));
    let manager = HostOnly::new(
        &device,
        SlowStart { resource: CudaResource::new(&device), starts: Arc::default() },
    )
    .unwrap();
    let host = || manager.memhostalloc(100, HostAllocFlags::new().portable(true)).unwrap();
    for _ in 0..10 {
        drop(host());
    }
    assert_eq!((manager.pending().len(), simulator.host_blocks()), (10, 10));
    drop(host());
    assert_eq!((manager.pending().len(), simulator.host_blocks()), (0, 0), "one too many");
    // A fifth of the device's memory is the other limit.
    drop(manager.memhostalloc((1 << 20) / 4, HostAllocFlags::new()).unwrap());
    assert_eq!(manager.pending().len(), 0);
    let scope = manager.defer_cleanup();
    let elsewhere = std::thread::scope(|threads| {
        threads
            .spawn(|| {
                let inner = manager.defer_cleanup();
                for _ in 0..20 {
                    drop(host());
                }
                inner
            })
            .join()
            .unwrap()
    });
    drop(scope);
    assert_eq!(simulator.host_blocks(), 20, "the inner scope is open still");
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    let last = host();
    assert_eq!(simulator.host_blocks(), 1, "what waited made room");
    drop(last);
    drop(elsewhere);
    assert_eq!(manager.pending().len(), 1, "one is not too many");
    manager.reset().unwrap();
    assert_eq!(simulator.host_blocks(), 0);
}
