//! Reads from a cubin what a launch needs. That is whether it is whole, the entry, the sizes of its parameters, and its
//! limits.
//!
//! A driver takes a cubin by a pointer alone and believes its offsets. So each offset is compared with the length
//! before a driver sees it. This module leaves out what it does not understand of an entry, as [`text`](super::text)
//! does.

use super::text::{KNOWN, PtxEntry, write_known};
use object::LittleEndian;
use object::elf::{EM_CUDA, FileHeader64, SHT_NOBITS};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use std::fmt;

type Header = FileHeader64<LittleEndian>;

/// Why an image has no such entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CubinError {
    /// The image is neither a cubin nor a fatbin.
    NotCubin,
    /// The image is cut, or one of its tables points out of it.
    Malformed,
    /// The image has these entries, at most as many as make a sentence.
    NoEntry(Vec<String>),
}

/// Types of sections without bytes in the file that cubins have besides [`SHT_NOBITS`]. They are global, local, shared
/// and reserved shared memory (`cuobjdump -elf` names them).
const CUDA_NOBITS: [u32; 4] = [0x7000_0007, 0x7000_0009, 0x7000_000a, 0x7000_0015];

impl fmt::Display for CubinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCubin => f.write_str("a cubin is an ELF file of CUDA's, and this is none"),
            Self::Malformed => f.write_str("the cubin is cut, or a table of it points out of it"),
            Self::NoEntry(known) => write_known(f, "the cubin", known),
        }
    }
}

/// Reads the entry of a cubin. Of a fatbin, whose cubins may be compressed, it checks the length alone.
pub fn read(image: &[u8], entry: &str) -> Result<PtxEntry, CubinError> {
    if let Some(is_whole) = is_whole_fatbin(image) {
        let found = PtxEntry::default();
        return if is_whole { Ok(found) } else { Err(CubinError::Malformed) };
    }
    let header = Header::parse(image).map_err(|_| match image.starts_with(b"\x7fELF") {
        true => CubinError::Malformed,
        false => CubinError::NotCubin,
    })?;
    let endian = header.endian().map_err(|_| CubinError::NotCubin)?;
    if header.e_machine(endian) != EM_CUDA {
        return Err(CubinError::NotCubin);
    }
    read_sections(header, endian, image, entry).ok_or(CubinError::Malformed)?
}

/// `None` if something points out of the image.
fn read_sections(
    header: &Header,
    endian: LittleEndian,
    image: &[u8],
    entry: &str,
) -> Option<Result<PtxEntry, CubinError>> {
    for segment in header.program_headers(endian, image).ok()? {
        segment.data(endian, image).ok()?;
    }
    let sections = header.sections(endian, image).ok()?;
    let (mut known, mut is_there, mut info) = (Vec::new(), false, None);
    for section in sections.iter() {
        let data = match section.sh_type(endian) {
            kind if kind == SHT_NOBITS || CUDA_NOBITS.contains(&kind.0) => &[],
            _ => section.data(endian, image).ok()?,
        };
        let name = String::from_utf8_lossy(sections.section_name(endian, section).ok()?);
        if let Some(function) = name.strip_prefix(".text.") {
            is_there |= function == entry;
            if function != entry && known.len() < KNOWN {
                known.push(String::from(function));
            }
        } else if name.strip_prefix(".nv.info.") == Some(entry) {
            info = Some(data);
        }
    }
    if !is_there {
        return Some(Err(CubinError::NoEntry(known)));
    }
    Some(Ok(info.and_then(read_info).unwrap_or_default()))
}

/// Whether an image that begins as a fatbin does is as long as it says. `None` for another image.
fn is_whole_fatbin(image: &[u8]) -> Option<bool> {
    const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    if !image.starts_with(&MAGIC) {
        return None;
    }
    // The magic, a version and the header's bytes in 2 each, then the bytes that follow in 8.
    let (header, rest) = (u16_at(image, 6), image.get(8..16));
    let rest = rest.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let bytes = header.zip(rest).and_then(|(header, rest)| rest.checked_add(u64::from(header)));
    Some(bytes.is_some_and(|bytes| bytes <= image.len() as u64))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    bytes.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

/// Reads the attributes of an entry, `.nv.info.NAME`. Each is a format, a number and two bytes, which are the value, or
/// the length of the value that follows. `None` if the attributes have another form.
fn read_info(info: &[u8]) -> Option<PtxEntry> {
    const SIZED: u8 = 4;
    const MAX_THREADS: u8 = 0x05;
    const REQUIRED_THREADS: u8 = 0x10;
    const PARAMETER: u8 = 0x17;
    const PARAMETER_BYTES: u8 = 0x19;

    let mut found = PtxEntry::default();
    let (mut parameters, mut parameter_bytes, mut at) = (Vec::new(), None, 0);
    while at < info.len() {
        let (format, attribute, short) = (info[at], *info.get(at + 1)?, u16_at(info, at + 2)?);
        let value = match format {
            SIZED => info.get(at + 4..at + 4 + usize::from(short))?,
            1..SIZED => &[],
            _ => return None,
        };
        at += 4 + value.len();
        match attribute {
            MAX_THREADS => {
                found.most_threads = extent(value).map(|extent| extent.into_iter().product());
            }
            REQUIRED_THREADS => found.exact_threads = extent(value),
            // An index in 4 bytes, the ordinal and the offset in 2 each, and in the upper 14 bits of 4 the
            // size.
            PARAMETER => parameters.push((u16_at(value, 4)?, u32_at(value, 8)? >> 18)),
            PARAMETER_BYTES => parameter_bytes = Some(short),
            _ => {}
        }
    }
    parameters.sort_unstable();
    let mut places = parameters.iter().enumerate();
    let in_order = places.all(|(place, (ordinal, _))| usize::from(*ordinal) == place);
    // Where there are parameters of a form that is not known, there are fewer, or none.
    let bytes: u64 = parameters.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    let is_all = parameter_bytes
        .is_some_and(|all| bytes <= u64::from(all) && (all == 0 || !parameters.is_empty()));
    if in_order && is_all {
        found.parameters = Some(parameters.iter().map(|(_, bytes)| *bytes as usize).collect());
    }
    Some(found)
}

/// Three numbers, none of them larger than a launch's.
fn extent(value: &[u8]) -> Option<[u64; 3]> {
    let sides = [u32_at(value, 0)?, u32_at(value, 4)?, u32_at(value, 8)?];
    let plain = sides.iter().all(|side| (1..=0xffff).contains(side));
    plain.then_some(sides.map(u64::from))
}
