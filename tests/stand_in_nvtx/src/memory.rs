//! The memory extension: heaps, and regions of them.

use crate::{DOMAIN, say};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

const COMPATIBLE: u16 = 0x0102;
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
const REGIONS_NAME: usize = 6;
/// What makes a heap's handle of its address: no address, so that nobody takes one for the other.
const HANDLE: usize = 1;

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
pub struct Segment {
    id: usize,
    count: usize,
    slots: *mut usize,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
pub struct Module {
    version: u16,
    size: u16,
    id: u16,
    compatible: u16,
    segments: usize,
    segment: *mut Segment,
    export: usize,
    private: *const c_void,
}

/// `nvtxMemVirtualRangeDesc_v1`.
#[repr(C)]
struct Range {
    bytes: usize,
    address: usize,
}

/// `nvtxMemHeapDesc_v1`.
#[repr(C)]
struct HeapDescription {
    compatible: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_size: usize,
    range: *const Range,
    category: u32,
    message_type: u32,
    message: *const c_char,
}

/// `nvtxMemRegionsRegisterBatch_v1`.
#[repr(C)]
struct RegisterBatch {
    compatible: u16,
    size: u16,
    kind: u32,
    heap: usize,
    count: usize,
    range_size: usize,
    ranges: *const Range,
    handles: *mut usize,
}

/// `nvtxMemRegionsUnregisterBatch_v1`.
#[repr(C)]
struct UnregisterBatch {
    compatible: u16,
    size: u16,
    reference_type: u32,
    count: usize,
    reference_size: usize,
    references: *const usize,
}

/// `nvtxMemRegionNameDesc_v1`.
#[repr(C)]
struct RegionName {
    reference_type: u32,
    message_type: u32,
    region: usize,
    message: *const c_char,
    category: u32,
    reserved: u32,
}

/// `nvtxMemRegionsNameBatch_v1`.
#[repr(C)]
struct NameBatch {
    compatible: u16,
    size: u16,
    reserved: u32,
    count: usize,
    name_size: usize,
    names: *const RegionName,
    reserved_too: usize,
}

/// Whether a batch of one is as this tool knows it.
fn is_one(compatible: u16, sizes: (u16, usize), domain: usize, kind: u32, count: usize) -> bool {
    let right = compatible == COMPATIBLE
        && usize::from(sizes.0) == sizes.1
        && (domain, kind, count) == (DOMAIN, 1, 1);
    if !right {
        say("wrong memory call");
    }
    right
}

unsafe extern "C" fn heap_register(domain: usize, heap: *const HeapDescription) -> usize {
    // SAFETY: NVTX's contract: a description that lives for the call.
    let it = unsafe { &*heap };
    let sizes = (it.size, size_of::<HeapDescription>());
    if !is_one(it.compatible, sizes, domain, it.kind, 1)
        || (it.usage, it.message_type, it.range_size) != (1, 1, size_of::<Range>())
    {
        say("wrong heap");
        return 0;
    }
    if std::env::var_os("STAND_IN_NVTX_NO_HEAPS").is_some() {
        say("refused");
        return 0;
    }
    // SAFETY: the type says that this is a range, and the message's that it ends with a zero.
    let (range, name) = unsafe { (&*it.range, CStr::from_ptr(it.message)) };
    say(&format!("heap {:#x} {} {}", range.address, range.bytes, name.to_string_lossy()));
    range.address ^ HANDLE
}

unsafe extern "C" fn heap_unregister(_domain: usize, heap: usize) {
    say(&format!("end-heap {:#x}", heap ^ HANDLE));
}

unsafe extern "C" fn regions_register(domain: usize, batch: *const RegisterBatch) {
    // SAFETY: NVTX's contract: a batch that lives for the call.
    let it = unsafe { &*batch };
    let sizes = (it.size, size_of::<RegisterBatch>());
    if is_one(it.compatible, sizes, domain, it.kind, it.count) && it.range_size == 16 {
        // SAFETY: the batch has one range.
        let Range { bytes, address } = unsafe { &*it.ranges };
        say(&format!("region {address:#x} {bytes} {:#x}", it.heap ^ HANDLE));
    }
}

unsafe extern "C" fn regions_unregister(domain: usize, batch: *const UnregisterBatch) {
    // SAFETY: NVTX's contract: a batch that lives for the call.
    let it = unsafe { &*batch };
    let sizes = (it.size, size_of::<UnregisterBatch>());
    if is_one(it.compatible, sizes, domain, it.reference_type, it.count) && it.reference_size == 8 {
        // SAFETY: the batch has one reference.
        let region = unsafe { *it.references };
        say(&format!("end-region {region:#x}"));
    }
}

unsafe extern "C" fn regions_name(domain: usize, batch: *const NameBatch) {
    // SAFETY: NVTX's contract: a batch that lives for the call.
    let it = unsafe { &*batch };
    let sizes = (it.size, size_of::<NameBatch>());
    if is_one(it.compatible, sizes, domain, 1, it.count) && it.name_size == 32 {
        // SAFETY: the batch has one name, a string that ends with a zero.
        let (region, name) = unsafe { (&*it.names, CStr::from_ptr((*it.names).message)) };
        if (region.reference_type, region.message_type) == (1, 1) {
            say(&format!("name {:#x} {}", region.region, name.to_string_lossy()));
        }
    }
}

/// The entry that NVTX looks for in the library of a tool, for its extensions.
///
/// # Safety
///
/// `module` is NVTX's, and lives for the call; its slots live as long as the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtxExtension(module: *mut Module) -> c_int {
    if !crate::SEEN.load(Ordering::Relaxed) {
        say("loaded anew");
    }
    // SAFETY: the caller's promise.
    let it = unsafe { &*module };
    let known = (it.version, it.id, it.compatible) == (3, 1, COMPATIBLE);
    if !known || usize::from(it.size) != size_of::<Module>() || it.segments != 1 {
        say("wrong module");
        return 0;
    }
    if std::env::var_os("STAND_IN_NVTX_MEMORY").is_none() {
        return 0;
    }
    // SAFETY: the module has one segment.
    let segment = unsafe { &*it.segment };
    let functions = [
        (HEAP_REGISTER, heap_register as *const () as usize),
        (HEAP_UNREGISTER, heap_unregister as *const () as usize),
        (REGIONS_REGISTER, regions_register as *const () as usize),
        (REGIONS_UNREGISTER, regions_unregister as *const () as usize),
        (REGIONS_NAME, regions_name as *const () as usize),
    ];
    if (segment.id, segment.count) != (1, 63) {
        say("wrong segment");
        return 0;
    }
    for (id, function) in functions {
        // SAFETY: the segment has a slot for each number below its count.
        unsafe { *segment.slots.add(id) = function };
    }
    1
}
