//! The driver library and those of its functions that the crate calls.
//!
//! A code that no header knows yet is an error without a name.

use crate::error::DriverError;
use crate::sync::OnceLock;
use crate::{DriverResult, HandleSpec, IpcBytes, PoolSpec, call_not_forked, symbols};
use std::ffi::{c_char, c_void};

/// A context, stream, event, pool, module or function of the driver. It is a pointer that the driver
/// alone dereferences.
pub(super) type Handle = u64;

// `Handle` stands for pointers and `CUdeviceptr` in the C interface. There is no driver for 32-bit
// programs any more.
const _: () = assert!(size_of::<Handle>() == size_of::<*mut c_void>());

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const POSIX_FILE_DESCRIPTOR: u32 = 1;

/// `CU_MEM_HANDLE_TYPE_FABRIC`.
const FABRIC: u32 = 8;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: u32 = 1;

/// `CUmemPoolProps`. It has 88 bytes in every version, since later fields took reserved bytes.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PoolProps {
    allocation_type: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    reserved: [u64; 9],
}

const _: () = assert!(size_of::<PoolProps>() == 88);

impl PoolProps {
    /// Memory of one device, or managed memory whose preferred location it is.
    pub(super) fn on_device(ordinal: i32, spec: PoolSpec) -> Self {
        const PINNED: u32 = 1;
        const MANAGED: u32 = 2;
        Self {
            allocation_type: if spec.managed { MANAGED } else { PINNED },
            handle_types: if spec.shareable { POSIX_FILE_DESCRIPTOR } else { 0 }
                | if spec.fabric { FABRIC } else { 0 },
            location_type: DEVICE,
            location_id: ordinal,
            reserved: [0; 9],
        }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct AllocationProp {
    allocation_type: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    win32_metadata: u64,
    flags: u64,
}

const _: () = assert!(size_of::<AllocationProp>() == 32);

impl AllocationProp {
    /// Memory of one device.
    pub(super) fn on_device(ordinal: i32, spec: HandleSpec) -> Self {
        const PINNED: u32 = 1;
        /// `allocFlags.gpuDirectRDMACapable`, the second byte.
        const RDMA: u64 = 1 << 8;
        Self {
            allocation_type: PINNED,
            handle_types: if spec.shareable { POSIX_FILE_DESCRIPTOR } else { 0 },
            location_type: DEVICE,
            location_id: ordinal,
            win32_metadata: 0,
            flags: if spec.rdma { RDMA } else { 0 },
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PoolAccess {
    location_type: u32,
    location_id: i32,
    flags: u32,
}

const _: () = assert!(size_of::<PoolAccess>() == 12);

impl PoolAccess {
    /// Reads and writes by one device.
    pub(super) fn by_device(ordinal: i32) -> Self {
        const READ_WRITE: u32 = 3;
        Self { location_type: DEVICE, location_id: ordinal, flags: READ_WRITE }
    }
}

/// `CUipcMemHandle`, which goes by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IpcMemHandle(pub(super) IpcBytes);

/// `CUstreamCallback`. The second argument is a `CUresult`.
pub(super) type StreamCallback = unsafe extern "C" fn(Handle, u32, *mut c_void);

/// The result of a driver function that writes it through a pointer.
#[inline]
pub(super) fn out_param<T: Default>(
    call: impl FnOnce(*mut T) -> DriverResult<()>,
) -> DriverResult<T> {
    let mut value = T::default();
    call(&raw mut value)?;
    Ok(value)
}

symbols! {
    /// The driver library.
    pub(super) struct Library: DriverError;

    init = cuInit(flags: u32);
    driver_get_version = cuDriverGetVersion(version: *mut i32);
    device_get = cuDeviceGet(device: *mut i32, ordinal: i32);
    device_get_count = cuDeviceGetCount(count: *mut i32);
    device_get_name = cuDeviceGetName(name: *mut c_char, length: i32, device: i32);
    device_get_attribute = cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32);
    device_get_uuid = cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32);

    ctx_get_current = cuCtxGetCurrent(context: *mut Handle);
    ctx_set_current = cuCtxSetCurrent(context: Handle);
    ctx_push_current = cuCtxPushCurrent_v2(context: Handle);
    ctx_pop_current = cuCtxPopCurrent_v2(context: *mut Handle);
    ctx_synchronize = cuCtxSynchronize();
    ctx_record_event = cuCtxRecordEvent(context: Handle, event: Handle);

    device_primary_ctx_get_state =
        cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    device_can_access_peer = cuDeviceCanAccessPeer(answer: *mut i32, device: i32, peer: i32);
    ctx_enable_peer_access = cuCtxEnablePeerAccess(peer: Handle, flags: u32);

    mem_get_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    mem_alloc = cuMemAlloc_v2(address: *mut u64, bytes: usize);
    mem_alloc_managed = cuMemAllocManaged(address: *mut u64, bytes: usize, flags: u32);
    mem_free = cuMemFree_v2(address: u64);
    // Both exist in every driver; the newer `_v2` of CUDA 12.2 and later do no more with devices.
    mem_advise = cuMemAdvise(address: u64, bytes: usize, advice: u32, device: i32);
    mem_prefetch = cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: Handle);
    mem_pool_create = cuMemPoolCreate(pool: *mut Handle, props: *const PoolProps);
    mem_pool_set_attribute =
        cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *mut c_void);
    mem_pool_get_attribute =
        cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: *mut c_void);
    mem_pool_set_access =
        cuMemPoolSetAccess(pool: Handle, accesses: *const PoolAccess, count: usize);
    mem_pool_export = cuMemPoolExportToShareableHandle(
        handle: *mut c_void, pool: Handle, kind: u32, flags: u64);
    device_get_default_pool = cuDeviceGetDefaultMemPool(pool: *mut Handle, device: i32);
    mem_pool_trim_to = cuMemPoolTrimTo(pool: Handle, keep: usize);
    mem_pool_destroy = cuMemPoolDestroy(pool: Handle);
    mem_alloc_from_pool_async =
        cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: Handle, stream: Handle);
    mem_free_async = cuMemFreeAsync(address: u64, stream: Handle);

    mem_get_granularity = cuMemGetAllocationGranularity(
        bytes: *mut usize, prop: *const AllocationProp, option: u32);
    mem_address_reserve = cuMemAddressReserve(
        address: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64);
    mem_address_free = cuMemAddressFree(address: u64, bytes: usize);
    mem_create = cuMemCreate(
        handle: *mut u64, bytes: usize, prop: *const AllocationProp, flags: u64);
    mem_release = cuMemRelease(handle: u64);
    mem_retain = cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void);
    mem_export = cuMemExportToShareableHandle(
        shareable: *mut c_void, handle: u64, kind: u32, flags: u64);
    mem_import = cuMemImportFromShareableHandle(
        handle: *mut u64, shareable: *mut c_void, kind: u32);
    mem_map = cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    mem_set_access = cuMemSetAccess(
        address: u64, bytes: usize, accesses: *const PoolAccess, count: usize);
    mem_unmap = cuMemUnmap(address: u64, bytes: usize);

    mem_get_address_range =
        cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    ipc_get_mem_handle = cuIpcGetMemHandle(handle: *mut IpcMemHandle, address: u64);
    ipc_open_mem_handle =
        cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcMemHandle, flags: u32);
    ipc_close_mem_handle = cuIpcCloseMemHandle(address: u64);
    mem_pool_import = cuMemPoolImportFromShareableHandle(
        pool: *mut Handle, handle: *mut c_void, kind: u32, flags: u64);
    mem_pool_export_pointer = cuMemPoolExportPointer(exported: *mut IpcBytes, address: u64);
    mem_pool_import_pointer =
        cuMemPoolImportPointer(address: *mut u64, pool: Handle, exported: *mut IpcBytes);

    mem_host_alloc = cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32);
    mem_free_host = cuMemFreeHost(pointer: *mut c_void);
    mem_host_register = cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32);
    mem_host_unregister = cuMemHostUnregister(pointer: *mut c_void);
    mem_host_get_device_pointer =
        cuMemHostGetDevicePointer_v2(address: *mut u64, pointer: *mut c_void, flags: u32);

    pointer_get_attributes = cuPointerGetAttributes(
        count: u32,
        attributes: *const u32,
        values: *const *mut c_void,
        pointer: u64);

    stream_synchronize = cuStreamSynchronize(stream: Handle);
    stream_query = cuStreamQuery(stream: Handle);
    stream_wait_event = cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
    stream_get_id = cuStreamGetId(stream: Handle, number: *mut u64);
    stream_is_capturing = cuStreamIsCapturing(stream: Handle, status: *mut u32);
    stream_add_callback = cuStreamAddCallback(
        stream: Handle, function: StreamCallback, data: *mut c_void, flags: u32);
    stream_begin_capture = cuStreamBeginCapture_v2(stream: Handle, mode: u32);
    stream_end_capture = cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut u32);

    graph_instantiate =
        cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64);
    graph_destroy = cuGraphDestroy(graph: Handle);
    graph_launch = cuGraphLaunch(executable: Handle, stream: Handle);
    graph_exec_destroy = cuGraphExecDestroy(executable: Handle);

    event_create = cuEventCreate(event: *mut Handle, flags: u32);
    event_destroy = cuEventDestroy_v2(event: Handle);
    event_record = cuEventRecord(event: Handle, stream: Handle);
    event_query = cuEventQuery(event: Handle);
    event_synchronize = cuEventSynchronize(event: Handle);

    memcpy_to_device =
        cuMemcpyHtoDAsync_v2(target: u64, source: *const c_void, bytes: usize, stream: Handle);
    memcpy_to_host =
        cuMemcpyDtoHAsync_v2(target: *mut c_void, source: u64, bytes: usize, stream: Handle);
    memcpy_on_device =
        cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: Handle);
    memcpy_peer = cuMemcpyPeerAsync(
        target: u64, to: Handle, source: u64, from: Handle, bytes: usize, stream: Handle);
    memset_8 = cuMemsetD8Async(target: u64, value: u8, count: usize, stream: Handle);
    memset_16 = cuMemsetD16Async(target: u64, value: u16, count: usize, stream: Handle);
    memset_32 = cuMemsetD32Async(target: u64, value: u32, count: usize, stream: Handle);
    memset_rows_8 = cuMemsetD2D8Async(
        target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle);
    memset_rows_16 = cuMemsetD2D16Async(
        target: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle);
    memset_rows_32 = cuMemsetD2D32Async(
        target: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);

    module_load = cuModuleLoadDataEx(
        module: *mut Handle, image: *const c_void, options: u32, names: *mut u32,
        values: *mut *mut c_void);
    module_unload = cuModuleUnload(module: Handle);
    module_get_function =
        cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    launch_kernel = cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: Handle, parameters: *mut *mut c_void,
        extra: *mut *mut c_void);
}

impl Library {
    /// The driver library, which is opened once. `None` if none is installed.
    pub(super) fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(names())).as_ref()
    }

    #[inline]
    fn may_call<F>(&self, name: &'static str, function: Option<F>) -> DriverResult<F> {
        call_not_forked(name)?;
        function.ok_or_else(|| DriverError::new(name, DriverError::MISSING_SYMBOL))
    }

    #[expect(clippy::unused_self, reason = "other libraries are asked for a text")]
    fn failed(&self, name: &'static str, code: u32) -> DriverError {
        DriverError::new(name, code)
    }

    /// Whether the library has a function of this name.
    pub(super) fn has(&self, symbol: &str) -> bool {
        // SAFETY: the function is looked up and not called.
        unsafe { self.handle.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_ok()
    }
}

/// The names of a library, for a program that is linked against the driver.
#[allow(dead_code, reason = "shadowed by cudarc's own function where cudarc loads the driver")]
fn get_lib_name_candidates(library: &str) -> Vec<String> {
    if cfg!(windows) {
        vec![format!("{library}.dll")]
    } else {
        vec![format!("lib{library}.so.1"), format!("lib{library}.so")]
    }
}

/// The names to try, in cudarc's order. Both crates have to open the same library, since they share contexts and
/// streams.
pub(super) fn names() -> Vec<String> {
    ["cuda", "nvcuda"].into_iter().flat_map(candidates).collect()
}

/// The names to try for a library of CUDA.
pub fn candidates(library: &str) -> Vec<String> {
    // cudarc has `get_lib_name_candidates` only where it loads the library by itself. This glob import
    // shadows the function above there, and has no such name otherwise.
    #[allow(unused_imports, reason = "unused where cudarc is linked against the driver")]
    use cudarc::*;
    get_lib_name_candidates(library)
}
