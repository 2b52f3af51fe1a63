//! External memory managers. The choice of one is the process's, so each test has a process of its own.

mod choice;
mod inside;
mod misuse;
mod pointers;

use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceBuffer, DeviceLayout, DeviceResource, DeviceScalar, DeviceVec,
    ErrorKind, MappedAlloc, PinnedAlloc, Result, Stream,
    device::MemoryInfo,
    nbep7::{
        DeferCleanup, HostAllocFlags, MemoryManager, MemoryPointer, PinnedMemory,
        set_memory_manager,
    },
    pinned::{PinnedPool, PinnedResource, Registered},
};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// What the managers of a test were asked, on all devices.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn count(&self, what: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.starts_with(what)).count()
    }
}

/// A manager with a stock of its own: it asks the driver when it is made, and never after.
#[derive(Debug)]
struct Stocked {
    asked: Asked,
    device_stock: Mutex<(u64, u64)>,
    host_stock: Mutex<(usize, usize)>,
    version: u32,
}

const STOCK: usize = 8 << 20;

impl Stocked {
    fn new(device: &Device, asked: &Asked) -> Result<Self> {
        asked.note("made");
        let stream = device.new_stream()?;
        let block = CudaResource::new(device).allocate(&stream, support::layout(STOCK))?;
        let pinned = PinnedResource::new(device)?;
        let layout = Layout::from_size_align(STOCK, 4096).unwrap();
        let host = allocator_api2::alloc::Allocator::allocate(&pinned, layout).unwrap();
        let host = host.cast::<u8>().as_ptr().expose_provenance();
        Ok(Self {
            asked: asked.clone(),
            device_stock: Mutex::new((block.address(), block.address() + STOCK as u64)),
            host_stock: Mutex::new((host, host + STOCK)),
            version: aquifer::nbep7::INTERFACE_VERSION,
        })
    }
}

// SAFETY: each piece of the stock is handed out once.
unsafe impl MemoryManager for Stocked {
    fn interface_version(&self) -> u32 {
        self.version
    }

    fn initialize(&self) -> Result<()> {
        self.asked.note("initialize");
        Ok(())
    }

    fn memalloc(&self, stream: &Stream, layout: DeviceLayout) -> Result<MemoryPointer> {
        let mut stock = self.device_stock.lock().unwrap();
        let address = stock.0.next_multiple_of(layout.alignment() as u64);
        stock.0 = address + layout.bytes() as u64;
        assert!(stock.0 <= stock.1, "the stock is for small tests");
        self.asked.note(format!("memalloc of {}", layout.bytes()));
        let asked = self.asked.clone();
        let free = move |_: &Stream| asked.note("free");
        Ok(MemoryPointer::new(stream, address, layout.bytes(), free))
    }

    fn memhostalloc(&self, bytes: usize, flags: HostAllocFlags) -> Result<PinnedMemory> {
        let mut stock = self.host_stock.lock().unwrap();
        let address = stock.0;
        stock.0 += bytes;
        assert!(stock.0 <= stock.1, "the stock is for small tests");
        self.asked.note(format!("memhostalloc, mapped {}", flags.is_mapped()));
        let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
        let asked = self.asked.clone();
        let memory = NonNull::slice_from_raw_parts(pointer, bytes);
        Ok(PinnedMemory::new(memory, move || asked.note("host free")))
    }

    unsafe fn mempin(&self, memory: NonNull<[u8]>, mapped: bool) -> Result<PinnedMemory> {
        self.asked.note(format!("mempin of {}, mapped {mapped}", memory.len()));
        let asked = self.asked.clone();
        Ok(PinnedMemory::new(memory, move || asked.note("unpin")))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo::new(1, STOCK))
    }

    fn reset(&self) -> Result<()> {
        self.asked.note("reset");
        Ok(())
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        self.asked.note("defer");
        let asked = self.asked.clone();
        DeferCleanup::new(move || asked.note("deferred no more"))
    }
}

/// The calls of the driver on memory.
const MEMORY_CALLS: [&str; 9] = [
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemAllocFromPoolAsync",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostUnregister",
];

fn memory_calls(simulator: &Simulator) -> Vec<u64> {
    for call in MEMORY_CALLS {
        assert!(Simulator::CALLS.contains(&call), "{call} is a call by another name");
    }
    MEMORY_CALLS.iter().map(|call| simulator.call_count(call)).collect()
}

/// Memory of each kind that names no resource.
fn use_all(device: &Device) -> Result<()> {
    let stream = device.new_stream()?;
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1000)?;
    vec.push(7)?;
    assert_eq!(vec.get(1000)?, 7);
    drop(DeviceBuffer::zeroed(&stream, 77)?);
    drop(DeviceScalar::new(&stream, 5_u8)?);
    let pinned = PinnedResource::new(device)?;
    let mut own: AllocVec<u8, _> = AllocVec::new_in(PinnedPool::new(pinned.clone())?);
    own.extend_from_slice(b"in a slab");
    let mut block: AllocVec<u8, _> = AllocVec::new_in(pinned.clone());
    block.extend_from_slice(b"a block");
    let registered = Registered::new(device, vec![1_u8; 100]).map_err(|error| error.error)?;
    assert_eq!(registered.into_inner().map_err(|error| error.error)?, [1; 100]);
    drop(Registered::new(device, vec![2_u8; 100]).map_err(|error| error.error)?);
    drop((own, block));
    Registered::<Vec<u8>>::trim(device)?;
    pinned.trim()?;
    drop(vec);
    stream.synchronize()
}

#[test]
fn nothing_goes_round_a_manager() {
    if !support::in_own_process(module_path!(), "nothing_goes_round_a_manager") {
        return;
    }
    let asked = Asked::default();
    let its = asked.clone();
    set_memory_manager(move |device| Stocked::new(device, &its)).unwrap();
    let devices = [0, 1].map(|ordinal| support::simulated(SimConfig::default().ordinal(ordinal)));
    // A simulated device's manager goes with its last user.
    let managers =
        devices.each_ref().map(|(device, _)| aquifer::nbep7::memory_manager(device).unwrap());
    assert!(managers.iter().all(Option::is_some));
    assert_eq!((asked.count("made"), asked.count("initialize")), (2, 2));
    for (device, simulator) in &devices {
        let before = memory_calls(simulator);
        use_all(device).unwrap();
        assert_eq!(memory_calls(simulator), before, "{MEMORY_CALLS:?}");
        simulator.check().unwrap();
    }
    assert_eq!(asked.count("made"), 2, "one for each device");
    // The vector grew: four blocks a device.
    assert_eq!((asked.count("memalloc"), asked.count("free")), (8, 8));
    assert_eq!(asked.count("memalloc of 77"), 2);
    // A slab and a block.
    assert_eq!((asked.count("memhostalloc"), asked.count("mempin of 100, mapped true")), (4, 4));
    assert_eq!(asked.count("unpin"), 4);
    let refused = aquifer::mr::default_device_pool(&devices[0].0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

#[test]
fn page_locked_collections_are_a_managers() {
    let variables = [("AQUIFER_BACKEND", "sim")];
    let name = "page_locked_collections_are_a_managers";
    if !support::in_own_process_with(module_path!(), name, &variables) {
        return;
    }
    let asked = Asked::default();
    let its = asked.clone();
    set_memory_manager(move |device| Stocked::new(device, &its)).unwrap();
    let device = Device::detect_or_simulate().unwrap();
    let manager = aquifer::nbep7::memory_manager(&device).unwrap().unwrap();
    let simulator = device.simulator().unwrap();
    let before = memory_calls(&simulator);
    let mut pinned: AllocVec<u32, PinnedAlloc> = AllocVec::new_in(PinnedAlloc);
    pinned.extend(0..1000);
    let mut mapped: AllocVec<u32, MappedAlloc> = AllocVec::new_in(MappedAlloc);
    mapped.extend(0..1000);
    let stream = device.new_stream().unwrap();
    let vec = stream.upload_new(pinned).unwrap().wait().unwrap().1;
    assert_eq!(vec.to_vec().unwrap()[..], mapped[..]);
    drop((vec, mapped));
    assert_eq!(memory_calls(&simulator), before);
    assert_eq!(asked.count("memhostalloc, mapped true"), 1, "one slab for both");
    aquifer::pinned::current_pinned_resource().unwrap().trim().unwrap();
    assert_eq!(asked.count("host free"), 1);
    assert_eq!(manager.memory_info().unwrap(), MemoryInfo::new(1, STOCK));
    let before = memory_calls(&simulator);
    drop(manager.defer_cleanup());
    manager.reset().unwrap();
    assert_eq!(["defer", "deferred no more", "reset"].map(|what| asked.count(what)), [2, 1, 1]);
    assert_eq!(memory_calls(&simulator), before);
}
