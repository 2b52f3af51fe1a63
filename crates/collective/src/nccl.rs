//! NCCL, where it is installed, and the [`CollectiveCalls`] of a GPU.
//!
//! NCCL is called through a table of its own, like the driver. cudarc's bindings panic where the
//! library or a function of it is missing, and take its results for a Rust enum. Their `Comm` gives its handle to
//! nobody, and without the handle nothing can be registered or asked for errors.

use crate::calls::{
    CollectiveCalls, CollectiveError, CollectiveResult, CollectiveWork, RawCollective,
    RawCommunicator, Reduction, UniqueId,
};
use aquifer_driver::cuda::{CudaDriver, candidates};
use aquifer_driver::error::DriverError;
use aquifer_driver::{DeviceAddress, DeviceRange, call_not_forked, symbols};
use aquifer_sync::OnceLock;
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// A communicator of NCCL, which is a pointer that NCCL alone dereferences.
type Handle = *mut c_void;

/// A stream, as NCCL takes it.
type StreamHandle = *mut c_void;

/// `ncclUniqueId`, which goes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct NcclUniqueId(UniqueId);

/// `ncclInt8`, for elements that are only moved.
const BYTES: c_int = 0;

symbols! {
    /// The library.
    struct Nccl: CollectiveError;

    get_unique_id = ncclGetUniqueId(id: *mut NcclUniqueId);
    comm_init_rank =
        ncclCommInitRank(communicator: *mut Handle, ranks: c_int, id: NcclUniqueId, rank: c_int);
    comm_destroy = ncclCommDestroy(communicator: Handle);
    comm_abort = ncclCommAbort(communicator: Handle);
    comm_get_async_error = ncclCommGetAsyncError(communicator: Handle, result: *mut u32);
    comm_register = ncclCommRegister(
        communicator: Handle, buffer: *mut c_void, bytes: usize, handle: *mut *mut c_void);
    comm_deregister = ncclCommDeregister(communicator: Handle, handle: *mut c_void);
    mem_alloc = ncclMemAlloc(address: *mut *mut c_void, bytes: usize);
    mem_free = ncclMemFree(address: *mut c_void);
    group_start = ncclGroupStart();
    group_end = ncclGroupEnd();
    all_reduce = ncclAllReduce(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, op: c_int,
        communicator: Handle, stream: StreamHandle);
    reduce = ncclReduce(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, op: c_int,
        root: c_int, communicator: Handle, stream: StreamHandle);
    reduce_scatter = ncclReduceScatter(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, op: c_int,
        communicator: Handle, stream: StreamHandle);
    broadcast = ncclBroadcast(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int, root: c_int,
        communicator: Handle, stream: StreamHandle);
    all_gather = ncclAllGather(
        send: *const c_void, receive: *mut c_void, count: usize, element: c_int,
        communicator: Handle, stream: StreamHandle);
    send = ncclSend(
        send: *const c_void, count: usize, element: c_int, peer: c_int,
        communicator: Handle, stream: StreamHandle);
    receive = ncclRecv(
        receive: *mut c_void, count: usize, element: c_int, peer: c_int,
        communicator: Handle, stream: StreamHandle);
}

/// A number as the pointer that NCCL takes in its place.
fn pointer(number: u64) -> *mut c_void {
    ptr::without_provenance_mut(number as usize)
}

/// A rank, or a number of ranks. The crate's own checks keep them small.
fn rank(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

impl Nccl {
    fn get() -> CollectiveResult<&'static Self> {
        static NCCL: OnceLock<Option<Nccl>> = OnceLock::new();
        call_not_forked("NCCL")?;
        // The library's own name first: it is the one that another library of the program has loaded.
        let own = [String::from("libnccl.so.2")];
        let open = || Self::open(own.into_iter().chain(candidates("nccl")));
        NCCL.get_or_init(open).as_ref().ok_or(CollectiveError::NoLibrary)
    }

    #[inline]
    fn may_call<F>(&self, call: &'static str, function: Option<F>) -> CollectiveResult<F> {
        call_not_forked(call).map_err(CollectiveError::Driver)?;
        function.ok_or(CollectiveError::MissingSymbol(call))
    }

    #[cold]
    fn failed(&self, call: &'static str, code: u32) -> CollectiveError {
        type LastError = unsafe extern "C" fn(Handle) -> *const c_char;
        // SAFETY: the type is that of this symbol in `nccl.h`.
        let last_error = unsafe { self.handle.get::<LastError>(b"ncclGetLastError\0") };
        // SAFETY: null asks for the last error of all; the text is the library's, of static length, and copied.
        let text = last_error.ok().and_then(|last_error| unsafe {
            let text = last_error(ptr::null_mut());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().trim().to_owned())
        });
        CollectiveError::Failed { call, code, text: text.unwrap_or_default() }
    }

    /// Runs calls as a group. The group is ended, whatever they return.
    fn group(&self, calls: impl FnOnce() -> CollectiveResult<()>) -> CollectiveResult<()> {
        // SAFETY: ended below, on this thread.
        unsafe { self.group_start() }?;
        let called = calls();
        // SAFETY: begun above, on this thread.
        let ended = unsafe { self.group_end() };
        match called {
            // NCCL does not know of it, and has given the calls before it.
            Err(CollectiveError::MissingSymbol(symbol)) => {
                let why = format!("a group was given in part: NCCL's library has no {symbol}");
                Err(CollectiveError::Lost(why))
            }
            called => called.and(ended),
        }
    }

    /// # Safety
    ///
    /// As [`CollectiveCalls::run_collectives`].
    unsafe fn run(&self, collective: &RawCollective) -> CollectiveResult<()> {
        let RawCollective { communicator, stream, work } = *collective;
        let (communicator, stream) = (pointer(communicator.0), pointer(stream.0));
        // SAFETY: the caller's contract, for each of these calls.
        unsafe {
            match work {
                CollectiveWork::AllReduce { send, receive, reduction } => {
                    let (Reduction { count, element, op }, send) = (reduction, pointer(send));
                    let (receive, element, op) = (pointer(receive), element as c_int, op as c_int);
                    self.all_reduce(send, receive, count, element, op, communicator, stream)
                }
                CollectiveWork::Reduce { send, receive, reduction, root } => {
                    let (Reduction { count, element, op }, send) = (reduction, pointer(send));
                    let (receive, element, op) = (pointer(receive), element as c_int, op as c_int);
                    self.reduce(send, receive, count, element, op, rank(root), communicator, stream)
                }
                CollectiveWork::ReduceScatter { send, receive, reduction } => {
                    let (Reduction { count, element, op }, send) = (reduction, pointer(send));
                    let (receive, element, op) = (pointer(receive), element as c_int, op as c_int);
                    self.reduce_scatter(send, receive, count, element, op, communicator, stream)
                }
                CollectiveWork::Broadcast { send, receive, bytes, root } => {
                    let (send, receive, root) = (pointer(send), pointer(receive), rank(root));
                    self.broadcast(send, receive, bytes, BYTES, root, communicator, stream)
                }
                CollectiveWork::AllGather { send, receive, bytes } => {
                    let (send, receive) = (pointer(send), pointer(receive));
                    self.all_gather(send, receive, bytes, BYTES, communicator, stream)
                }
                CollectiveWork::Send { send, bytes, peer } => {
                    self.send(pointer(send), bytes, BYTES, rank(peer), communicator, stream)
                }
                CollectiveWork::Receive { receive, bytes, peer } => {
                    self.receive(pointer(receive), bytes, BYTES, rank(peer), communicator, stream)
                }
            }
        }
    }
}

/// Calls NCCL with the driver's context current, also where a capture on another thread would refuse the call. NCCL makes
/// other contexts current and does not always restore, so the former one is made current again afterwards.
fn nccl<R>(
    driver: &CudaDriver,
    call: impl FnOnce(&Nccl) -> CollectiveResult<R>,
) -> CollectiveResult<R> {
    let nccl = Nccl::get()?;
    driver.restoring_relaxed(|| call(nccl))
}

impl CollectiveCalls for CudaDriver {
    fn unique_id(&self) -> CollectiveResult<UniqueId> {
        nccl(self, |nccl| {
            let mut id = NcclUniqueId([0; 128]);
            // SAFETY: `id` is writable for the call.
            unsafe { nccl.get_unique_id(&raw mut id) }?;
            Ok(id.0)
        })
    }

    fn join_ranks(
        &self,
        members: &[(&dyn Any, usize)],
        ranks: usize,
        id: &UniqueId,
    ) -> CollectiveResult<Vec<RawCommunicator>> {
        nccl(self, |nccl| {
            let mut handles: Vec<Handle> = vec![ptr::null_mut(); members.len()];
            let joined = nccl.group(|| {
                for (&(driver, number), handle) in members.iter().zip(&mut handles) {
                    let refused = DriverError::new("ncclCommInitRank", DriverError::NOT_SUPPORTED);
                    let driver: &Self = driver.downcast_ref().ok_or(refused)?;
                    // NCCL takes the device of the current context.
                    driver.in_context(|| {
                        // SAFETY: `handle` stays where it is until the group has ended, which writes it.
                        unsafe {
                            nccl.comm_init_rank(
                                handle,
                                rank(ranks),
                                NcclUniqueId(*id),
                                rank(number),
                            )
                        }
                    })?;
                }
                Ok(())
            });
            if let Err(error) = joined {
                for handle in handles.into_iter().filter(|handle| !handle.is_null()) {
                    // SAFETY: made above, and used by nothing.
                    let _ = unsafe { nccl.comm_abort(handle) };
                }
                return Err(error);
            }
            Ok(handles.into_iter().map(|handle| RawCommunicator(handle.addr() as u64)).collect())
        })
    }

    unsafe fn run_collectives(&self, works: &[RawCollective]) -> CollectiveResult<()> {
        if let [work] = works {
            // Not `nccl`: no capture refuses work on another stream, the device is NCCL's only one, and this is the hot
            // path.
            let nccl = Nccl::get()?;
            // SAFETY: the caller's contract.
            let run = || unsafe { nccl.run(work) };
            return if self.thread_has_context()? { run() } else { self.in_context(run) };
        }
        nccl(self, |nccl| {
            // SAFETY: the caller's contract.
            nccl.group(|| works.iter().try_for_each(|work| unsafe { nccl.run(work) }))
        })
    }

    unsafe fn communicator_check(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        nccl(self, |nccl| {
            let mut result = 0;
            // SAFETY: the caller's contract; `result` is writable for the call.
            unsafe { nccl.comm_get_async_error(pointer(communicator.0), &raw mut result) }?;
            match result {
                0 => Ok(()),
                code => Err(nccl.failed("ncclCommGetAsyncError", code)),
            }
        })
    }

    unsafe fn communicator_abort(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        // SAFETY: the caller's contract.
        nccl(self, |nccl| unsafe { nccl.comm_abort(pointer(communicator.0)) })
    }

    unsafe fn communicator_destroy(&self, communicator: RawCommunicator) -> CollectiveResult<()> {
        // SAFETY: the caller's contract.
        nccl(self, |nccl| unsafe { nccl.comm_destroy(pointer(communicator.0)) })
    }

    unsafe fn communicator_register(
        &self,
        communicator: RawCommunicator,
        range: DeviceRange,
    ) -> CollectiveResult<u64> {
        nccl(self, |nccl| {
            let mut handle = ptr::null_mut();
            let (communicator, buffer) = (pointer(communicator.0), pointer(range.address));
            // SAFETY: the caller's contract; `handle` is writable for the call.
            unsafe { nccl.comm_register(communicator, buffer, range.bytes, &raw mut handle) }?;
            Ok(handle.addr() as u64)
        })
    }

    unsafe fn communicator_deregister(
        &self,
        communicator: RawCommunicator,
        handle: u64,
    ) -> CollectiveResult<()> {
        // SAFETY: the caller's contract.
        nccl(self, |nccl| unsafe { nccl.comm_deregister(pointer(communicator.0), pointer(handle)) })
    }

    fn collective_mem_alloc(&self, bytes: usize) -> CollectiveResult<DeviceAddress> {
        nccl(self, |nccl| {
            let mut address = ptr::null_mut();
            // SAFETY: `address` is writable for the call.
            unsafe { nccl.mem_alloc(&raw mut address, bytes) }?;
            Ok(address.addr() as u64)
        })
    }

    unsafe fn collective_mem_free(&self, address: DeviceAddress) -> CollectiveResult<()> {
        // SAFETY: the caller's contract.
        nccl(self, |nccl| unsafe { nccl.mem_free(pointer(address)) })
    }
}
