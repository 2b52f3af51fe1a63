//! The limits of a pool that is in use.

use super::PoolResource;
use super::options::{checked_maximum, rounded_soft_limit};
use crate::driver::not_forked;
use crate::error::Result;
use crate::pool::{SizeLimits, is_limit};
use crate::resource::device_resource::DeviceResource;

impl<U: DeviceResource + 'static> PoolResource<U> {
    fn limits(&self) -> &SizeLimits {
        &self.pool.settings().limits
    }

    /// The most bytes that the pool may hold, or `None` if it has no maximum.
    pub fn maximum_size(&self) -> Option<usize> {
        Some(self.limits().maximum()).filter(|bytes| is_limit(*bytes))
    }

    /// Changes the most bytes that the pool may hold, to a multiple of its alignment or to `None` for no maximum. A
    /// pool that holds more by now does not grow, and a [trim](Self::trim) to the maximum gives the rest back. Requests
    /// that are under way may still go by the former maximum.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, DeviceVec, ErrorKind, PoolResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(CudaResource::new(&device))?;
    /// pool.set_maximum_size(Some(1 << 20))?;
    /// let vec = DeviceVec::<u8>::zeroed_in(&stream, 2 << 20, pool.clone());
    /// assert_eq!(vec.unwrap_err().kind(), ErrorKind::OutOfMemory);
    /// pool.set_maximum_size(None)?;
    /// DeviceVec::<u8>::zeroed_in(&stream, 2 << 20, pool)?;
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for 0 bytes or a number that is no multiple of
    /// the alignment, and [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn set_maximum_size(&self, bytes: Option<usize>) -> Result<()> {
        not_forked("a pool")?;
        let alignment = self.pool.settings().alignment as usize;
        self.limits().set_maximum(checked_maximum(bytes, alignment)?);
        Ok(())
    }

    /// Bytes up to which the pool grows before it makes streams wait for each other, or `None` if that is
    /// the maximum, and there is none.
    pub fn soft_limit(&self) -> Option<usize> {
        Some(self.limits().soft_limit()).filter(|bytes| is_limit(*bytes))
    }

    /// Changes the bytes up to which the pool grows before it makes streams wait for each other
    /// ([`PoolOptions::soft_limit`](crate::mr::PoolOptions::soft_limit)). They are rounded down to the pool's
    /// alignment. `None`, or more than the maximum, is the maximum.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn set_soft_limit(&self, bytes: Option<usize>) -> Result<()> {
        not_forked("a pool")?;
        let alignment = self.pool.settings().alignment as usize;
        self.limits().set_soft_limit(rounded_soft_limit(bytes, alignment));
        Ok(())
    }

    /// Bytes up to which the pool keeps free memory when the program has synchronized, those in use included. `None` if
    /// the pool keeps all until it is [trimmed](Self::trim).
    pub fn release_threshold(&self) -> Option<usize> {
        Some(self.limits().release_threshold()).filter(|bytes| is_limit(*bytes))
    }

    /// Changes the bytes up to which the pool keeps free memory when the program has synchronized
    /// ([`PoolOptions::release_threshold`](crate::mr::PoolOptions::release_threshold)). `None` is for no threshold.
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec, PoolResource, mr::VirtualResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let stream = device.new_stream()?;
    /// let pool = PoolResource::new(VirtualResource::new(&device)?)?;
    /// pool.set_release_threshold(Some(4 << 20))?;
    /// drop(DeviceVec::<u8>::zeroed_in(&stream, 64 << 20, pool.clone())?);
    /// stream.synchronize()?;
    /// assert!(pool.statistics().reserved <= 4 << 20);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in the child of a fork.
    pub fn set_release_threshold(&self, bytes: Option<usize>) -> Result<()> {
        not_forked("a pool")?;
        self.limits().set_release_threshold(bytes.unwrap_or(usize::MAX));
        if bytes.is_some() {
            self.pool.release_after_waits();
        }
        Ok(())
    }
}
