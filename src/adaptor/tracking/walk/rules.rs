//! What the compiler says of a place in the program: how a frame there ends.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Pointer, RegisterRule,
    UnwindContext, UnwindSection, X86_64,
};
use std::ffi::{c_int, c_void};
use std::slice;

/// How a frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// In a way that is not written down here, or nobody knows.
    Unknown,
    /// Not at all: it is the outermost.
    End,
    /// The frame ends `above` bytes above the base register, or above the top of the stack. The return
    /// address is just below that end, and `saved` bytes below it is the caller's base register,
    /// unless that is 0: then the register still has it.
    Step { by_base: bool, above: u32, saved: u32 },
}

/// How many libraries were loaded and unloaded, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    loaded: u64,
    unloaded: u64,
}

/// The counts now.
pub(super) fn changes() -> Changes {
    let mut changes = Changes::default();
    each_loaded(|object| {
        changes = Changes { loaded: object.dlpi_adds, unloaded: object.dlpi_subs };
        true
    });
    changes
}

/// The rule of a place in code that cannot be unloaded during this call: it is on the stack.
pub(super) fn read(place: usize) -> Rule {
    find(place).unwrap_or(Rule::Unknown)
}

fn find(place: usize) -> Option<Rule> {
    let tables = Tables::of(place)?;
    let header = EhFrameHdr::new(tables.header, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame_hdr(address(tables.header));
    let header = header.parse(&bases, 8).ok()?;
    let Pointer::Direct(start) = header.eh_frame_ptr() else { return None };
    let offset = usize::try_from(start.checked_sub(address(tables.segment))?).ok()?;
    let frames = EhFrame::new(tables.segment.get(offset..)?, LittleEndian);
    let bases = bases.set_eh_frame(start);
    let place = place as u64;
    let entry =
        header.table()?.fde_for_address(&frames, &bases, place, EhFrame::cie_from_offset).ok()?;
    // A signal came between any two instructions, not in a call.
    if !entry.contains(place) || entry.is_signal_trampoline() {
        return None;
    }
    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(&frames, &bases, &mut context, place).ok()?;
    match row.register(X86_64::RA)? {
        RegisterRule::Undefined => return Some(Rule::End),
        RegisterRule::Offset(-8) => {}
        _ => return None,
    }
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let by_base = match *register {
        X86_64::RBP => true,
        X86_64::RSP => false,
        _ => return None,
    };
    let saved = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => 0,
        Some(RegisterRule::Offset(offset)) => {
            u32::try_from(offset.checked_neg()?).ok().filter(|saved| *saved > 0)?
        }
        _ => return None,
    };
    Some(Rule::Step { by_base, above: u32::try_from(*offset).ok()?, saved })
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}

/// The tables of the library that has a place in it.
struct Tables {
    header: &'static [u8],
    /// What was loaded around the header, in one piece.
    segment: &'static [u8],
}

impl Tables {
    /// Of a place in code that is not unloaded while they are used.
    fn of(place: usize) -> Option<Self> {
        let mut tables = None;
        each_loaded(|object| {
            let found = Self::find(object, place);
            let is_found = found.is_some();
            tables = tables.take().or(found);
            is_found
        });
        tables
    }

    fn find(object: &libc::dl_phdr_info, place: usize) -> Option<Self> {
        // SAFETY: the system gives as many headers as it says, for the time of the call.
        let parts = unsafe { slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let range = |part: &libc::Elf64_Phdr| {
            let start = (object.dlpi_addr as usize).wrapping_add(part.p_vaddr as usize);
            start..start.saturating_add(part.p_memsz as usize)
        };
        let loaded = || parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
        loaded().find(|part| range(part).contains(&place))?;
        let header = parts.iter().find(|part| part.p_type == libc::PT_GNU_EH_FRAME)?;
        let header = range(header);
        let constant =
            |part: &&libc::Elf64_Phdr| part.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R;
        let mut segments = loaded().filter(constant).map(range);
        let segment = segments.find(|segment| segment.contains(&header.start))?;
        let bytes = |range: std::ops::Range<usize>| {
            // SAFETY: a part of the library that is mapped to be read and not to be written, and stays
            // so until it is unloaded: not while its code is on the stack, as `of` asks.
            unsafe { slice::from_raw_parts(range.start as *const u8, range.len()) }
        };
        Some(Self {
            header: bytes(header.start..header.end.min(segment.end)),
            segment: bytes(segment),
        })
    }
}

/// Calls `body` with each library and the program until it says that it is done.
fn each_loaded<F: FnMut(&libc::dl_phdr_info) -> bool>(mut body: F) {
    unsafe extern "C" fn call<F: FnMut(&libc::dl_phdr_info) -> bool>(
        object: *mut libc::dl_phdr_info,
        _: usize,
        body: *mut c_void,
    ) -> c_int {
        // SAFETY: `each_loaded` passes its own body, and the system a description for this call.
        let done = unsafe { (*body.cast::<F>())(&*object) };
        c_int::from(done)
    }
    // SAFETY: the callback gets the body that it is made for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut body).cast()) };
}
