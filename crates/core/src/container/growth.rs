//! How a container's capacity changed.

/// The last change of a container's capacity, from [`DeviceVec::growth`](crate::DeviceVec::growth) and
/// [`DeviceBuffer::growth`](crate::DeviceBuffer::growth).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Growth {
    /// The memory became longer or shorter where it lies. Nothing was copied, and the pointer stayed.
    InPlace,
    /// The elements, if any, were copied to another block.
    Moved,
}
