//! The ready handlers.

use super::by_size::BySize;
use super::functions::MALLOC_ALIGNMENT;
use super::handler::DataHandler;
#[cfg(target_os = "linux")]
use super::pages::{HUGE_PAGE, Pages, Placement};
#[cfg(unix)]
use super::system_heap::SystemHeap;
use super::with_header::WithHeader;
#[cfg(not(target_os = "linux"))]
use crate::error::{Error, ErrorKind};
use crate::error::{Result, ensure};
use crate::impls::Count;
use crate::pinned::PinnedAlloc;
use crate::sync::LazyLock;
use allocator_api2::alloc::Global;

/// The least bytes of a page-locked block in [`DataHandler::pinned`]. Smaller blocks are the heap's.
const PINNED_FROM: usize = 4096;

/// The least bytes of a block on the node in [`DataHandler::numa`]. Smaller blocks are the heap's.
#[cfg(target_os = "linux")]
const NUMA_FROM: usize = 64 << 10;

/// The largest alignment of [`DataHandler::aligned`], which is a huge page.
const MAXIMUM_ALIGNMENT: usize = 2 << 20;

static DEFAULT: LazyLock<DataHandler> = LazyLock::new(|| {
    #[cfg(unix)]
    let functions = SystemHeap;
    #[cfg(not(unix))]
    let functions = WithHeader::new(Global);
    DataHandler::of_known("aquifer_default".into(), functions, MALLOC_ALIGNMENT)
});

static PINNED: LazyLock<DataHandler> = LazyLock::new(|| DataHandler::pinned_from(PINNED_FROM));

/// The handler `aquifer_default` of the system's heap, C's `malloc`, without a header. This handler is
/// current unless another was set, and there is one in the process.
///
/// ```
/// use aquifer::nep49::{DataHandler, current_data_handler};
///
/// assert_eq!(current_data_handler(), DataHandler::default());
/// ```
impl Default for DataHandler {
    fn default() -> Self {
        DEFAULT.clone()
    }
}

impl DataHandler {
    /// The handler `aquifer_pinned` of page-locked memory as [`PinnedAlloc`] gives it, of the current
    /// pinned resource. There is one in the process.
    ///
    /// **A block of less than 4 KiB is the heap's**, not page-locked. A program such as NumPy makes
    /// millions of small blocks, and a copy of so few bytes gains nothing.
    /// [`pinned_from`](Self::pinned_from) has another limit. The device is opened with the first
    /// larger block. Where there is no device, that block is the heap's, too.
    ///
    /// ```
    /// use allocator_api2::vec::Vec;
    /// use aquifer::{Device, MappedAlloc, nep49::{DataAlloc, DataHandler, with_data_handler}};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let array: Vec<f32, DataAlloc> = with_data_handler(DataHandler::pinned(), || {
    ///     let mut array = Vec::new_in(DataAlloc::current());
    ///     array.resize(10_000, 1.0);
    ///     array
    /// });
    /// // The device reaches it.
    /// assert!(MappedAlloc::device_address(&array).is_ok());
    /// # drop(device);
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    pub fn pinned() -> Self {
        PINNED.clone()
    }

    /// A handler as [`pinned`](Self::pinned), where blocks of `bytes` bytes and more are page-locked.
    /// With 0 all of them are. The handler's header of 16 or 64 bytes counts.
    ///
    /// ```
    /// use aquifer::nep49::DataHandler;
    ///
    /// let all = DataHandler::pinned_from(0);
    /// assert_eq!(all.name(), "aquifer_pinned");
    /// assert_ne!(all, DataHandler::pinned());
    /// ```
    pub fn pinned_from(bytes: usize) -> Self {
        let allocator = BySize { from: bytes, large: PinnedAlloc };
        let functions = WithHeader::new(allocator);
        Self::of_known("aquifer_pinned".into(), functions, MALLOC_ALIGNMENT)
    }

    /// A handler of the heap whose every block is aligned to `alignment` bytes, named `aquifer_aligned_64` for 64.
    /// Each block takes so many bytes more, 16 at least.
    ///
    /// ```
    /// use allocator_api2::vec::Vec;
    /// use aquifer::nep49::{DataAlloc, DataHandler};
    ///
    /// let mut vec = Vec::new_in(DataAlloc::new(DataHandler::aligned(64)?));
    /// vec.push(1_u8);
    /// assert!(vec.as_ptr().addr().is_multiple_of(64));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the alignment is not a power of two,
    /// or above 2 MiB.
    pub fn aligned(alignment: usize) -> Result<Self> {
        ensure!(
            alignment.is_power_of_two() && alignment <= MAXIMUM_ALIGNMENT,
            InvalidArgument,
            "give 64, or another power of two up to 2 MiB",
            "a data handler was to align to {}, which is no power of two up to 2 MiB",
            Count(alignment, "byte")
        );
        let name = format!("aquifer_aligned_{alignment}");
        let alignment = alignment.max(MALLOC_ALIGNMENT);
        let functions = WithHeader::with_alignment(Global, alignment);
        Ok(Self::of_known(name, functions, alignment))
    }

    /// The handler `aquifer_huge_pages`. Blocks of 2 MiB and more are mappings of their own that
    /// begin at a multiple of 2 MiB. Linux is advised to take huge pages for them
    /// (`MADV_HUGEPAGE`). Linux takes small pages when no huge page is at hand, and at the end of a
    /// block. A smaller block is the heap's.
    ///
    /// ```
    /// use aquifer::{ErrorKind, nep49::DataHandler};
    ///
    /// match DataHandler::huge_pages() {
    ///     Ok(handler) => assert_eq!(handler.name(), "aquifer_huge_pages"),
    ///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on other systems than Linux, and where that has no
    /// transparent huge pages or has turned them off.
    pub fn huge_pages() -> Result<Self> {
        #[cfg(target_os = "linux")]
        {
            let large = Pages::new(Placement::HugePages)?;
            let functions = WithHeader::new(BySize { from: HUGE_PAGE, large });
            Ok(Self::of_known("aquifer_huge_pages".into(), functions, MALLOC_ALIGNMENT))
        }
        #[cfg(not(target_os = "linux"))]
        Err(of_linux_alone("memory in huge pages"))
    }

    /// A handler whose blocks of 64 KiB and more are pages of one NUMA node of Linux (`mbind` with
    /// `MPOL_BIND`), named `aquifer_numa_0` for node 0. Where the node has no free page left
    /// when one is first touched, Linux ends a process, since it takes no page of another
    /// node. A smaller block is the heap's.
    ///
    /// ```
    /// use aquifer::nep49::DataHandler;
    ///
    /// // A machine without NUMA, and a container that may not ask, has an error.
    /// if let Ok(handler) = DataHandler::numa(0) {
    ///     assert_eq!(handler.name(), "aquifer_numa_0");
    /// }
    /// assert!(DataHandler::numa(5000).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a node that does not exist.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) on other systems than Linux, and
    ///   where its kernel does not know NUMA or refuses to bind memory, as in some containers.
    pub fn numa(node: u32) -> Result<Self> {
        #[cfg(target_os = "linux")]
        {
            let large = Pages::new(Placement::Node(node))?;
            let functions = WithHeader::new(BySize { from: NUMA_FROM, large });
            Ok(Self::of_known(format!("aquifer_numa_{node}"), functions, MALLOC_ALIGNMENT))
        }
        #[cfg(not(target_os = "linux"))]
        Err(of_linux_alone(&format!("memory of NUMA node {node}")))
    }
}

#[cfg(not(target_os = "linux"))]
fn of_linux_alone(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what} was asked, which is for Linux alone"))
        .with_advice("use DataHandler::aligned")
}
