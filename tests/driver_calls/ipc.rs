//! Sharing with other processes: what the driver is asked, by number.

use super::child::{Installed, alone, value};
use aquifer::ipc::IpcExport;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, ErrorKind, PoolResource,
    ipc::{IpcHandle, IpcKind, IpcPool},
    mr::{AsyncResource, ManagedResource, VirtualResource},
};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The handle as if another process had made it.
fn foreign(handle: &IpcHandle) -> IpcHandle {
    let mut bytes = handle.to_bytes();
    bytes[8] ^= 1; // the process, for messages
    bytes[32] ^= 1; // the process, for the stand-in
    IpcHandle::from_bytes(&bytes).unwrap()
}

#[test]
fn plain_memory_is_exported_by_its_allocation_and_opened_by_value() {
    let name = "ipc::plain_memory_is_exported_by_its_allocation_and_opened_by_value";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        assert_eq!(device.uuid().unwrap(), [0xa0; 16]);
        assert_eq!(Device::open(1).unwrap().uuid().unwrap(), [0xa1; 16]);
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
        let _first = DeviceVec::<u32>::zeroed_in(&stream, 100, pool.clone()).unwrap();
        let vec = DeviceVec::<u32>::zeroed_in(&stream, 100, pool).unwrap();
        driver.take();
        let handle = vec.ipc_handle().unwrap();
        let calls = [
            "cuPointerGetAttributes",
            "cuStreamSynchronize",
            "cuMemGetAddressRange_v2",
            "cuIpcGetMemHandle",
            "cuDeviceGetUuid_v2",
        ];
        assert_eq!(driver.names(), calls);
        assert_eq!(handle.kind(), IpcKind::Plain);
        assert_ne!(handle.offset(), 0);

        // CUDA opens no memory in its own process.
        // SAFETY: it is refused.
        let own = unsafe { handle.open::<u32>(&stream) }.unwrap_err();
        assert_eq!(own.driver().unwrap().code(), 201);
        assert!(own.advice().unwrap().contains("in others alone"), "{own}");

        let other = foreign(&handle);
        driver.take();
        // SAFETY: the stand-in's memory lives until it is closed.
        let shared = unsafe { other.open::<u32>(&stream) }.unwrap();
        let calls = driver.take();
        // By value: the last of its 64 bytes arrives.
        assert!(calls.contains(&"# last=119".to_owned()), "{calls:?}");
        let open = calls.iter().find(|line| line.starts_with("cuIpcOpenMemHandle_v2")).unwrap();
        assert_eq!(value(open, "flags"), "1");
        // SAFETY: as above.
        let again = unsafe { other.open::<u8>(&stream) }.unwrap();
        assert_eq!(
            (other.openings(&device), driver.names()),
            (2, vec!["cuDeviceGetUuid_v2".into()])
        );
        assert_eq!(again.len(), 400);
        let reexported = shared.ipc_handle().unwrap_err();
        assert_eq!(reexported.kind(), ErrorKind::Unsupported, "{reexported}");
        drop(again);
        driver.take();
        drop(shared);
        assert_eq!(driver.names(), ["cuStreamSynchronize", "cuIpcCloseMemHandle"]);
        assert_eq!(other.openings(&device), 0);
    });
}

#[test]
fn what_does_not_fit_is_closed_again() {
    let name = "ipc::what_does_not_fit_is_closed_again";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, CudaResource::new(&device)).unwrap();
        let handle = foreign(&vec.ipc_handle().unwrap());
        let before = driver.alive();
        let mut wide = handle.to_bytes();
        wide[112] = 101;
        let wide = IpcHandle::from_bytes(&wide).unwrap();
        // SAFETY: it is refused.
        let refused = unsafe { wide.open::<u8>(&stream) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        driver.fail("cuMemGetAddressRange_v2", 1, 500);
        // SAFETY: it is refused.
        let refused = unsafe { handle.open::<u8>(&stream) }.unwrap_err();
        assert_eq!(refused.driver().unwrap().code(), 500);
        let names = driver.names();
        assert_eq!(names.iter().filter(|name| *name == "cuIpcCloseMemHandle").count(), 2);
        assert_eq!((driver.alive(), handle.openings(&device)), (before, 0));
    });
}

#[test]
fn a_pool_is_imported_by_its_descriptor_and_its_memory_by_the_pool() {
    let name = "ipc::a_pool_is_imported_by_its_descriptor_and_its_memory_by_the_pool";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let pool = AsyncResource::builder(&device).shareable(true).build().unwrap();
        let pool = Arc::new(pool);
        let vec = DeviceVec::<u32>::zeroed_in(&stream, 100, pool.clone()).unwrap();
        driver.take();
        let handle = vec.ipc_handle().unwrap();
        assert_eq!(handle.kind(), IpcKind::Pool);
        assert!(driver.names().contains(&"cuMemPoolExportPointer".to_owned()));
        let (here, there) = UnixStream::pair().unwrap();
        IpcPool::send(&pool, &here).unwrap();
        driver.take();
        let imported = IpcPool::receive(&device, &there).unwrap();
        let calls = driver.take();
        let import = calls.iter().find(|line| line.starts_with("cuMemPoolImportFrom")).unwrap();
        assert_eq!((value(import, "kind"), value(import, "flags")), ("1", "0"));
        assert!(value(import, "descriptor").parse::<i32>().unwrap() > 2);
        let before = driver.alive();
        // SAFETY: the stand-in's memory lives until it is closed.
        let shared = unsafe { imported.open::<u32>(&stream, &handle) }.unwrap();
        assert_eq!((shared.len(), driver.alive()), (100, before + 1));
        driver.take();
        drop((imported, shared));
        assert_eq!(driver.names(), ["cuStreamSynchronize", "cuMemFree_v2", "cuMemPoolDestroy"]);
        assert_eq!(driver.alive(), before - 1, "the block and the pool");
    });
}

/// Each descriptor is closed, and each handle that was retained or imported is released.
#[test]
fn mapped_memory_goes_by_a_descriptor_for_each_handle() {
    let name = "ipc::mapped_memory_goes_by_a_descriptor_for_each_handle";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let mut vec = DeviceVec::<u8>::zeroed_in(&stream, 3 << 20, pool).unwrap();
        vec.resize(9 << 20, 1).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, descriptors) = (driver.alive(), open());
        driver.take();
        vec.send_to(&here).unwrap();
        let calls = driver.take();
        let of = |calls: &[String], name: &str| -> Vec<String> {
            calls.iter().filter(|line| line.starts_with(name)).cloned().collect()
        };
        let exports = of(&calls, "cuMemExportToShareableHandle");
        assert!(exports.len() >= 2, "{calls:?}");
        for export in &exports {
            assert_eq!((value(export, "kind"), value(export, "flags")), ("1", "0"));
        }
        let retained = of(&calls, "cuMemRetainAllocationHandle").len();
        assert_eq!(of(&calls, "cuMemRelease").len(), retained);
        assert_eq!(driver.alive(), before);
        // SAFETY: the stand-in's memory lives until it is closed.
        let shared = unsafe { aquifer::ipc::receive::<u8>(&stream, &there) }.unwrap();
        let calls = driver.take();
        let imports = of(&calls, "cuMemImportFromShareableHandle");
        assert_eq!(imports.len(), exports.len());
        for import in &imports {
            assert_eq!(value(import, "kind"), "1");
            assert!(value(import, "descriptor").parse::<i32>().unwrap() > 2);
        }
        let maps = of(&calls, "cuMemMap");
        assert_eq!((maps.len(), of(&calls, "cuMemRelease").len()), (imports.len(), imports.len()));
        // The mappings and their addresses.
        let there = (before + maps.len() + 1, descriptors);
        assert_eq!((shared.len(), (driver.alive(), open())), (9 << 20, there));
        drop(shared);
        let names = driver.names();
        let unmaps = names.iter().filter(|name| *name == "cuMemUnmap").count();
        assert_eq!((unmaps, names.last().unwrap().as_str()), (maps.len(), "cuMemAddressFree"));
        assert_eq!(driver.alive(), before);
    });
}

#[test]
fn memory_of_other_kinds_is_refused_before_it_is_exported() {
    let name = "ipc::memory_of_other_kinds_is_refused_before_it_is_exported";
    alone(name, Installed::StandIn, &[], |driver| {
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let managed: Arc<dyn DeviceResource> = Arc::new(ManagedResource::new(&device).unwrap());
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, managed).unwrap();
        driver.take();
        let error = vec.ipc_handle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("managed memory"), "{error}");
        assert_eq!(driver.names(), ["cuPointerGetAttributes"]);
        let pool = Arc::new(AsyncResource::new(&device).unwrap());
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, pool).unwrap();
        driver.fail("cuMemPoolExportPointer", 1, 1);
        let error = vec.ipc_handle().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("shareable(true)"), "{error}");
    });
}

#[test]
fn a_driver_without_these_functions_says_which() {
    let name = "ipc::a_driver_without_these_functions_says_which";
    alone(name, Installed::StandIn, &[], |driver| {
        const MISSING: u32 = 1_000_001;
        let device = Device::open(0).unwrap();
        let stream = device.new_stream().unwrap();
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 100, CudaResource::new(&device)).unwrap();
        for call in ["cuIpcGetMemHandle", "cuDeviceGetUuid_v2"] {
            driver.fail(call, 1, MISSING);
            assert_eq!(vec.ipc_handle().unwrap_err().kind(), ErrorKind::MissingSymbol);
        }
    });
}
