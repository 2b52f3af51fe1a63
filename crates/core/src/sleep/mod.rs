//! Pools that sleep: the device has their memory back, and their addresses stay.

mod contents;
mod copies;
mod file;
mod keep;
mod place;

use crate::driver::CallSite;
use crate::error::Result;
use crate::resource::pool::SleepReport;
use crate::resource::{DeviceResource, PoolResource};
use contents::Kept;

pub use contents::Woken;
pub use keep::Keep;

/// How a pool sleeps. A [`Keep`] alone is that with the defaults.
#[derive(Debug)]
#[must_use]
pub struct SleepOptions {
    keep: Keep,
    wakes_on_allocation: bool,
}

impl SleepOptions {
    /// A sleep whose contents are there.
    pub fn new(keep: Keep) -> Self {
        Self { keep, wakes_on_allocation: false }
    }

    /// Whether an allocation wakes the pool. It is refused by default
    /// ([`ErrorKind::Asleep`](crate::ErrorKind::Asleep)).
    pub fn wakes_on_allocation(mut self, wakes: bool) -> Self {
        self.wakes_on_allocation = wakes;
        self
    }
}

impl From<Keep> for SleepOptions {
    fn from(keep: Keep) -> Self {
        Self::new(keep)
    }
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Waits for all work of the device, puts the contents of the pool aside, and gives all of its memory back. The
    /// vectors keep their addresses. [`wake`](Self::wake) brings them back there, so graphs and pointers of other
    /// libraries are right again.
    ///
    /// The pool has to map its memory: it is over [`VirtualResource`](crate::mr::VirtualResource), or built with
    /// [`Handles::On`](crate::mr::Handles::On). Memory that graphs keep sleeps, too. While the pool sleeps:
    ///
    /// - Each safe use of its vectors is an error of kind [`ErrorKind::Asleep`](crate::ErrorKind::Asleep). Vectors may be
    ///   dropped.
    /// - So is a launch of a graph that was captured with this pool.
    /// - An allocation is such an error, or [wakes](SleepOptions::wakes_on_allocation) the pool. A trim gives nothing back.
    /// - [`statistics`](Self::statistics) count what sleeps in `asleep`, and as reserved.
    ///
    /// Two parts of a program that are to sleep one without the other have a pool each. A scope of
    /// [`with_device_resource`](crate::mr::with_device_resource) puts what a library allocates into one.
    ///
    /// ```
    /// use aquifer::mr::{Keep, VirtualResource};
    /// use aquifer::{Device, DeviceVec, ErrorKind, PoolResource, sim::SimConfig};
    ///
    /// let device = Device::simulated(SimConfig::default());
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// let weights = DeviceVec::from_slice_in(&stream, &[1.5_f32; 1000], pool.clone())?;
    ///
    /// // SAFETY: no other library has a pointer to the pool's memory, and no graph uses it.
    /// let slept = unsafe { pool.sleep(Keep::PageLocked)? };
    /// assert_eq!((slept.bytes, slept.used), (2 << 20, 4096));
    /// assert_eq!(weights.get(7).unwrap_err().kind(), ErrorKind::Asleep);
    ///
    /// pool.wake()?;
    /// assert_eq!(weights.get(7)?, 1.5);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// In each case the pool stays awake, or wakes again, and its contents stay. A buffer that was given is dropped. Where a
    /// sleep failed half way and the waking fails as well, the error says that the pool fell asleep in part. It
    /// [is asleep](Self::is_asleep) then, and nothing is lost: [`wake`](Self::wake) brings all back, the buffer too.
    ///
    /// - [`ErrorKind::Asleep`](crate::ErrorKind::Asleep) if it sleeps already, and in a callback of its own sleep or waking.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if it takes blocks.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) while a stream is in capture. As in
    ///   [`Device::synchronize`](crate::Device::synchronize), the driver invalidates the capture if Aquifer does not know
    ///   the stream.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) while memory of it is exported or registered
    ///   with NCCL, while the stream of a `Communicator` is at work on a collective, and if the buffer is too small.
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no memory for the contents, and
    ///   [`ErrorKind::Io`](crate::ErrorKind::Io) if they cannot be written.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork, and the errors of the driver.
    ///
    /// # Safety
    ///
    /// From this call until [`wake`](Self::wake) has returned, no work is given to the device that uses the pool's memory
    /// by a pointer: no kernel of another library, no copy of cudarc's, no launch of a graph that was captured with another
    /// pool, and no unsafe call with such
    /// a pointer. Safe calls of this crate are refused, and need no care.
    #[track_caller]
    pub unsafe fn sleep(&self, options: impl Into<SleepOptions>) -> Result<SleepReport> {
        let _site = CallSite::enter();
        let SleepOptions { keep, wakes_on_allocation } = options.into();
        let device = self.device().clone();
        let wake = |pool: &Self| pool.wake().map(drop);
        self.put_aside(wakes_on_allocation.then_some(wake as fn(&Self) -> Result<()>), |groups| {
            Kept::copy_out(&device, groups, keep)
        })
    }

    /// Maps memory where it was before the pool [slept](Self::sleep), and copies its contents there. Another thread may do
    /// that in the background: vectors of the pool are usable when it is done. It disturbs no capture, also inside of one.
    ///
    /// # Errors
    ///
    /// In each case the pool sleeps as before, and can be woken again. If the driver refuses to unmap what was mapped
    /// already, or does not say that the copies have ended, that memory stays mapped for the next wake, and the error says
    /// so.
    ///
    /// - [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the device has too little memory. The error says how
    ///   much is missing.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the pool does not sleep.
    /// - [`ErrorKind::Asleep`](crate::ErrorKind::Asleep) in a callback of its own sleep or waking.
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io) if a file cannot be read, [`ErrorKind::Forked`](crate::ErrorKind::Forked)
    ///   in the child of a fork, and the errors of the driver.
    #[track_caller]
    pub fn wake(&self) -> Result<Woken> {
        let _site = CallSite::enter();
        Ok(self.bring_back::<Kept>()?.into_woken())
    }
}
