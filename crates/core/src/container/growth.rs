//! How a container's capacity changed.

/// How a container got its capacity, when that last changed: [`DeviceVec::growth`](crate::DeviceVec::growth),
/// [`DeviceBuffer::growth`](crate::DeviceBuffer::growth).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// Its memory became longer or shorter where it is. Nothing was copied, and the pointer stayed.
    InPlace,
    /// Its elements were copied to another block, where it had any.
    Moved,
}
