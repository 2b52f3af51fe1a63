//! NVTX's memory extension: heaps, and the regions of them that are in use.

use super::injection::{ASCII, VERSION, function, library};
use super::ranges::domain;
use aquifer_sync::LazyLock;
use aquifer_sync::trusted::AtomicUsize;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// `NVTX_EXT_MODULEID_MEM` and `NVTX_EXT_COMPATID_MEM`.
const MODULE: u16 = 1;
const COMPATIBLE: u16 = 0x0102;

/// `NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR`: nothing but the registered regions may be touched.
const SUB_ALLOCATOR: u32 = 1;
/// `NVTX_MEM_TYPE_VIRTUAL_ADDRESS`.
const VIRTUAL_ADDRESS: u32 = 1;
/// `NVTX_MEM_REGION_REF_TYPE_POINTER`.
const BY_POINTER: u32 = 1;

/// `NVTX3EXT_CBID_nvtxMem...`.
const HEAP_REGISTER: usize = 0;
const HEAP_UNREGISTER: usize = 1;
const REGIONS_REGISTER: usize = 3;
const REGIONS_UNREGISTER: usize = 5;
const REGIONS_NAME: usize = 6;

/// The slots that the tool writes the addresses of its functions to.
static FUNCTIONS: [AtomicUsize; 63] = [const { AtomicUsize::new(0) }; 63];

/// compute-sanitizer takes names of 1 to 49 printable characters of ASCII.
const LONGEST_NAME: usize = 49;

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
struct Segment {
    id: usize,
    count: usize,
    slots: *mut usize,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
struct Module {
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
    message_type: i32,
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
    message_type: i32,
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

const _: () = {
    assert!(size_of::<Segment>() == 24 && size_of::<Module>() == 40 && size_of::<Range>() == 16);
    assert!(size_of::<HeapDescription>() == 48 && size_of::<RegisterBatch>() == 48);
    assert!(size_of::<UnregisterBatch>() == 32);
    assert!(size_of::<RegionName>() == 32 && size_of::<NameBatch>() == 40);
};

/// The functions of a tool that takes the memory extension. Any thread may call them.
pub struct MemoryExtension {
    domain: usize,
    heap_register: unsafe extern "C" fn(usize, *const HeapDescription) -> usize,
    heap_unregister: unsafe extern "C" fn(usize, usize),
    regions_register: unsafe extern "C" fn(usize, *const RegisterBatch),
    regions_unregister: unsafe extern "C" fn(usize, *const UnregisterBatch),
    regions_name: Option<unsafe extern "C" fn(usize, *const NameBatch)>,
}

/// The tool's handle of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapHandle(usize);

/// The tool that takes the memory extension, if there is one. Loaded at the first call.
pub fn memory_extension() -> Option<&'static MemoryExtension> {
    static EXTENSION: LazyLock<Option<MemoryExtension>> = LazyLock::new(load);
    EXTENSION.as_ref()
}

fn load() -> Option<MemoryExtension> {
    // Before the extension, as in NVIDIA's header. A tool may have the extension and no domains.
    let domain = domain();
    let library = library()?;
    type Initialize = unsafe extern "C" fn(*mut Module) -> c_int;
    // SAFETY: the name and type of the extensions' entry, by NVTX's contract.
    let initialize =
        unsafe { library.get::<Initialize>(b"InitializeInjectionNvtxExtension\0") }.ok()?;
    let mut segment =
        Segment { id: 1, count: FUNCTIONS.len(), slots: FUNCTIONS.as_ptr().cast_mut().cast() };
    let mut module = Module {
        version: VERSION,
        size: size_of::<Module>() as u16,
        id: MODULE,
        compatible: COMPATIBLE,
        segments: 1,
        segment: &raw mut segment,
        export: 0,
        private: std::ptr::null(),
    };
    // SAFETY: a module that lives for the call, whose slots live as long as the program.
    let known = unsafe { initialize(&raw mut module) } != 0;
    // Also if it does not know the extension, as in NVIDIA's header: it has seen the slots, and may
    // have threads.
    std::mem::forget(library);
    if !known {
        return None;
    }
    // SAFETY: the types of these slots, by NVTX's contract.
    unsafe {
        Some(MemoryExtension {
            domain,
            heap_register: function(&FUNCTIONS[HEAP_REGISTER])?,
            heap_unregister: function(&FUNCTIONS[HEAP_UNREGISTER])?,
            regions_register: function(&FUNCTIONS[REGIONS_REGISTER])?,
            regions_unregister: function(&FUNCTIONS[REGIONS_UNREGISTER])?,
            regions_name: function(&FUNCTIONS[REGIONS_NAME]),
        })
    }
}

/// A name as tools take it, cut at the maximum length.
fn name(text: &str) -> CString {
    let printable = text.bytes().filter(|byte| (b' '..=b'~').contains(byte)).take(LONGEST_NAME);
    CString::new(printable.collect::<Vec<u8>>()).unwrap_or_default()
}

impl MemoryExtension {
    /// Registers a heap: from now on the program may access its regions alone. `None` if the tool
    /// refuses.
    pub fn heap_register(&self, address: u64, bytes: usize, text: &str) -> Option<HeapHandle> {
        let range = Range { bytes, address: address as usize };
        let name = name(text);
        let heap = HeapDescription {
            compatible: COMPATIBLE,
            size: size_of::<HeapDescription>() as u16,
            reserved: 0,
            usage: SUB_ALLOCATOR,
            kind: VIRTUAL_ADDRESS,
            range_size: size_of::<Range>(),
            range: &raw const range,
            category: 0,
            message_type: ASCII,
            message: name.as_ptr(),
        };
        // SAFETY: the tool's own domain, and descriptions that live for the call.
        let handle = unsafe { (self.heap_register)(self.domain, &raw const heap) };
        // 0 is the heap of the whole address space; -1 means that there is no tool.
        (handle != 0 && handle != usize::MAX).then_some(HeapHandle(handle))
    }

    /// Ends a heap.
    pub fn heap_unregister(&self, heap: HeapHandle) {
        // SAFETY: the tool's own domain and handle.
        unsafe { (self.heap_unregister)(self.domain, heap.0) }
    }

    /// Registers a region of a heap.
    pub fn region_register(&self, heap: HeapHandle, address: u64, bytes: usize) {
        let range = Range { bytes, address: address as usize };
        let batch = RegisterBatch {
            compatible: COMPATIBLE,
            size: size_of::<RegisterBatch>() as u16,
            kind: VIRTUAL_ADDRESS,
            heap: heap.0,
            count: 1,
            range_size: size_of::<Range>(),
            ranges: &raw const range,
            handles: std::ptr::null_mut(),
        };
        // SAFETY: the tool's own domain and handle, and descriptions that live for the call.
        unsafe { (self.regions_register)(self.domain, &raw const batch) }
    }

    /// Ends the region at `address`.
    pub fn region_unregister(&self, address: u64) {
        let reference = address as usize;
        let batch = UnregisterBatch {
            compatible: COMPATIBLE,
            size: size_of::<UnregisterBatch>() as u16,
            reference_type: BY_POINTER,
            count: 1,
            reference_size: size_of::<usize>(),
            references: &raw const reference,
        };
        // SAFETY: the tool's own domain, and descriptions that live for the call.
        unsafe { (self.regions_unregister)(self.domain, &raw const batch) }
    }

    /// Names the region at `address`, if the tool takes names.
    pub fn region_name(&self, address: u64, text: &str) {
        let Some(regions_name) = self.regions_name else { return };
        let text: &CStr = &name(text);
        let region = RegionName {
            reference_type: BY_POINTER,
            message_type: ASCII,
            region: address as usize,
            message: text.as_ptr(),
            category: 0,
            reserved: 0,
        };
        let batch = NameBatch {
            compatible: COMPATIBLE,
            size: size_of::<NameBatch>() as u16,
            reserved: 0,
            count: 1,
            name_size: size_of::<RegionName>(),
            names: &raw const region,
            reserved_too: 0,
        };
        // SAFETY: the tool's own domain, and descriptions that live for the call.
        unsafe { regions_name(self.domain, &raw const batch) }
    }
}

#[cfg(test)]
mod tests;
