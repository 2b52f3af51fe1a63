//! Handles, addresses and results of a driver.

use crate::error::DriverError;

pub type DriverResult<T> = Result<T, DriverError>;

/// An address in device memory.
pub type DeviceAddress = u64;

/// A stream of the driver. The handle may be used again once the stream is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawStream(pub u64);

/// An event of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawEvent(pub u64);

/// A memory pool of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawPool(pub u64);

/// An executable graph of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawGraph(pub u64);

/// Memory without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawHandle(pub u64);

/// A range of memory, by its address on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    pub address: DeviceAddress,
    pub bytes: usize,
}
