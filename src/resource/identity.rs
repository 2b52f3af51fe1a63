//! Which resources stand for each other.

use crate::backend::BackendKind;
use crate::device::Device;
use std::any::{TypeId, type_name};
use std::fmt;
use std::hash::{Hash, Hasher};

/// What two resources have in common if one takes back what the other handed out.
///
/// Handles on one state have equal identities, whatever they were erased to: clones of a
/// [`PoolResource`](crate::PoolResource), or two [`CudaResource`](crate::CudaResource)s of one device.
/// Of different types they are not, whatever the types are called; lifetimes make no other type.
/// Compare them while both resources live: an address is used again.
///
/// ```
/// use aquifer::{CudaResource, Device, DeviceResource, PoolResource};
/// use std::sync::Arc;
///
/// let device = Device::detect()?;
/// let one: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
/// let other: Arc<dyn DeviceResource> = Arc::new(CudaResource::new(&device));
/// assert_eq!(*one, *other);
/// assert_ne!(*one, *(Arc::new(PoolResource::new(one.clone())?) as Arc<dyn DeviceResource>));
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct ResourceId {
    /// Of the type. Its name would not do: two may have the same.
    kind: TypeId,
    of: [u64; 2],
    name: &'static str,
}

// By hand: the name of one type may lie at two addresses, and differ in its lifetimes.
impl PartialEq for ResourceId {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.of) == (other.kind, other.of)
    }
}

impl Eq for ResourceId {}

impl Hash for ResourceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, self.of).hash(state);
    }
}

impl ResourceId {
    fn new<R: ?Sized>(of: [u64; 2]) -> Self {
        Self { kind: typeid::of::<R>(), of, name: type_name::<R>() }
    }

    /// One object stands for itself alone.
    pub fn of_object<R: ?Sized>(resource: &R) -> Self {
        // The size tells a resource from its first field, which has the same address.
        let address = std::ptr::from_ref(resource).addr() as u64;
        Self::new::<R>([address, size_of_val(resource) as u64])
    }

    /// Handles of type `R` on one state, which lives at one address.
    pub fn of_state<R: ?Sized, S: ?Sized>(state: *const S) -> Self {
        Self::new::<R>([state.addr() as u64, 0])
    }

    /// Handles of type `R` on what `device` has under one number.
    pub fn of_device<R: ?Sized>(device: &Device, number: u64) -> Self {
        let (backend, key) = device.key();
        let backend = u64::from(backend == BackendKind::Simulated);
        Self::new::<R>([key << 1 | backend, number])
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.of;
        write!(f, "{} {first:#x}/{second:#x}", self.name)
    }
}
