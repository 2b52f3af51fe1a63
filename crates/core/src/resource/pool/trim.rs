//! Memory that goes back to upstream.

use super::{Asked, PoolResource};
use crate::driver::{CallSite, not_forked};
use crate::error::Result;
use crate::resource::device_resource::DeviceResource;
use crate::stream::deferred;

impl<U: DeviceResource + 'static> PoolResource<U> {
    /// Gives free memory back to upstream at once, as far as the device is past it, until no more than `keep` bytes are
    /// reserved. Waits for no work of the device. Returns how many bytes went back.
    ///
    /// Whole blocks of upstream go back, so that less than `keep` may be left. If the pool maps its memory, pieces do.
    /// The free of a block may wait for all kernels of the device. So blocks go back if the device has nothing to do,
    /// or will have nothing within 2 ms. Pieces go back whatever the device does.
    /// [`wait_and_trim`](Self::wait_and_trim) gives back memory that the device still uses, too.
    ///
    /// The host's own memory for the returned memory goes, too. The calling thread's caches, some 9 KiB for each
    /// stream, go at once. Those of another thread go when that thread uses the pool again, or ends.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, PoolResource, mr::VirtualResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// drop(DeviceVec::<u8>::zeroed_in(&stream, 4 << 20, pool.clone())?);
    /// stream.synchronize()?;
    /// assert_eq!(pool.trim(0)?, 4 << 20);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    #[track_caller]
    pub fn trim(&self, keep: usize) -> Result<usize> {
        let _site = CallSite::enter();
        self.before_trim()?;
        let given = self.pool.trim(keep);
        if given > 0 {
            self.pool.upstream().wait_for_returns();
        }
        Ok(given)
    }

    /// Waits for the streams that freed memory, and gives free memory back to upstream, until no more than `keep` bytes
    /// are reserved. Waits for no stream that has nothing pending here. Returns how many bytes went back. Otherwise it
    /// is like [`trim`](Self::trim).
    ///
    /// # Errors
    ///
    /// - The errors of the driver, if nothing could be given back for them.
    /// - [`ErrorKind::Capture`](crate::ErrorKind::Capture) if a stream of the pool is in capture.
    /// - [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    #[track_caller]
    pub fn wait_and_trim(&self, keep: usize) -> Result<usize> {
        let _site = CallSite::enter();
        self.before_trim()?;
        let given =
            self.pool.wait_and_trim(keep).map_err(|failure| self.explain(failure, Asked::Trim))?;
        if given > 0 {
            self.pool.upstream().wait_for_returns();
        }
        Ok(given)
    }

    fn before_trim(&self) -> Result<()> {
        not_forked("a pool")?;
        deferred::collect_all();
        self.pool.free_deferred_graphs();
        Ok(())
    }
}
