//! The constructors and accessors that several containers and views have.

/// Makes constructors in two forms, from the device's current resource and from a given one. They share their arguments
/// and the body, in which the resource is a [`ResourceHandle`](crate::resource::ResourceHandle).
macro_rules! constructors {
    ($(
        $(#[$doc:meta])*
        pub $([$unsafe:tt])? fn $name:ident $(<$parameter:ident: $bound:ident>)? (
            $stream:ident: $home:ty $(, $argument:ident: $type:ty)*
        ) -> $result:ty;
        $(#[$doc_in:meta])*
        pub fn $name_in:ident(.., $resource:ident) $body:block
    )+) => {$(
        $(#[$doc])*
        #[track_caller]
        pub $($unsafe)? fn $name $(<$parameter: $bound>)? (
            $stream: $home $(, $argument: $type)*
        ) -> $result {
            $crate::driver::CallSite::run(move || -> $result {
                let $resource = $crate::resource::current_handle($stream.device())?;
                $body
            })
        }

        $(#[$doc_in])*
        #[track_caller]
        pub $($unsafe)? fn $name_in $(<$parameter: $bound>)? (
            $stream: $home,
            $($argument: $type,)*
            resource: impl $crate::resource::DeviceResource + 'static,
        ) -> $result {
            $crate::driver::CallSite::run(move || -> $result {
                let $resource = $crate::resource::ResourceHandle::from(resource.into_shared());
                $body
            })
        }
    )+};
}
pub(super) use constructors;

/// The accessors of all containers. The last two arguments are the fields of the
/// [`Buffer`](super::buffer::Buffer) and of the length.
macro_rules! container {
    ($name:ident $(<$parameter:ident: $bound:ident>)?, $element:ty, $($buffer:ident).+, $($length:ident).+) => {
        /// The text shows where the memory lies, not the elements, which are on the device. It shows the resource by
        /// its name, since the resource's own `Debug` shows its chain with all counts.
        impl$(<$parameter: $bound>)? std::fmt::Debug for $name$(<$parameter>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("element", &format_args!("{}", std::any::type_name::<$element>()))
                    .field("length", &self.$($length).+)
                    .field("block", &format_args!("{}", $crate::impls::Count(self.$($buffer).+.bytes(), "byte")))
                    .field("address", &format_args!("{:#x}", self.$($buffer).+.address()))
                    .field("home", &format_args!("{}", self.$($buffer).+.home()))
                    .field("resource", &format_args!("{}", self.resource().identity().name()))
                    .finish()
            }
        }

        impl$(<$parameter: $bound>)? $name$(<$parameter>)? {
            /// The home stream.
            pub fn stream(&self) -> &$crate::stream::Stream {
                self.$($buffer).+.home()
            }

            /// The device whose memory it is.
            pub fn device(&self) -> &$crate::device::Device {
                self.$($buffer).+.home().device()
            }

            /// The resource that its memory came from and goes back to.
            pub fn resource(&self) -> &$crate::sync::Arc<dyn $crate::resource::DeviceResource> {
                self.$($buffer).+.resource()
            }

            /// Makes `stream` the home stream, ordered after all use so far. The host does not wait.
            ///
            /// # Errors
            ///
            /// - [`WrongDevice`](crate::ErrorKind::WrongDevice) for a stream of another device.
            /// - [`Capture`](crate::ErrorKind::Capture) while the home stream or `stream` is in capture.
            /// - The errors of the driver.
            ///
            /// The home stream stays what it was then.
            #[track_caller]
            pub fn set_stream(&mut self, stream: &$crate::stream::Stream) -> $crate::error::Result<()> {
                let _site = $crate::driver::CallSite::enter();
                self.$($buffer).+.set_home(stream)
            }

            /// Moves managed memory to its device or to the host before it is used there, in the order of the home stream
            /// (`cuMemPrefetchAsync`). Nothing happens to memory that does not migrate, on a device without
            /// [`concurrent_managed_access`](crate::device::DeviceProperties::concurrent_managed_access), and in a capture.
            ///
            /// RMM calls it `prefetch`.
            ///
            /// # Errors
            ///
            /// [`Capture`](crate::ErrorKind::Capture) while a capture on another thread has the stream, and the errors of
            /// the driver.
            #[track_caller]
            pub fn prefetch(&self, to: $crate::driver::MemoryLocation) -> $crate::error::Result<()> {
                let _site = $crate::driver::CallSite::enter();
                let bytes = self.$($length).+ * size_of::<$element>();
                self.$($buffer).+.prefetch(bytes, to)
            }

            /// The device's address of the first element, which dangles without memory. It puts nothing in order. So
            /// use it on a stream that [`on`](Self::on) or [`on_mut`](Self::on_mut) gave a guard for, also if that is
            /// the home stream.
            pub fn as_device_ptr(&self) -> u64 {
                self.$($buffer).+.address()
            }

            /// The whole of it, to read.
            pub fn as_slice(&self) -> $crate::container::view::DeviceSlice<'_, $element> {
                $crate::container::view::DeviceSlice::new(&self.$($buffer).+, self.$($length).+)
            }

            /// The whole of it, to read and write.
            pub fn as_mut_slice(&mut self) -> $crate::container::view::DeviceSliceMut<'_, $element> {
                $crate::container::view::DeviceSliceMut::new(&self.$($buffer).+, self.$($length).+)
            }

            /// The container, to be read on `stream`, which waits for the home stream. The home stream waits for
            /// `stream` before it next writes or frees the memory, even if the guard is forgotten.
            ///
            /// # Errors
            ///
            /// - [`WrongDevice`](crate::ErrorKind::WrongDevice) for a stream of another device to which its resource
            ///   gave no access.
            /// - [`Capture`](crate::ErrorKind::Capture) while a capture on another thread has either stream, or where
            ///   one of the two is in a capture that the other cannot join.
            /// - The errors of the driver.
            #[track_caller]
            pub fn on<'a, S: $crate::order::StreamRef>(
                &'a self,
                stream: &'a S,
            ) -> $crate::error::Result<$crate::container::on::On<'a, $element, S>> {
                let _site = $crate::driver::CallSite::enter();
                $crate::container::on::On::new(self.as_slice(), stream)
            }

            /// The container, to be read and written on `stream`, which waits for the home stream and for all other
            /// use. The home stream waits for `stream` before it next touches the memory, even if the guard is
            /// forgotten.
            ///
            /// # Errors
            ///
            /// The errors of [`on`](Self::on).
            #[track_caller]
            pub fn on_mut<'a, S: $crate::order::StreamRef>(
                &'a mut self,
                stream: &'a S,
            ) -> $crate::error::Result<$crate::container::on::OnMut<'a, $element, S>> {
                let _site = $crate::driver::CallSite::enter();
                $crate::container::on::OnMut::new(self.as_mut_slice(), stream)
            }
        }

        impl$(<$parameter: $bound>)? $crate::container::view::Sealed for $name$(<$parameter>)? {}

        impl$(<$parameter: $bound>)? $crate::container::view::DeviceRead<$element> for $name$(<$parameter>)? {
            fn as_device_slice(&self) -> $crate::container::view::DeviceSlice<'_, $element> {
                self.as_slice()
            }
        }

        impl$(<$parameter: $bound>)? $crate::container::view::DeviceWrite<$element> for $name$(<$parameter>)? {
            fn as_device_slice_mut(&mut self) -> $crate::container::view::DeviceSliceMut<'_, $element> {
                self.as_mut_slice()
            }
        }
    };
}
pub(super) use container;

/// The copies to and from the host of a type that has `as_slice` and `as_device_slice_mut`. The generics of elements that
/// are written come first, then those of elements that are read.
macro_rules! host_copies {
    ([$($written:tt)*] [$($read:tt)*] $type:ty, $element:ty) => {
        impl<$($written)*> $type {
            /// Overwrites all elements with a slice of the same length, complete when this returns.
            ///
            /// # Errors
            ///
            /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch).
            /// - [`Capture`](crate::ErrorKind::Capture) on a stream that is in capture, or that a capture on another
            ///   thread has.
            /// - The errors of the copy.
            #[track_caller]
            pub fn copy_from_slice(&mut self, source: &[$element]) -> $crate::error::Result<()> {
                let _site = $crate::driver::CallSite::enter();
                let target = &mut $crate::container::view::DeviceWrite::as_device_slice_mut(self);
                $crate::container::blocking::upload(source, target)
            }
        }

        impl<$($read)*> $type {
            /// Copies all elements into a slice of the same length, complete when this returns.
            ///
            /// # Errors
            ///
            /// The errors of [`copy_from_slice`](Self::copy_from_slice).
            #[track_caller]
            pub fn copy_to_slice(&self, target: &mut [$element]) -> $crate::error::Result<()> {
                let _site = $crate::driver::CallSite::enter();
                self.as_slice().copy_to_slice(target)
            }

            /// The elements as a `Vec` on the host. Waits for the home stream.
            ///
            /// # Errors
            ///
            /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no space, and the errors of
            /// [`copy_to_slice`](Self::copy_to_slice).
            #[track_caller]
            pub fn to_vec(&self) -> $crate::error::Result<Vec<$element>> {
                let _site = $crate::driver::CallSite::enter();
                self.as_slice().to_vec()
            }
        }
    };
}
pub(super) use host_copies;
