//! Devices, each of which is one GPU or one simulated device.

#[cfg(feature = "sim")]
mod checked;
mod detect;
#[cfg(feature = "sim")]
mod detect_or_simulate;
#[cfg(feature = "sim")]
mod simulated;

#[cfg(feature = "cuda")]
use crate::driver::cuda::{self, CudaDriver};
use crate::driver::{
    Driver, ErrorContext, RawEvent, is_forked_child, is_in_host_function, not_forked,
};
use crate::error::{Error, ErrorKind, Result, ensure};
use crate::impls::debug_struct;
use crate::sync::trusted::{AtomicBool, Mutex, Ordering};
use crate::sync::{Arc, Weak};
#[cfg(feature = "cuda")]
use cudarc::driver::CudaContext;
use std::fmt;

pub use crate::driver::{BackendKind, DeviceProperties, MemoryInfo};
#[cfg(feature = "sim")]
pub use checked::CheckedDevice;
pub(crate) use detect::asks_for_gpu;

/// The number of recycled events that a device keeps. Others are destroyed.
const SPARE_EVENTS: usize = 1024;

/// One GPU with its context, or one simulated device. It is a handle, whose clones are the same device.
///
/// Use it from any thread. The device's context is made current for each driver call and the
/// thread's own is restored after it. Vectors, streams and transfers hold their device, so handles
/// are dropped in any order.
///
/// ```
/// use aquifer::Device;
///
/// // A GPU where a driver and a device are there, else the simulated device, with a warning. A program that is for
/// // a GPU alone calls `detect`.
/// let device = Device::detect_or_simulate()?;
/// println!("{device}: {} bytes free", device.memory_info()?.free);
/// # Ok::<(), aquifer::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

struct DeviceInner {
    driver: Arc<dyn Driver>,
    spare_events: Mutex<Vec<RawEvent>>,
    /// The program has addresses of host memory that kernels reach, on any stream.
    gave_host_addresses: AtomicBool,
    /// The simulated devices of one machine, which share its page-locked memory, this one included.
    machine: Arc<Machine>,
}

type Machine = Mutex<Vec<Weak<DeviceInner>>>;

impl Drop for DeviceInner {
    fn drop(&mut self) {
        for event in self.spare_events.get_mut().drain(..) {
            // SAFETY: a spare event is owned by this list alone, and destroyed here once.
            let _ = unsafe { self.driver.event_destroy(event) };
        }
    }
}

/// The CUDA devices that were opened or given. They are kept for good, since other libraries may use their contexts
/// after our last handle is gone, and the fence of page-locked memory has to cover them.
static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// The error with which [`Device::of_process`] last found no device, until a device is opened. Only the lack of a
/// device is kept, so that each block of host memory need not find it out anew.
static MISSING: Mutex<Option<Error>> = Mutex::new(None);

impl Device {
    fn with_driver(driver: Arc<dyn Driver>) -> Self {
        Self::of_machine(driver, Arc::default())
    }

    fn of_machine(driver: Arc<dyn Driver>, machine: Arc<Machine>) -> Self {
        let (spare_events, gave_host_addresses) = (Mutex::default(), AtomicBool::new(false));
        let inner = DeviceInner { driver, spare_events, gave_host_addresses, machine };
        let device = Self { inner: Arc::new(inner) };
        let mut all = device.inner.machine.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&device.inner));
        drop(all);
        device
    }

    /// Opens the GPU with this number, as CUDA counts them. Opening it again gives the same device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDriver`] without a CUDA driver or without the `cuda` feature,
    /// [`ErrorKind::NoDevice`] if there is no such GPU, [`ErrorKind::MissingSymbol`] if the driver
    /// is too old, [`ErrorKind::Forked`] in the child of a fork.
    #[cfg(feature = "cuda")]
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::find_or_open(
            |context| context.ordinal() == ordinal && context.is_primary(),
            || CudaDriver::open(ordinal),
        )
    }

    /// The device that was opened with such a context, or else a new one.
    #[cfg(feature = "cuda")]
    fn find_or_open(
        is_same: impl Fn(&Arc<CudaContext>) -> bool,
        open: impl FnOnce() -> Result<Arc<CudaDriver>>,
    ) -> Result<Self> {
        not_forked("a device")?;
        let mut devices = OPEN.lock();
        let same = |device: &&Device| device.context_of_cudarc().is_some_and(&is_same);
        if let Some(device) = devices.iter().find(same) {
            return Ok(device.clone());
        }
        let device = Self::with_driver(open()?);
        devices.push(device.clone());
        drop(devices);
        *MISSING.lock() = None;
        Ok(device)
    }

    /// Opens the GPU with this number, as CUDA counts them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDriver`], since this build has no `cuda` feature.
    #[cfg(not(feature = "cuda"))]
    pub fn open(ordinal: usize) -> Result<Self> {
        Err(without_cuda(format!("GPU {ordinal} was asked of a build without CUDA")))
    }

    /// The number of GPUs. Zero if there is a driver and no device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDriver`] and [`ErrorKind::MissingSymbol`] as in [`open`](Self::open), whatever
    /// `AQUIFER_BACKEND` is, which only [`detect`](Self::detect) reads.
    pub fn count() -> Result<usize> {
        #[cfg(feature = "cuda")]
        return match cuda::device_count() {
            Err(error) if error.kind() == ErrorKind::NoDevice => Ok(0),
            counted => counted,
        };
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda("the GPUs were to be counted by a build without CUDA".into()))
    }

    /// The device of a cudarc context, which it shares. So the streams made here count in cudarc's event tracking. Keep
    /// one `Arc<CudaContext>` for each GPU in a program.
    ///
    /// ```no_run
    /// use aquifer::{Device, cudarc::driver::CudaContext};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = CudaContext::new(0)?;
    /// let device = Device::from_cudarc(&context)?;
    /// assert_eq!(device.ordinal(), context.ordinal());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingSymbol`] if the driver is too old.
    #[cfg(feature = "cuda")]
    pub fn from_cudarc(context: &Arc<CudaContext>) -> Result<Self> {
        Self::find_or_open(
            |own| Arc::ptr_eq(own, context),
            || CudaDriver::from_context(context.clone()),
        )
    }

    /// cudarc's context of this device, for its modules and functions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] on a simulated device, where
    /// [`Stream::launch`](crate::Stream::launch) runs a kernel's host form.
    #[cfg(feature = "cuda")]
    pub fn cuda_context(&self) -> Result<&Arc<CudaContext>> {
        self.context_of_cudarc().ok_or_else(|| self.unknown_to_cudarc("context"))
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn context_of_cudarc(&self) -> Option<&Arc<CudaContext>> {
        self.driver().as_any().downcast_ref().map(CudaDriver::context)
    }

    /// The error of asking a simulated device for what cudarc alone has.
    #[cfg(feature = "cuda")]
    pub(crate) fn unknown_to_cudarc(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unsupported, format!("cudarc has no {what} of {self}")).with_advice(
            "give the kernel a host form, and launch it by Stream::launch, which runs on a GPU too; copy and \
             fill by DeviceVec; or use a CUDA device",
        )
    }

    /// Notes that the program gets an address of host memory for kernels, whose use nothing tells the end of.
    pub(crate) fn note_host_address_given(&self) {
        // Relaxed: the memory is freed, and the question asked, by who knows of this call.
        self.inner.gave_host_addresses.store(true, Ordering::Relaxed);
    }

    /// Whether work on host memory may be on a stream that cannot be listed. That is a stream of another library, or
    /// any stream of a kernel that has an address. The call is slow.
    pub(crate) fn may_use_host_memory_unseen(&self) -> bool {
        self.inner.gave_host_addresses.load(Ordering::Relaxed)
            || self.driver().may_have_foreign_streams()
    }

    /// The kind of the device, a GPU or simulated.
    pub fn kind(&self) -> BackendKind {
        self.driver().kind()
    }

    /// The device's number, as its backend counts.
    pub fn ordinal(&self) -> usize {
        self.driver().ordinal()
    }

    /// The device's name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.properties().name
    }

    /// The capabilities of the device.
    pub fn properties(&self) -> &DeviceProperties {
        self.driver().properties()
    }

    /// The device's UUID of 16 bytes. Every process knows the device by it, also where numbers differ
    /// (`CUDA_VISIBLE_DEVICES`). A part of a GPU (MIG) has a UUID of its own. The UUID of a simulated device names its
    /// process.
    ///
    /// ```
    /// use aquifer::{Device, sim::SimConfig};
    ///
    /// let [one, other] = [(); 2].map(|()| Device::simulated(SimConfig::default()));
    /// assert_eq!(one.uuid()?, one.clone().uuid()?);
    /// assert_ne!(one.uuid()?, other.uuid()?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.driver().uuid().with_context(|| format!("asking {self} for its UUID"))
    }

    /// Free and total memory, in bytes, as the driver sees it now.
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.driver().memory_info().with_context(|| format!("asking {self} for its memory"))
    }

    /// Whether the driver knows the memory at an address: of a device, managed or page-locked. It does not know ordinary
    /// memory of the host (`cuPointerGetAttributes`).
    ///
    /// ```
    /// use aquifer::{Device, DeviceVec};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let vec = DeviceVec::<u8>::zeroed(&device.new_stream()?, 100)?;
    /// assert!(device.knows_address(vec.as_device_ptr())?);
    /// let on_the_host = 0_u8;
    /// assert!(!device.knows_address(&raw const on_the_host as u64)?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the driver call.
    pub fn knows_address(&self, address: u64) -> Result<bool> {
        let asked = self.driver().is_known(address);
        asked.with_context(|| format!("asking {self} what lies at {address:#x}"))
    }

    /// So many percent of the device's memory, in bytes, for the sizes of any builder. It is the `80%` of a
    /// `StackText`. Rounded down to 2 MiB, a multiple of every alignment up to that.
    ///
    /// ```
    /// use aquifer::{CudaResource, Device, PoolResource};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let pool = PoolResource::builder(CudaResource::new(&device))
    ///     .maximum_size(device.percent_of_memory(80.0)?)
    ///     .soft_limit(device.percent_of_free_memory(50.0)?)
    ///     .build()?;
    /// assert!(pool.maximum_size().unwrap() < device.memory_info()?.total);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] if `percent` is not from 0 to 100, and the errors of the driver.
    pub fn percent_of_memory(&self, percent: f64) -> Result<usize> {
        part_of(self.memory_info()?.total, percent)
    }

    /// So many percent of the memory that the device has free now, as
    /// [`percent_of_memory`](Self::percent_of_memory). RMM calls it `percent_of_free_device_memory`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn percent_of_free_memory(&self, percent: f64) -> Result<usize> {
        part_of(self.memory_info()?.free, percent)
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.inner.driver
    }

    /// Backend and context id. Two handles with equal keys are the same device, and a key is never used again.
    #[doc(hidden)]
    pub fn key(&self) -> (BackendKind, u64) {
        (self.kind(), self.driver().context_id())
    }

    pub(crate) fn take_event(&self) -> Option<RawEvent> {
        self.inner.spare_events.lock().pop()
    }

    pub(crate) fn give_event(&self, event: RawEvent) {
        let mut spare = self.inner.spare_events.lock();
        // Inside of a host function none can be destroyed.
        if spare.len() < SPARE_EVENTS || is_in_host_function() {
            spare.push(event);
            return;
        }
        drop(spare);
        // SAFETY: the caller gave the event up, and it is on no list.
        let _ = unsafe { self.driver().event_destroy(event) };
    }

    /// The devices whose work may use page-locked memory of this one. These are all CUDA contexts that were opened or
    /// given, since portable memory is valid in all, or the simulated devices of one machine.
    pub(crate) fn sharing_host_memory(&self) -> Vec<Device> {
        match self.kind() {
            BackendKind::Simulated => {
                let all = self.inner.machine.lock();
                all.iter().filter_map(Weak::upgrade).map(|inner| Self { inner }).collect()
            }
            _ if is_forked_child() => Vec::new(),
            _ => OPEN.lock().clone(),
        }
    }

    /// Whether kernels of this device can reach memory of `peer`. Ask the device whose kernels run. So ask
    /// `two.can_access_peer(&one)` before `resource.enable_peer_access(&two)`, which is
    /// [`enable_peer_access`](crate::DeviceResource::enable_peer_access) of memory of `one`. A device is not its own
    /// peer.
    ///
    /// ```
    /// use aquifer::{Device, sim::SimConfig};
    ///
    /// let one = Device::simulated(SimConfig::default());
    /// let two = Device::simulated(SimConfig::default().ordinal(1));
    /// assert!(one.can_access_peer(&two)?);
    /// assert!(!one.can_access_peer(&one)?);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the driver.
    pub fn can_access_peer(&self, peer: &Device) -> Result<bool> {
        if self.kind() != peer.kind() || self == peer {
            return Ok(false);
        }
        let wanted =
            || format!("asking whether {self} reaches memory of {}", self.name_of_other(peer));
        self.driver().can_access_peer(peer.driver().as_any()).with_context(wanted)
    }

    /// Lets kernels of this device reach the plain memory of `peer`.
    pub(crate) fn enable_access_to(&self, peer: &Device) -> Result<()> {
        not_forked("a device")?;
        if self == peer {
            return Ok(());
        }
        self.require_peer(peer)?;
        let wanted =
            || format!("enabling access of {self} to memory of {}", self.name_of_other(peer));
        self.driver().enable_peer_access(peer.driver().as_any()).with_context(wanted)
    }

    /// Whether kernels of this device were given access to the plain memory of `peer`.
    pub(crate) fn has_access_to(&self, peer: &Device) -> bool {
        self == peer
            || self.kind() == peer.kind() && self.driver().has_peer_access(peer.driver().as_any())
    }

    /// The error where this device cannot reach memory of `peer`.
    #[doc(hidden)]
    pub fn require_peer(&self, peer: &Device) -> Result<()> {
        ensure!(
            self.can_access_peer(peer)?,
            Unsupported,
            "copy between them, which the driver does by way of the host",
            "{self} cannot reach memory of {}",
            self.name_of_other(peer)
        );
        Ok(())
    }

    /// The name of another device in a text that has this one's name. Two simulated devices may have one number, and
    /// two contexts may be of one GPU.
    #[doc(hidden)]
    pub fn name_of_other(&self, other: &Device) -> String {
        let (own, others) = (self.to_string(), other.to_string());
        match other.kind() {
            _ if self == other || own != others => others,
            BackendKind::Simulated => format!("another {others}"),
            _ => format!("another context of {others}"),
        }
    }

    /// The error of a device of another kind.
    #[doc(hidden)]
    pub fn require_kind(&self, other: &Device) -> Result<()> {
        if self.kind() == other.kind() { Ok(()) } else { Err(self.wrong_device(other, "the rank")) }
    }

    /// The error of a stream or a vector of `other` where this device was wanted.
    #[doc(hidden)]
    pub fn require(&self, other: &Device, what: &str) -> Result<()> {
        if self == other { Ok(()) } else { Err(self.wrong_device(other, what)) }
    }

    #[cold]
    pub(crate) fn wrong_device(&self, other: &Device, what: &str) -> Error {
        let mut own = self.to_string();
        let mut others = self.name_of_other(other);
        if own == other.to_string() {
            // Of more than two, the numbers tell which is meant.
            own += &format!(" (context {})", self.driver().context_id());
            others += &format!(" (context {})", other.driver().context_id());
        }
        let what = format!("{what} belongs to {others}, not to {own}");
        Error::new(ErrorKind::WrongDevice, what)
            .with_advice("use a stream and memory of one device, or copy across devices first")
    }
}

#[cfg(not(feature = "cuda"))]
fn without_cuda(what: String) -> Error {
    Error::new(ErrorKind::NoDriver, what)
        .with_advice("build with the feature `cuda`, or take a simulated device")
}

/// So many percent of `bytes`, rounded down to [`PART`].
fn part_of(bytes: usize, percent: f64) -> Result<usize> {
    /// The granularity of mapped memory on all GPUs so far.
    const PART: usize = 2 << 20;
    crate::error::ensure!(
        (0.0..=100.0).contains(&percent),
        InvalidArgument,
        "give 0.0 to 100.0",
        "{percent} percent of a device's memory were asked for"
    );
    // Exact to a byte below 2^53, and less than `bytes` rounded up above.
    let part = (bytes as f64 * (percent / 100.0)) as usize;
    Ok(part.min(bytes) / PART * PART)
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) || self.key() == other.key()
    }
}

impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            BackendKind::Simulated => write!(f, "{} {}", self.name(), self.ordinal()),
            _ => write!(f, "{} (CUDA device {})", self.name(), self.ordinal()),
        }
    }
}

debug_struct!(Device { kind(), ordinal(), name() });

impl AsRef<DeviceProperties> for Device {
    fn as_ref(&self) -> &DeviceProperties {
        self.properties()
    }
}

#[cfg(test)]
mod tests;
