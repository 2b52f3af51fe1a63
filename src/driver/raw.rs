//! Handles, addresses and results of a driver.

use crate::error::DriverError;

pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// An address in device memory.
pub(crate) type DeviceAddress = u64;

/// A stream of the driver. May be used again once the stream is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawStream(pub(crate) u64);

/// An event of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawEvent(pub(crate) u64);

/// A memory pool of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawPool(pub(crate) u64);

/// An executable graph of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawGraph(pub(crate) u64);

/// Memory without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawHandle(pub(crate) u64);

/// A range of memory, by its address on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRange {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: usize,
}
