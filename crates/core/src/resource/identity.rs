//! Which resources take back each other's blocks.

use crate::device::Device;
use crate::driver::BackendKind;
use crate::impls::short_name;
use std::any::{TypeId, type_name};
use std::fmt;
use std::hash::{Hash, Hasher};

/// An identity is equal for two resources if each takes back the blocks of the other.
///
/// Handles on one state have equal identities, also when they are type-erased. Such are clones of a
/// [`PoolResource`](crate::PoolResource), or two [`CudaResource`](crate::CudaResource)s of one device. Resources of
/// different types never have equal ones, but types that differ in lifetimes alone count as one. Compare identities
/// while both resources live, since an address is used again.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceResource, PoolResource};
/// use std::sync::Arc;
///
/// let device = Device::detect_or_simulate()?;
/// let one: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
/// let other: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
/// assert_eq!(*one, *other);
/// assert_ne!(*one, *(Arc::new(PoolResource::new(one.clone())?) as Arc<dyn DeviceResource>));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct ResourceId {
    /// The identity of the type. Its name does not do, since two types may have the same.
    type_id: TypeId,
    of: [u64; 2],
    name: &'static str,
}

// Not derived: the names of equal types may differ, in lifetimes.
impl PartialEq for ResourceId {
    fn eq(&self, other: &Self) -> bool {
        (self.type_id, self.of) == (other.type_id, other.of)
    }
}

impl Eq for ResourceId {}

impl Hash for ResourceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.type_id, self.of).hash(state);
    }
}

impl ResourceId {
    fn new<R: ?Sized>(of: [u64; 2]) -> Self {
        Self { type_id: typeid::of::<R>(), of, name: type_name::<R>() }
    }

    /// The identity of one object, which no other has.
    pub fn of_object<R: ?Sized>(resource: &R) -> Self {
        // The size tells a resource from its first field, which has the same address.
        let address = std::ptr::from_ref(resource).addr() as u64;
        Self::new::<R>([address, size_of_val(resource) as u64])
    }

    /// The identity of all handles of type `R` on the state at this address.
    pub fn of_state<R: ?Sized, S: ?Sized>(state: *const S) -> Self {
        Self::new::<R>([state.addr() as u64, 0])
    }

    /// The identity of all resources of type `R` on one device, by a number of its own for each kind.
    pub fn of_device<R: ?Sized>(device: &Device, number: u64) -> Self {
        let (backend, context_id) = device.key();
        let backend = u64::from(backend == BackendKind::Simulated);
        Self::new::<R>([context_id << 1 | backend, number])
    }
}

impl ResourceId {
    /// The resource's type by its short name, without its module and its upstream, such as `PoolResource`.
    pub fn name(&self) -> &'static str {
        short_name(self.name)
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.of;
        write!(f, "{} {first:#x}/{second:#x}", self.name)
    }
}
