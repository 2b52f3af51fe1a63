//! A libcuda that logs its calls and does at once, on the host, what a GPU would do later.
//!
//! `STAND_IN_LOG` names the file that gets one line for each call: its name, the context that was
//! current, and what matters of its arguments. `STAND_IN_DEVICES` is the number of devices, 2
//! without it. `STAND_IN_FAIL=name:nth:code` makes the nth call of a function fail, or each one from now on
//! where that is 0; the function `stand_in_fail` asks for the same from inside the process.
//!
//! The rules that a caller can break are checked: a call without a current context is error 201, an
//! unknown handle 400, a block that is freed twice 1.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod state;

use state::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::{copy, slice_from_raw_parts_mut};

/// Defines exported functions. `[context]` ones need a current context, `[context of stream]` ones do on default
/// streams alone: so the manual says of stream-ordered allocations and frees, and so an H100, driver 580, does.
macro_rules! exported {
    ($($name:ident $([$context:ident $(of $stream:ident)?])? ($($argument:ident: $kind:ty),* $(,)?)
        => $format:literal $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
                if let Some(code) = enter(stringify!($name), format!($format)) {
                    return code;
                }
                let streams: &[u64] = &[$($($stream)?)?];
                if stringify!($($context)?) == "context" && lacks_context(streams) {
                    return INVALID_CONTEXT;
                }
                // SAFETY: whoever calls a driver function keeps the contract of the driver's
                // manual: pointers are valid for the call, device addresses came from here.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*
    };
}

mod virtual_memory;

fn allocate(bytes: usize, alignment: usize) -> Result<u64, u32> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let layout = Layout::from_size_align(bytes, alignment).map_err(|_| INVALID_VALUE)?;
    // SAFETY: the layout is not empty.
    let address = unsafe { alloc_zeroed(layout) } as usize as u64;
    if address == 0 {
        return Err(OUT_OF_MEMORY);
    }
    state().blocks.insert(address, (bytes, alignment));
    Ok(address)
}

fn release(address: u64) -> u32 {
    let Some((bytes, alignment)) = state().blocks.remove(&address) else { return INVALID_VALUE };
    state().origins.remove(&address);
    let Ok(layout) = Layout::from_size_align(bytes, alignment) else { return INVALID_VALUE };
    // SAFETY: the table had the block with this very layout, and has it no more.
    unsafe { dealloc(address as usize as *mut u8, layout) };
    0
}

/// # Safety
///
/// `out` is writable.
unsafe fn give(out: *mut u64, made: Result<u64, u32>) -> u32 {
    match made {
        Ok(address) => {
            // SAFETY: writable by the contract.
            unsafe { *out = address };
            0
        }
        Err(code) => code,
    }
}

/// `CUipcMemHandle`, by value, and `CUmemPoolPtrExportData`: whose, and how many bytes. The last byte is a mark.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcMemHandle([u8; 64]);

impl IpcMemHandle {
    const MARK: u64 = 0x7700_0000_0000_0000;

    fn new(whose: u64, bytes: usize) -> Self {
        let mut handle = [0; 64];
        for (at, word) in [(0, whose), (8, bytes as u64), (56, Self::MARK)] {
            handle[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        Self(handle)
    }

    fn words(&self) -> [u64; 3] {
        [0, 8, 56].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(word)
        })
    }
}

fn retire(handle: u64) -> u32 {
    if state().handles.remove(&handle) { 0 } else { INVALID_HANDLE }
}

fn known(handle: u64) -> bool {
    handle <= 2 || state().handles.contains(&handle)
}

/// Whether no context is current, and the call has no stream that names one.
fn lacks_context(streams: &[u64]) -> bool {
    current() == 0 && streams.iter().all(|stream| *stream <= 2)
}

fn on(stream: u64) -> u32 {
    if known(stream) { 0 } else { INVALID_HANDLE }
}

/// # Safety
///
/// The range is writable.
unsafe fn rows<T: Copy>(target: u64, pitch: usize, value: T, width: usize, height: usize) {
    for row in 0..height {
        let start = (target as usize + row * pitch) as *mut T;
        for column in 0..width {
            // SAFETY: inside the range of the contract.
            unsafe { start.add(column).write_unaligned(value) };
        }
    }
}

/// Makes the nth call of a function from now on fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_fail(name: *const c_char, nth: u32, code: u32) {
    // SAFETY: a string, by the contract of this function.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    state().fail(&name, nth, code);
}

/// Makes the next call of a function take so long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stand_in_delay(name: *const c_char, milliseconds: u64) {
    // SAFETY: a string, by the contract of this function.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    state().delay(&name, milliseconds);
}

/// Sets what `cuStreamIsCapturing` answers for streams on which no capture began.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_capture(status: u32) {
    state().capture = status;
}

/// How many blocks, streams, events, graphs, pools, modules, reservations, handles and mappings are alive.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_alive() -> usize {
    let state = state();
    let mapped = state.reservations.len() + state.mappings.len();
    state.blocks.len() + state.handles.len() + mapped
}

exported! {
    cuInit(flags: u32) => "flags={flags}" {
        if devices() == 0 {
            return NO_DEVICE;
        }
        state().initialised = true;
        0
    }
    cuDriverGetVersion(version: *mut i32) => "" { *version = 13000; 0 }
    cuGetErrorString(code: u32, text: *mut *const c_char) => "code={code}" {
        *text = c"an error of the stand-in".as_ptr();
        0
    }
    cuGetErrorName(code: u32, text: *mut *const c_char) => "code={code}" {
        *text = c"STAND_IN_ERROR".as_ptr();
        0
    }
    cuDeviceGetCount(count: *mut i32) => "" {
        if !state().initialised {
            return NOT_INITIALIZED;
        }
        *count = devices();
        0
    }
    cuDeviceGet(device: *mut i32, ordinal: i32) => "ordinal={ordinal}" {
        if ordinal < 0 || ordinal >= devices() {
            return INVALID_DEVICE;
        }
        *device = ordinal;
        0
    }
    cuDeviceGetName(name: *mut c_char, length: i32, device: i32) => "device={device}" {
        let text = format!("stand-in {device}\0");
        for (index, byte) in text.bytes().take(length as usize).enumerate() {
            *name.add(index) = byte as c_char;
        }
        0
    }
    cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32)
        => "attribute={attribute} device={device}"
    {
        // Those that the crate reads; none other is true, so that a wrong number shows.
        *value = match attribute { 75 => 9, 19 | 83 | 89 | 99 | 102 | 103 | 110 | 115 => 1, _ => 0 };
        0
    }
    cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) => "device={device}" {
        *state().retained.entry(device).or_default() += 1;
        *context = 0x1000 * (device as u64 + 1);
        0
    }
    cuDevicePrimaryCtxRelease_v2(device: i32) => "device={device}" {
        match state().retained.get_mut(&device) {
            Some(count) if *count > 0 => { *count -= 1; 0 }
            _ => INVALID_CONTEXT,
        }
    }
    cuCtxDestroy_v2(context: u64) => "context={context:#x}" {
        if current() == context {
            pop();
        }
        0
    }
    cuCtxGetCurrent(context: *mut u64) => "" { *context = current(); 0 }
    cuCtxSetCurrent(context: u64) => "context={context:#x}" { set_current(context); 0 }
    cuCtxPushCurrent_v2(context: u64) => "context={context:#x}" {
        if context == 0 {
            return INVALID_VALUE;
        }
        push(context);
        0
    }
    cuCtxPopCurrent_v2(context: *mut u64) => "" {
        match pop() {
            Some(popped) => { *context = popped; 0 }
            None => INVALID_CONTEXT,
        }
    }
    cuCtxSynchronize[context]() => "" { 0 }
    cuCtxRecordEvent(context: u64, event: u64) => "context={context:#x} event={event:#x}" {
        if known(event) { 0 } else { INVALID_HANDLE }
    }

    cuMemGetInfo_v2[context](free: *mut usize, total: *mut usize) => "" {
        *free = 1 << 30;
        *total = 2 << 30;
        0
    }
    cuMemAlloc_v2[context](address: *mut u64, bytes: usize) => "bytes={bytes}" {
        give(address, allocate(bytes, 256))
    }
    cuMemAllocManaged[context](address: *mut u64, bytes: usize, flags: u32)
        => "bytes={bytes} flags={flags}"
    {
        let code = give(address, allocate(bytes, 256));
        state().origins.insert(*address, Origin::Managed);
        code
    }
    cuMemFree_v2[context](address: u64) => "address={address:#x}" { release(address) }
    cuMemAllocAsync[context](address: *mut u64, bytes: usize, stream: u64)
        => "bytes={bytes} stream={stream:#x}" { give(address, allocate(bytes, 256)) }
    cuMemFreeAsync[context of stream](address: u64, stream: u64) => "address={address:#x} stream={stream:#x}" {
        if known(stream) { release(address) } else { INVALID_HANDLE }
    }
    cuMemAdvise[context](address: u64, bytes: usize, advice: u32, device: i32)
        => "address={address:#x} bytes={bytes} advice={advice} device={device}" { 0 }
    cuMemPrefetchAsync[context](address: u64, bytes: usize, device: i32, stream: u64)
        => "address={address:#x} bytes={bytes} device={device} stream={stream:#x}"
    {
        // Memory of any kind of ours moves.
        if !state().blocks.contains_key(&address) { INVALID_VALUE } else { on(stream) }
    }
    cuMemPoolCreate[context](pool: *mut u64, props: *const u32) => "" {
        note(format!("handles={}", *props.add(1)));
        // allocType PINNED or MANAGED, handle types of POSIX descriptors and of a fabric, location DEVICE
        if !(1..=2).contains(&*props) || *props.add(1) & !9 != 0 || *props.add(2) != 1 {
            return INVALID_VALUE;
        }
        if (4..22).any(|word| *props.add(word) != 0) {
            return INVALID_VALUE;
        }
        *pool = state().handle();
        0
    }
    cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut u64)
        => "pool={pool:#x} attribute={attribute}"
    {
        note(format!("value={}", *value));
        // The switches of reuse and CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        if !(1..=4).contains(&attribute) {
            return INVALID_VALUE;
        }
        state().pool_settings.insert((pool, attribute), *value);
        on(pool)
    }
    cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut u64)
        => "pool={pool:#x} attribute={attribute}"
    {
        // What was set; else a number that tells the attribute.
        let set = state().pool_settings.get(&(pool, attribute)).copied();
        *value = set.unwrap_or(1000 + u64::from(attribute));
        on(pool)
    }
    cuMemPoolExportToShareableHandle(handle: *mut i32, pool: u64, kind: u32, flags: u64)
        => "pool={pool:#x} kind={kind} flags={flags}"
    {
        if kind != 1 || flags != 0 {
            return INVALID_VALUE;
        }
        *handle = std::fs::File::open("/dev/null").map_or(-1, |file| file.into_raw_fd());
        on(pool)
    }
    cuDeviceGetDefaultMemPool(pool: *mut u64, device: i32) => "device={device}" {
        *pool = 2;
        0
    }
    cuMemPoolTrimTo(pool: u64, keep: usize) => "pool={pool:#x} keep={keep}" { on(pool) }
    cuMemPoolDestroy(pool: u64) => "pool={pool:#x}" { retire(pool) }
    cuMemAllocFromPoolAsync[context of stream](address: *mut u64, bytes: usize, pool: u64, stream: u64)
        => "bytes={bytes} pool={pool:#x} stream={stream:#x}"
    {
        if !known(pool) || !known(stream) {
            return INVALID_HANDLE;
        }
        let code = give(address, allocate(bytes, 256));
        state().origins.insert(*address, Origin::Pool(pool));
        code
    }

    cuDeviceCanAccessPeer(answer: *mut i32, device: i32, peer: i32)
        => "device={device} peer={peer}" { *answer = (device != peer).into(); 0 }

    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) => "device={device}" {
        *uuid = [0xa0 + device as u8; 16];
        0
    }
    cuMemGetAddressRange_v2[context](base: *mut u64, bytes: *mut usize, address: u64)
        => "address={address:#x}"
    {
        let state = state();
        let within = |(&start, &(bytes, _)): (&u64, &(usize, u64))| {
            (address >= start && address - start < bytes as u64).then_some((start, bytes))
        };
        if let Some(found) = state.mappings.iter().find_map(within) {
            (*base, *bytes) = found;
            return 0;
        }
        let found = state.blocks.iter().find(|&(&start, &(bytes, _))| {
            address >= start && address - start < bytes as u64
        });
        let Some((&start, &(size, _))) = found else { return NOT_FOUND };
        (*base, *bytes) = (start, size);
        0
    }
    cuIpcGetMemHandle[context](handle: *mut IpcMemHandle, address: u64) => "address={address:#x}" {
        let state = state();
        let Some(&(bytes, _)) = state.blocks.get(&address) else { return INVALID_VALUE };
        if state.origins.contains_key(&address) {
            return INVALID_VALUE;
        }
        *handle = IpcMemHandle::new(u64::from(std::process::id()), bytes);
        0
    }
    cuIpcOpenMemHandle_v2[context](address: *mut u64, handle: IpcMemHandle, flags: u32)
        => "flags={flags}"
    {
        note(format!("last={}", handle.0[63]));
        let [process, bytes, mark] = handle.words();
        if flags != 1 || mark != IpcMemHandle::MARK {
            return INVALID_VALUE;
        }
        if process == u64::from(std::process::id()) {
            return INVALID_CONTEXT;
        }
        give(address, allocate(bytes as usize, 256))
    }
    cuIpcCloseMemHandle[context](address: u64) => "address={address:#x}" { release(address) }
    cuMemPoolImportFromShareableHandle[context](pool: *mut u64, handle: usize, kind: u32, flags: u64)
        => "descriptor={handle} kind={kind} flags={flags}"
    {
        if kind != 1 || flags != 0 {
            return INVALID_VALUE;
        }
        *pool = state().handle();
        0
    }
    cuMemPoolExportPointer[context](exported: *mut IpcMemHandle, address: u64)
        => "address={address:#x}"
    {
        let state = state();
        let Some(&(bytes, _)) = state.blocks.get(&address) else { return INVALID_VALUE };
        let Some(Origin::Pool(pool)) = state.origins.get(&address) else { return INVALID_VALUE };
        *exported = IpcMemHandle::new(*pool, bytes);
        0
    }
    cuMemPoolImportPointer[context](address: *mut u64, pool: u64, exported: *const IpcMemHandle)
        => "pool={pool:#x}"
    {
        let [_, bytes, mark] = (*exported).words();
        if !known(pool) || mark != IpcMemHandle::MARK {
            return INVALID_VALUE;
        }
        give(address, allocate(bytes as usize, 256))
    }

    cuMemHostAlloc[context](pointer: *mut u64, bytes: usize, flags: u32)
        => "bytes={bytes} flags={flags}"
    {
        let code = give(pointer, allocate(bytes, 4096));
        state().origins.insert(*pointer, Origin::Host);
        code
    }
    cuMemFreeHost[context](pointer: u64) => "pointer={pointer:#x}" { release(pointer) }
    cuMemHostRegister_v2[context](pointer: u64, bytes: usize, flags: u32)
        => "pointer={pointer:#x} bytes={bytes} flags={flags}"
    {
        if state().handles.insert(pointer) { 0 } else { 712 }
    }
    cuMemHostUnregister[context](pointer: u64) => "pointer={pointer:#x}" {
        if state().handles.remove(&pointer) { 0 } else { 713 }
    }
    cuMemHostGetDevicePointer_v2[context](address: *mut u64, pointer: u64, flags: u32)
        => "pointer={pointer:#x} flags={flags}" { *address = pointer; 0 }

    cuPointerGetAttributes[context](
        count: u32, attributes: *const u32, values: *const *mut u32, pointer: u64
    )
        => "count={count} attributes={attributes:?} pointer={pointer:#x}"
    {
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE; registered memory is known by its first byte alone.
        let state = state();
        let inside = |(&start, &(bytes, _)): (&u64, &(usize, usize))| {
            pointer >= start && pointer - start < bytes as u64
        };
        let asked: Vec<u32> = (0..count as usize).map(|index| *attributes.add(index)).collect();
        let block = state.blocks.iter().find(|block| inside(*block)).map(|(&start, _)| start);
        for (index, attribute) in asked.iter().enumerate() {
            let origin = block.and_then(|start| state.origins.get(&start));
            let place = *values.add(index);
            match (attribute, origin) {
                // HOST or DEVICE
                (2, Some(Origin::Host)) => *place = 1,
                (2, _) if block.is_some() => *place = 2,
                (2, _) => *place = state.handles.contains(&pointer).into(),
                // IS_MANAGED and IS_LEGACY_CUDA_IPC_CAPABLE, of which a driver writes one byte
                (8, _) => *place.cast::<bool>() = origin == Some(&Origin::Managed),
                (10, _) => *place.cast::<bool>() = block.is_some() && origin.is_none(),
                (17, Some(Origin::Pool(pool))) => *place.cast::<u64>() = *pool,
                (17, _) => *place.cast::<u64>() = 0,
                _ => return INVALID_VALUE,
            }
        }
        0
    }

    cuStreamCreate[context](stream: *mut u64, flags: u32) => "flags={flags}" {
        *stream = state().handle();
        0
    }
    cuStreamCreateWithPriority[context](stream: *mut u64, flags: u32, priority: i32)
        => "flags={flags} priority={priority}" { *stream = state().handle(); 0 }
    cuStreamDestroy_v2[context](stream: u64) => "stream={stream:#x}" { retire(stream) }
    cuStreamSynchronize[context of stream](stream: u64) => "stream={stream:#x}" {
        if state().lose_capture(stream) { STREAM_CAPTURE_UNSUPPORTED } else { on(stream) }
    }
    cuStreamQuery[context of stream](stream: u64) => "stream={stream:#x}" {
        if state().lose_capture(stream) { STREAM_CAPTURE_UNSUPPORTED } else { on(stream) }
    }
    cuStreamWaitEvent[context of stream](stream: u64, event: u64, flags: u32)
        => "stream={stream:#x} event={event:#x} flags={flags}"
    { if known(stream) { on(event) } else { INVALID_HANDLE } }
    cuStreamIsCapturing[context of stream](stream: u64, status: *mut u32) => "stream={stream:#x}" {
        *status = state().capture_status(stream);
        on(stream)
    }
    cuStreamBeginCapture_v2[context](stream: u64, mode: u32)
        => "stream={stream:#x} mode={mode}"
    {
        // The legacy stream has two names.
        if stream <= 1 {
            return STREAM_CAPTURE_UNSUPPORTED;
        }
        if mode > 2 {
            return INVALID_VALUE;
        }
        if !known(stream) {
            return INVALID_HANDLE;
        }
        let mut state = state();
        if state.capture_status(stream) != 0 {
            return ILLEGAL_STATE;
        }
        state.captures.insert(stream, 1);
        0
    }
    cuStreamEndCapture[context](stream: u64, graph: *mut u64) => "stream={stream:#x}" {
        *graph = 0;
        let mut state = state();
        match state.captures.remove(&stream) {
            None => ILLEGAL_STATE,
            Some(1) => { *graph = state.handle(); 0 }
            Some(_) => STREAM_CAPTURE_INVALIDATED,
        }
    }
    cuGraphInstantiateWithFlags[context](executable: *mut u64, graph: u64, flags: u64)
        => "graph={graph:#x} flags={flags}"
    {
        if flags != 0 {
            return INVALID_VALUE;
        }
        let mut state = state();
        if !state.handles.contains(&graph) {
            return INVALID_HANDLE;
        }
        *executable = state.handle();
        0
    }
    cuGraphDestroy(graph: u64) => "graph={graph:#x}" { retire(graph) }
    cuGraphLaunch[context](executable: u64, stream: u64)
        => "executable={executable:#x} stream={stream:#x}"
    {
        if !state().handles.contains(&executable) {
            return INVALID_HANDLE;
        }
        if state().lose_capture(stream) { STREAM_CAPTURE_UNSUPPORTED } else { on(stream) }
    }
    cuGraphExecDestroy(executable: u64) => "executable={executable:#x}" { retire(executable) }
    cuThreadExchangeStreamCaptureMode(mode: *mut u32) => "" {
        note(format!("mode={}", *mode));
        *mode = CAPTURE_MODE.replace(*mode);
        0
    }

    cuEventCreate[context](event: *mut u64, flags: u32) => "flags={flags}" {
        // CU_EVENT_DISABLE_TIMING
        if flags != 2 {
            return INVALID_VALUE;
        }
        *event = state().handle();
        0
    }
    cuEventDestroy_v2[context](event: u64) => "event={event:#x}" { retire(event) }
    cuEventRecord[context of stream](event: u64, stream: u64) => "event={event:#x} stream={stream:#x}" {
        if known(event) { on(stream) } else { INVALID_HANDLE }
    }
    cuEventQuery(event: u64) => "event={event:#x}" { on(event) }
    cuEventSynchronize(event: u64) => "event={event:#x}" { on(event) }

    cuMemcpyHtoDAsync_v2[context](target: u64, source: *const u8, bytes: usize, stream: u64)
        => "target={target:#x} bytes={bytes} stream={stream:#x}"
    { copy(source, target as usize as *mut u8, bytes); on(stream) }
    cuMemcpyDtoHAsync_v2[context](target: *mut u8, source: u64, bytes: usize, stream: u64)
        => "source={source:#x} bytes={bytes} stream={stream:#x}"
    { copy(source as usize as *const u8, target, bytes); on(stream) }
    cuMemcpyDtoDAsync_v2[context](target: u64, source: u64, bytes: usize, stream: u64)
        => "target={target:#x} source={source:#x} bytes={bytes} stream={stream:#x}"
    { copy(source as usize as *const u8, target as usize as *mut u8, bytes); on(stream) }
    cuMemcpyPeerAsync[context](
        target: u64, to: u64, source: u64, from: u64, bytes: usize, stream: u64,
    ) => "target={target:#x} to={to:#x} source={source:#x} from={from:#x} bytes={bytes} stream={stream:#x}"
    { copy(source as usize as *const u8, target as usize as *mut u8, bytes); on(stream) }
    cuMemsetD8Async[context](target: u64, value: u8, count: usize, stream: u64)
        => "target={target:#x} value={value} count={count} stream={stream:#x}"
    { rows(target, 0, value, count, 1); on(stream) }
    cuMemsetD16Async[context](target: u64, value: u16, count: usize, stream: u64)
        => "target={target:#x} value={value} count={count} stream={stream:#x}"
    { rows(target, 0, value, count, 1); on(stream) }
    cuMemsetD32Async[context](target: u64, value: u32, count: usize, stream: u64)
        => "target={target:#x} value={value} count={count} stream={stream:#x}"
    { rows(target, 0, value, count, 1); on(stream) }
    cuMemsetD2D8Async[context](
        target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64,
    ) => "target={target:#x} pitch={pitch} value={value} width={width} height={height} stream={stream:#x}"
    { rows(target, pitch, value, width, height); on(stream) }
    cuMemsetD2D16Async[context](
        target: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64,
    ) => "target={target:#x} pitch={pitch} value={value} width={width} height={height} stream={stream:#x}"
    { rows(target, pitch, value, width, height); on(stream) }
    cuMemsetD2D32Async[context](
        target: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64,
    ) => "target={target:#x} pitch={pitch} value={value} width={width} height={height} stream={stream:#x}"
    { rows(target, pitch, value, width, height); on(stream) }

    cuModuleLoadData[context](module: *mut u64, image: *const c_char) => "" {
        let text = CStr::from_ptr(image).to_string_lossy().into_owned();
        let mut state = state();
        *module = state.handle();
        let made = *module;
        state.modules.insert(made, text);
        0
    }
    cuModuleLoadDataEx[context](
        module: *mut u64, image: *const c_char, options: u32, names: *const u32,
        values: *const *mut u8,
    ) => "options={options}" {
        let text = CStr::from_ptr(image).to_string_lossy().into_owned();
        if !text.contains(".version") {
            let size = *values.add(1) as usize;
            if options == 2 && *names == 5 && *names.add(1) == 6 && size > 0 {
                let log = &mut *slice_from_raw_parts_mut(*values, size);
                let reason = b"line 1: no .version\0";
                let length = reason.len().min(size);
                log[..length].copy_from_slice(&reason[..length]);
            }
            return INVALID_PTX;
        }
        let mut state = state();
        *module = state.handle();
        let made = *module;
        state.modules.insert(made, text);
        0
    }
    cuModuleUnload[context](module: u64) => "module={module:#x}" {
        state().modules.remove(&module);
        retire(module)
    }
    cuModuleGetFunction[context](function: *mut u64, module: u64, name: *const c_char) => "" {
        let name = CStr::from_ptr(name).to_string_lossy();
        match state().modules.get(&module) {
            Some(text) if text.contains(&*name) => { *function = module + 1; 0 }
            Some(_) => NOT_FOUND,
            None => INVALID_HANDLE,
        }
    }
    cuLaunchKernel[context](
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared_bytes: u32, stream: u64, parameters: *const *const u64,
        extra: *const c_void,
    ) => "function={function:#x} grid={grid_x},{grid_y},{grid_z} block={block_x},{block_y},{block_z} shared={shared_bytes} stream={stream:#x}"
    {
        if !parameters.is_null() && !(*parameters).is_null() {
            note(format!("first parameter={:#x}", **parameters));
        }
        if extra.is_null() { on(stream) } else { INVALID_VALUE }
    }
}
