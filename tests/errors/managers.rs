//! Memory managers, and streams of other libraries. The choice of a manager is the process's, so most rows are a child's.

use crate::processes::{print, print_failed, rows_of_child};
use crate::support::simulated;
use crate::table::Table;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceVec, Error, ErrorKind, Result, Stream,
    device::MemoryInfo,
    mr::default_device_pool,
    nbep7::{
        DeferCleanup, HostAllocFlags, HostOnly, ManagerOptions, MemoryManager, MemoryPointer,
        PinnedMemory, ResourceMemoryManager, register_memory_manager, set_memory_manager,
    },
    pinned::{PinnedResource, Registered, last_error},
};
use std::ptr::NonNull;

pub(crate) fn rows(table: &mut Table) {
    options(table);
    hosts(table);
    foreign(table);
    let variable = "AQUIFER_MEMORY_MANAGER";
    rows_of_child(table, "manager unknown", &[(variable, "rmm:blocks=2")], "by variable: ");
    rows_of_child(table, "manager options", &[(variable, "pool:blocks=2")], "by variable: ");
    rows_of_child(table, "manager unknown", &[(variable, "default:blocks=2")], "the default: ");
    rows_of_child(table, "manager bytes", &[], "by variable: ");
    for name in [
        "manager late",
        "manager unmade",
        "manager initialize",
        "manager panics",
        "manager small",
        "manager itself",
        "manager old",
    ] {
        rows_of_child(table, name, &[], "");
    }
}

fn options(table: &mut Table) {
    let parse = |text: &str| text.parse::<ManagerOptions>();
    table.failed("a manager's option without a value", parse("mib=2,blocks"));
    table.failed("a manager's option twice", parse("mib=2,mib=3"));
    let options = parse("mib=many").unwrap();
    table.failed("a manager's option of another type", options.parse::<usize>("mib"));
    table.failed("a manager's option that is none", options.allow(&["blocks", "policy"]));
    table.failed("an option of a manager that has none", options.allow(&[]));
    let make = |device: &Device, _: &ManagerOptions| of_pool(device);
    table.failed("a manager's name with a colon", register_memory_manager("a:b", make));
    let (device, _) = simulated(SimConfig::default());
    let pointer = MemoryPointer::new(&device.new_stream().unwrap(), 4096, 100, |_| {});
    table.failed("a view past the end", pointer.slice(50..101));
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    table.failed("a view that ends before it begins", pointer.slice(30..20));
}

fn of_pool(device: &Device) -> Result<HostOnly<ResourceMemoryManager>> {
    HostOnly::new(device, ResourceMemoryManager::new(CudaResource::new(device)))
}

fn hosts(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let manager = of_pool(&device).unwrap();
    simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
    table.failed("memhostalloc", manager.memhostalloc(100, HostAllocFlags::new()));
    simulator.fail_call("cuMemHostRegister", 1, 2).unwrap();
    let mut bytes = [0_u8; 100];
    let memory = NonNull::from(&mut bytes[..]);
    // SAFETY: it is refused.
    table.failed("mempin", unsafe { manager.mempin(memory, true) });
}

/// A stream of another library, which is never destroyed.
fn theirs(device: &Device, simulator: &Simulator) -> (Stream, u64) {
    let handle = simulator.create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    (unsafe { Stream::from_handle(device, handle) }.unwrap(), handle)
}

fn foreign(table: &mut Table) {
    let (device, simulator) = simulated(SimConfig::default());
    let (stream, handle) = theirs(&device, &simulator);
    // SAFETY: of handles that are refused; of one stream that is never destroyed.
    let take = |handle| unsafe { Stream::from_handle(&device, handle) };
    table.failed("the handle of the per-thread stream", take(2));
    table.failed("a handle that no stream has", take(0xdead));
    simulator.fail_call("cuStreamIsCapturing", 1, 999).unwrap();
    table.failed("a handle in what may be a capture", take(handle));
    simulator.fail_call("cuStreamGetId", 1, 999).unwrap();
    table.failed("a handle without a number", take(handle));
    simulator.fail_call("cuStreamIsCapturing", 1, 999).unwrap();
    table.failed("a wait for a device with what may be a capture", device.synchronize());
    simulator.start_capture(&stream).unwrap();
    table.failed("a stream to be detached in a capture of its owner", stream.detach());
    assert!(simulator.stop_capture(&stream));
    simulator.fail_call("cuEventRecord", 1, 999).unwrap();
    table.failed("a stream to be detached, no record", stream.detach());
    simulator.fail_call("cuStreamCreate", 1, 2).unwrap();
    table.failed("a stream to be detached, no other stream", stream.detach());
    simulator.fail_call("cuStreamWaitEvent", 1, 999).unwrap();
    table.failed("a stream to be detached, no wait", stream.detach());
    table.failed(
        "a stream to be destroyed that is not there",
        simulator.destroy_foreign_stream(0xdead),
    );
    table.failed("the handle of a stream that lives", simulator.reuse_foreign_handle(handle));
    let (lost, simulator) = simulated(SimConfig::default());
    let (stream, handle) = theirs(&lost, &simulator);
    simulator.lose_context();
    table.failed("a handle again on a lost device", simulator.reuse_foreign_handle(handle));
    table.failed("a foreign stream on a lost device", simulator.create_foreign_stream());
    table.failed("a stream to be detached on a lost device", stream.detach());
}

/// How a manager goes wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Panics,
    GivesLittle,
    AsksItself,
    IsOld,
    IsNotReady,
}

#[derive(Debug)]
struct Bad(Wrong);

// SAFETY: what it gives is refused.
unsafe impl MemoryManager for Bad {
    fn interface_version(&self) -> u32 {
        if matches!(self.0, Wrong::IsOld) { 0 } else { aquifer::nbep7::INTERFACE_VERSION }
    }

    fn initialize(&self) -> Result<()> {
        if matches!(self.0, Wrong::IsNotReady) {
            return Err(Error::new(ErrorKind::Io, "its file is not there").with_advice("make it"));
        }
        Ok(())
    }

    fn memalloc(&self, stream: &Stream, _: DeviceLayout) -> Result<MemoryPointer> {
        match self.0 {
            Wrong::Panics => panic!("it has no such memory"),
            Wrong::AsksItself => drop(DeviceVec::<u8>::zeroed(stream, 1)?),
            Wrong::GivesLittle | Wrong::IsOld | Wrong::IsNotReady => {}
        }
        Ok(MemoryPointer::new(stream, 4096, 1, |_| {}))
    }

    fn memhostalloc(&self, _: usize, _: HostAllocFlags) -> Result<PinnedMemory> {
        Ok(PinnedMemory::new(NonNull::slice_from_raw_parts(NonNull::dangling(), 1), || {}))
    }

    unsafe fn mempin(&self, _: NonNull<[u8]>, _: bool) -> Result<PinnedMemory> {
        self.memhostalloc(1, HostAllocFlags::new())
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo::new(0, 0))
    }

    fn reset(&self) -> Result<()> {
        Ok(())
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        DeferCleanup::none()
    }
}

/// The rows of a child.
pub(crate) fn child(name: &str) {
    let (device, _) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let zeroed = || DeviceVec::<u8>::zeroed(&stream, 100);
    let (title, wrong) = match name {
        "manager unknown" => return print_failed("a manager that is not registered", zeroed()),
        "manager bytes" => {
            use std::os::unix::ffi::OsStrExt;
            let value = std::ffi::OsStr::from_bytes(b"pool\xff");
            // SAFETY: no other thread of this process uses the environment.
            unsafe { std::env::set_var("AQUIFER_MEMORY_MANAGER", value) };
            return print_failed("a manager whose name is no UTF-8", zeroed());
        }
        "manager options" => {
            register_memory_manager("pool", |device, options| {
                options.allow(&["mib"])?;
                of_pool(device)
            })
            .unwrap();
            return print_failed("an option that a manager does not have", zeroed());
        }
        "manager late" => {
            drop(zeroed().unwrap());
            return print_failed("a manager that is set late", set_memory_manager(of_pool));
        }
        "manager unmade" => {
            set_memory_manager(|_| -> Result<Bad> { panic!("there is no device for it") }).unwrap();
            return print_failed("a manager whose making panics", zeroed());
        }
        "manager initialize" => ("a manager that cannot be initialized", Wrong::IsNotReady),
        "manager panics" => ("a manager that panics", Wrong::Panics),
        "manager small" => ("a manager that gives little", Wrong::GivesLittle),
        "manager itself" => ("a manager that asks itself", Wrong::AsksItself),
        _ => ("a manager of another version", Wrong::IsOld),
    };
    set_memory_manager(move |_: &Device| Ok(Bad(wrong))).unwrap();
    print_failed(title, zeroed());
    if let Wrong::GivesLittle = wrong {
        let mut pinned = AllocVec::<u8, _>::new_in(PinnedResource::new(&device).unwrap());
        assert!(pinned.try_reserve(100).is_err());
        print("a manager that gives little, page-locked", last_error().unwrap());
        print_failed("a manager that pins little", Registered::new(&device, vec![0_u8; 100]));
        print_failed(
            "a manager asked for constants",
            Registered::read_only(&device, &[0_u8; 9][..]),
        );
        print_failed("the default pool beside a manager", default_device_pool(&device));
    }
}
