//! What each thread used last, so that a warm call takes no lock.
//!
//! | table | key | holds | until |
//! |---|---|---|---|
//! | `RECENT`, a thread's | place | what a call on a route and a stream needs | another pair has the place, or the thread remembers another one after a change of `GENERATION` |
//! | `Thread::places` | place | pointers into `RECENT` | the same |
//! | `HANDLES`, a thread's | place of a driver's handle | the stream that it was last | another one has the place; it is not used after a change of `GENERATION` |

use crate::handles::{STACK, STREAM, aquifer_stack, aquifer_stream};
use crate::live_blocks::ThreadBlocks;
use crate::page_map::{self, LastLeaf};
use aquifer_rs::{DeviceBlock, DeviceResource, Stream, ThreadMagazine};
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Grows with each change of what a number stands for.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// In `GENERATION`: this is the child of a fork.
const IN_CHILD: u64 = 1 << 63;

/// What a thread keeps of a number holds while this is the same.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    // Acquire: pairs with `invalidate`.
    GENERATION.load(Ordering::Acquire)
}

/// What threads keep holds no longer.
pub(crate) fn invalidate() {
    // Release: a thread that sees it looks into tables that have changed.
    GENERATION.fetch_add(1, Ordering::Release);
    let _ = RECENT.try_with(|recent| recent.try_borrow_mut().map(|mut recent| recent.clear()).ok());
}

/// In the child of a fork no thread's cache holds.
pub(crate) extern "C" fn forget_in_child() {
    GENERATION.fetch_or(IN_CHILD, Ordering::Relaxed);
}

/// What a call on a route and a stream needs. It keeps what it names.
pub(crate) struct Recent {
    generation: u64,
    /// The handle of the stack that allocates by the route; 0 where it is not known.
    stack: u64,
    stream: u64,
    /// As [`page_map::numbers`] has them.
    numbers: u64,
    /// Of the resource and the stream, which this keeps: where it is a pool with no other resource over it.
    magazine: OnceCell<ThreadMagazine>,
    resource: Arc<dyn DeviceResource>,
    on: Stream,
    /// Of the route.
    blocks: ManuallyDrop<ThreadBlocks>,
}

impl Drop for Recent {
    fn drop(&mut self) {
        // In a child another thread of the parent may have a lock of these.
        if generation() & IN_CHILD == 0 {
            // SAFETY: once, as this is dropped.
            unsafe { ManuallyDrop::drop(&mut self.blocks) }
        }
    }
}

impl Recent {
    /// Counts a block that the thread counted, and that is none of the route's any more. The number of the route where that
    /// is closing, and has no block left.
    #[inline(always)]
    pub(crate) fn count_free(&self) -> Option<u32> {
        self.blocks.remove().then_some((self.numbers >> 32) as u32)
    }

    /// What the thread counts of the route's blocks.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> &ThreadBlocks {
        &self.blocks
    }

    #[inline(always)]
    pub(crate) fn is_of_stack(
        &self,
        stack: *mut aquifer_stack,
        stream: *mut aquifer_stream,
    ) -> bool {
        let stack = stack.addr() as u64;
        stack != 0 && stack == self.stack && stream.addr() as u64 == self.stream
    }

    /// Whether a block of these numbers may be freed here, on a stream.
    #[inline(always)]
    pub(crate) fn is_of_block(&self, numbers: u64, stream: *mut aquifer_stream) -> bool {
        (numbers ^ self.numbers) >> 32 == 0 && stream.addr() as u64 == self.stream
    }

    #[inline(always)]
    pub(crate) fn numbers(&self) -> u64 {
        self.numbers
    }

    /// A block of the thread's magazine.
    #[inline(always)]
    pub(crate) fn allocate_cached(&self, bytes: usize) -> Option<DeviceBlock> {
        // SAFETY: this keeps the pool and the stream.
        let block = unsafe { self.magazine.get()?.allocate(bytes)? };
        Some(DeviceBlock::new(block.address, block.bytes, block.token))
    }

    /// Frees a block to the thread's magazine. `false` if it does not take it.
    ///
    /// # Safety
    ///
    /// As [`DeviceResource::deallocate`], on this stream.
    #[inline(always)]
    pub(crate) unsafe fn deallocate_cached(&self, block: &DeviceBlock) -> bool {
        // SAFETY: the caller's promise; this keeps the pool and the stream.
        self.magazine.get().is_some_and(|magazine| unsafe {
            magazine.deallocate(block.address(), block.bytes(), block.token())
        })
    }

    /// The number of their device.
    pub(crate) fn device(&self) -> i32 {
        self.on.device().ordinal() as i32
    }

    /// Whether the driver's handle is of this stream still.
    ///
    /// # Safety
    ///
    /// The handle is of a stream that lives.
    pub(crate) unsafe fn is_behind(&self, cuda_stream: *mut c_void) -> bool {
        // SAFETY: the caller's promise. An error is met again on the other way, which tells of it.
        unsafe { self.on.is_behind(cuda_stream.addr() as u64) }.unwrap_or(false)
    }

    /// The resource and the stream, for a call that the magazine does not serve.
    pub(crate) fn resource_and_stream(&self) -> (&dyn DeviceResource, &Stream) {
        (&*self.resource, &self.on)
    }

    /// Looks for the thread's magazine, after a call that may have made it.
    pub(crate) fn find_magazine(&self) {
        if self.magazine.get().is_none()
            && let Some(found) = self.resource.thread_magazine(&self.on)
        {
            let _ = self.magazine.set(found);
        }
    }
}

/// Pairs of a route and a stream that a thread remembers.
const PLACES_OF_A_THREAD: usize = 8;

/// The place of a route and a stream. A stack's own route has the number of the stack.
#[inline(always)]
fn place(numbers: u64) -> usize {
    (numbers >> 32 ^ numbers) as usize % PLACES_OF_A_THREAD
}

/// Owns what [`Thread::places`] points to: what is dropped here is out of those first.
struct Owned {
    generation: u64,
    recent: [Option<Box<Recent>>; PLACES_OF_A_THREAD],
}

impl Owned {
    fn clear(&mut self) {
        THREAD.with(|thread| thread.places.iter().for_each(|place| place.set(std::ptr::null())));
        self.recent = [const { None }; PLACES_OF_A_THREAD];
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.clear();
    }
}

thread_local! {
    static RECENT: RefCell<Owned> =
        const { RefCell::new(Owned { generation: 0, recent: [const { None }; PLACES_OF_A_THREAD] }) };
    static THREAD: Thread = const {
        Thread {
            places: [const { Cell::new(std::ptr::null()) }; PLACES_OF_A_THREAD],
            leaf: LastLeaf::new(),
        }
    };
}

/// What the warm way needs of a thread. Without a destructor, so that it is there for calls of other destructors.
pub(crate) struct Thread {
    /// Pointers into `RECENT`.
    places: [Cell<*const Recent>; PLACES_OF_A_THREAD],
    pub(crate) leaf: LastLeaf,
}

impl Thread {
    /// The calling thread's own.
    ///
    /// # Safety
    ///
    /// The reference is used by the call that asks for it alone.
    #[inline(always)]
    pub(crate) unsafe fn own<'a>() -> &'a Self {
        // SAFETY: it has no destructor, so it lives as long as the thread, and `Cell`s keep it there.
        unsafe { &*THREAD.with(std::ptr::from_ref) }
    }

    /// What the thread remembers at the place of a route or stack and a stream, if that holds: not after a change of what a
    /// number stands for, and not in the child of a fork. It may be of another pair.
    ///
    /// # Safety
    ///
    /// The reference is used before the thread calls [`remember`] or [`invalidate`]. The resources of a route that is
    /// remembered call neither, nor code of users; a tool that intercepts the driver's calls does not call this library
    /// from there.
    #[inline(always)]
    pub(crate) unsafe fn recent<'a>(&self, numbers: u64) -> Option<&'a Recent> {
        let recent = self.places[place(numbers)].get();
        // SAFETY: null, or in `RECENT`, which takes it from here before it drops it: not while the caller uses it.
        let recent = unsafe { recent.as_ref()? };
        (recent.generation == generation()).then_some(recent)
    }
}

/// The stream that a driver's handle was last.
#[derive(Clone, Copy)]
struct OfHandle {
    generation: u64,
    cuda_stream: u64,
    stream: *mut aquifer_stream,
}

thread_local! {
    static HANDLES: [Cell<OfHandle>; PLACES_OF_A_THREAD] = const {
        [const {
            Cell::new(OfHandle { generation: 0, cuda_stream: 0, stream: std::ptr::null_mut() })
        }; PLACES_OF_A_THREAD]
    };
}

/// The place of a driver's handle, which is an address.
fn place_of_handle(cuda_stream: u64) -> usize {
    (cuda_stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % PLACES_OF_A_THREAD
}

/// The stream that a driver's handle was when the thread last asked. It may be another one by now.
#[inline]
pub(crate) fn last_of_handle(cuda_stream: *mut c_void) -> Option<*mut aquifer_stream> {
    let cuda_stream = cuda_stream.addr() as u64;
    let last = HANDLES.with(|handles| handles[place_of_handle(cuda_stream)].get());
    (last.cuda_stream == cuda_stream && last.generation == generation()).then_some(last.stream)
}

/// Remembers the stream of a driver's handle, as it was found in `generation`.
pub(crate) fn remember_handle(
    generation: u64,
    cuda_stream: *mut c_void,
    stream: *mut aquifer_stream,
) {
    let cuda_stream = cuda_stream.addr() as u64;
    let found = OfHandle { generation, cuda_stream, stream };
    HANDLES.with(|handles| handles[place_of_handle(cuda_stream)].set(found));
}

/// Remembers what a call uses, for the thread's next one: unless something has changed since it was looked up in
/// `generation`.
pub(crate) fn remember(
    generation: u64,
    stack: Option<u32>,
    route: u32,
    blocks: impl FnOnce() -> ThreadBlocks,
    resource: &Arc<dyn DeviceResource>,
    stream: u32,
    on: &Stream,
) {
    let numbers = page_map::numbers(route, stream);
    let _ = RECENT.try_with(|owned| {
        let Ok(mut owned) = owned.try_borrow_mut() else { return };
        let present = self::generation();
        if owned.generation != present {
            owned.clear();
            owned.generation = present;
        }
        let place = place(numbers);
        let is_known = owned.recent[place]
            .as_ref()
            .is_some_and(|known| known.numbers == numbers && (stack.is_none() || known.stack != 0));
        if present != generation || is_known || on.device() != resource.device() {
            return;
        }
        let recent = Recent {
            generation,
            stack: stack.map_or(0, |stack| STACK | u64::from(stack)),
            stream: STREAM | u64::from(stream),
            numbers,
            magazine: OnceCell::new(),
            resource: resource.clone(),
            on: on.clone(),
            blocks: ManuallyDrop::new(blocks()),
        };
        recent.find_magazine();
        THREAD.with(|thread| {
            thread.places[place].set(std::ptr::null());
            let recent = owned.recent[place].insert(Box::new(recent));
            thread.places[place].set(&raw const **recent);
        });
    });
}
