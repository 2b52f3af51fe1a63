//! Which resources stand for each other.

use crate::backend::BackendKind;
use crate::device::Device;
use std::any::{TypeId, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::mem::transmute;

/// What two resources have in common if one takes back what the other handed out.
///
/// Handles on one state have equal identities, whatever they were erased to: clones of a
/// [`PoolResource`](crate::PoolResource), or two [`CudaResource`](crate::CudaResource)s of one device.
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResourceId {
    kind: Kind,
    of: [u64; 2],
}

/// A type. Its name alone is not enough: two versions of a crate have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    id: TypeId,
    name: &'static str,
}

impl Kind {
    fn of<R: ?Sized>() -> Self {
        let marker = PhantomData::<R>;
        // SAFETY: only the lifetime bound of a trait object changes. What is behind has no data, and
        // its method returns a number that no lifetime has a part in.
        let whole: &(dyn Identified + 'static) =
            unsafe { transmute::<&dyn Identified, &(dyn Identified + 'static)>(&marker) };
        Self { id: whole.type_id_of(), name: type_name::<R>() }
    }
}

/// [`TypeId`] for types that may borrow, as resources may: lifetimes are nothing to it. (It is how the
/// crate `typeid` does it.)
trait Identified {
    fn type_id_of(&self) -> TypeId
    where
        Self: 'static;
}

impl<R: ?Sized> Identified for PhantomData<R> {
    fn type_id_of(&self) -> TypeId
    where
        Self: 'static,
    {
        TypeId::of::<R>()
    }
}

impl ResourceId {
    /// One object stands for itself alone.
    pub fn of_object<R: ?Sized>(resource: &R) -> Self {
        // The size tells a resource from its first field, which has the same address.
        let address = std::ptr::from_ref(resource).addr() as u64;
        Self { kind: Kind::of::<R>(), of: [address, size_of_val(resource) as u64] }
    }

    /// Handles of type `R` on one state, which lives at one address.
    pub fn of_state<R: ?Sized, S: ?Sized>(state: *const S) -> Self {
        Self { kind: Kind::of::<R>(), of: [state.addr() as u64, 0] }
    }

    /// Handles of type `R` on what `device` has under one number.
    pub fn of_device<R: ?Sized>(device: &Device, number: u64) -> Self {
        let (backend, key) = device.key();
        let backend = u64::from(backend == BackendKind::Simulated);
        Self { kind: Kind::of::<R>(), of: [key << 1 | backend, number] }
    }
}

impl fmt::Debug for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.of;
        write!(f, "{} {first:#x}/{second:#x}", self.kind.name)
    }
}
