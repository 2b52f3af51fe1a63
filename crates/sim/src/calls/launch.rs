//! Launches of kernels. A text, an entry and a grid that a driver refuses are refused here.
//!
//! The codes are those that a driver returned for the same texts and grids (580, H100). A driver cannot compare the
//! arguments with the entry's parameters, and reads past the end of the list. Here that is an error.

use super::call::Call;
use super::enqueue::OpRequest;
use crate::state::{AddressSpace, Imports, OpWork, TouchedRange};
use aquifer_driver::error::DriverError;
use aquifer_driver::impls::Count;
use aquifer_driver::{
    Access, DriverResult, Kernel, KernelImage, LaunchConfig, RawArg, RawLaunch, RawStream,
};
use aquifer_ptx::{PtxEntry, PtxError, cubin, text as ptx};
use aquifer_sync::Arc;
use aquifer_sync::trusted::Mutex;
use std::collections::BTreeMap;

/// Blocks of a grid, and threads of a block, on every GPU of compute capability 3.0 or above.
const MOST_BLOCKS: (u32, u32, u32) = (i32::MAX as u32, 65_535, 65_535);
const MOST_THREADS: (u32, u32, u32) = (1024, 1024, 64);
const MOST_THREADS_IN_ALL: u64 = 1024;

/// Shared memory of a block. More is an opt-in of the kernel, which the crate does not offer. A driver takes more if
/// the static part alone is larger, up to what the GPU has.
const MOST_SHARED: u64 = 48 << 10;
const MOST_SHARED_BY_OPT_IN: u64 = 227 << 10;

/// The result of loading a kernel, which is what its launches need, or the error of the call that
/// refuses it.
pub(super) type LoadedEntry = Arc<Result<PtxEntry, DriverError>>;

/// The entry of a kernel. Its text is read once.
pub(super) fn entry_of(kernel: &Kernel) -> LoadedEntry {
    static READ: Mutex<BTreeMap<u64, LoadedEntry>> = Mutex::new(BTreeMap::new());
    let id = kernel.id();
    if let Some(known) = READ.lock().get(&id) {
        return Arc::clone(known);
    }
    let read = Arc::new(load(kernel));
    Arc::clone(READ.lock().entry(id).or_insert(read))
}

/// Reads a kernel's text, with the errors of the driver's two calls.
fn load(kernel: &Kernel) -> Result<PtxEntry, DriverError> {
    let entry = kernel.entry();
    let module = |code, why: &str| DriverError::new("cuModuleLoadDataEx", code).with_log(why);
    let function = |code, why: &str| DriverError::new("cuModuleGetFunction", code).with_log(why);
    let invalid = DriverError::INVALID_VALUE;
    let text = match kernel.image() {
        KernelImage::Ptx(text) => text,
        KernelImage::Cubin(cubin) => {
            return Ok(cubin::read(cubin, entry)?);
        }
        // Nobody can tell its parameters and limits.
        KernelImage::Function => return Ok(PtxEntry::unknown()),
    };
    if text.contains('\0') {
        return Err(module(invalid, "the PTX text has a zero byte, where C takes it to end"));
    }
    if entry.contains('\0') {
        return Err(function(invalid, "the name of the entry has a zero byte"));
    }
    let found = ptx::read(text, entry);
    if let Ok(PtxEntry { static_shared, .. }) = found
        && static_shared > MOST_SHARED_BY_OPT_IN
    {
        let why = format!(
            "the entry {entry} has {static_shared} bytes of shared memory, where {MOST_SHARED_BY_OPT_IN} can be"
        );
        return Err(module(DriverError::INVALID_PTX, &why));
    }
    found.map_err(|error| {
        let why = error.to_string();
        match error {
            PtxError::NotPtx(_) => module(DriverError::INVALID_IMAGE, &why),
            PtxError::Malformed(_) => module(DriverError::INVALID_PTX, &why),
            PtxError::NoEntry(_) if entry.is_empty() => {
                function(invalid, "the name of the entry is empty")
            }
            PtxError::NoEntry(_) => function(DriverError::NOT_FOUND, &why),
        }
    })
}

impl Call<'_> {
    pub(super) fn launch(
        &mut self,
        launch: RawLaunch<'_>,
        entry: &Result<PtxEntry, DriverError>,
        stream: RawStream,
    ) -> DriverResult<()> {
        let (id, name) = self.on_stream(stream)?;
        let RawLaunch { kernel, config, arguments } = launch;
        // Loading names no stream, so a capture survives its failure.
        let entry = entry.as_ref().map_err(DriverError::clone)?;
        let space = AddressSpace::Device(self.context.id);
        let touched: Vec<TouchedRange> = arguments
            .iter()
            .filter_map(|argument| match *argument {
                RawArg::Buffer { address, bytes, access } if bytes > 0 => {
                    Some(TouchedRange::new(address, bytes, access, space))
                }
                _ => None,
            })
            .collect();
        let refused = wrong_parameters(kernel.entry(), entry, arguments)
            .or_else(|| wrong_grid(config))
            .or_else(|| wrong_block(config, entry))
            .or_else(|| wrong_shared(config, entry))
            .or_else(|| overlap(&touched, &self.state.blocks.imports));
        if let Some(why) = refused {
            if let Ok(Some(capture)) = self.active_capture(id) {
                self.invalidate_capture(capture);
            }
            return Err(self.error(DriverError::INVALID_VALUE).with_log(&why));
        }
        let name = name.of_entry(kernel.entry());
        let arguments = arguments.to_vec();
        let work = OpWork::Kernel { host: kernel.host(), config: *config, arguments };
        self.submit(id, OpRequest::new(name, &touched, work)).map(|_| ())
    }
}

/// Says how the sizes of the arguments differ from those of the parameters.
fn wrong_parameters(name: &str, entry: &PtxEntry, arguments: &[RawArg]) -> Option<String> {
    let parameters = entry.parameters.as_ref()?;
    let size = |argument: &RawArg| match *argument {
        RawArg::Buffer { .. } => size_of::<u64>(),
        RawArg::Scalar(ref value) => value.len(),
        RawArg::Param(ref param) => param.bytes(),
    };
    let given: Vec<usize> = arguments.iter().map(size).collect();
    (*parameters != given).then(|| {
        let (wanted, given) = (sizes("parameter", parameters), sizes("argument", &given));
        format!("the entry {name} takes {wanted}; the launch gives {given}")
    })
}

/// `no arguments`, `1 argument, of 8 bytes`, `3 arguments, of 8, 4 and 4 bytes`.
fn sizes(noun: &'static str, sizes: &[usize]) -> String {
    let Some((last, first)) = sizes.split_last() else { return format!("no {noun}s") };
    let last = Count(*last as u64, "byte");
    let first: Vec<String> = first.iter().map(usize::to_string).collect();
    let and = if first.is_empty() { "" } else { " and " };
    format!("{}, of {}{and}{last}", Count(sizes.len() as u64, noun), first.join(", "))
}

fn wrong_grid(config: &LaunchConfig) -> Option<String> {
    let ((x, y, z), (mx, my, mz)) = (config.grid, MOST_BLOCKS);
    let fits = within(config.grid, MOST_BLOCKS);
    (!fits)
        .then(|| format!("a grid of {x} x {y} x {z} blocks, where 1 to {mx} x {my} x {mz} can be"))
}

fn wrong_block(config: &LaunchConfig, entry: &PtxEntry) -> Option<String> {
    let ((x, y, z), (mx, my, mz)) = (config.block, MOST_THREADS);
    let wrong = |why: String| Some(format!("a block of {x} x {y} x {z} threads, where {why}"));
    let threads = [x, y, z].map(u64::from);
    let in_all = threads.into_iter().fold(1, u64::saturating_mul);
    if !within(config.block, MOST_THREADS) || in_all > MOST_THREADS_IN_ALL {
        return wrong(format!("1 to {mx} x {my} x {mz} can be, and {MOST_THREADS_IN_ALL} in all"));
    }
    if let Some(most) = entry.most_threads.filter(|most| in_all > *most) {
        return wrong(format!("the entry allows {most} in all, by .maxntid"));
    }
    if let Some([x, y, z]) = entry.exact_threads.filter(|exact| threads != *exact) {
        return wrong(format!("the entry wants {x} x {y} x {z}, by .reqntid"));
    }
    None
}

fn wrong_shared(config: &LaunchConfig, entry: &PtxEntry) -> Option<String> {
    let (of_launch, of_entry) = (u64::from(config.shared_bytes), entry.static_shared);
    let most = if of_entry > MOST_SHARED { MOST_SHARED_BY_OPT_IN } else { MOST_SHARED };
    let fits = of_launch + of_entry <= most || of_launch == 0;
    (!fits).then(|| {
        format!(
            "{of_launch} bytes of shared memory for a block, and {of_entry} of the entry's own, where \
             {most} can be"
        )
    })
}

fn within((x, y, z): (u32, u32, u32), most: (u32, u32, u32)) -> bool {
    (1..=most.0).contains(&x) && (1..=most.1).contains(&y) && (1..=most.2).contains(&z)
}

/// Says that a written buffer overlaps another one, since the host form would get two references to it.
fn overlap(touched: &[TouchedRange], imports: &Imports) -> Option<String> {
    let overlaps = touched.iter().enumerate().any(|(index, one)| {
        touched.iter().take(index).any(|other| {
            let [first, second] = [one, other].map(|it| imports.resolve(it.address));
            (one.access != Access::Read || other.access != Access::Read)
                && first < second.saturating_add(other.bytes)
                && second < first.saturating_add(one.bytes)
        })
    });
    overlaps.then(|| String::from("a buffer that the kernel writes overlaps another argument"))
}
