//! Resources by the text of a stack.

use super::error::locate;
use super::layer::{Layer, Layers};
use super::names::{Over, Source};
use super::parse;
use super::resource_stack::{AnyResource, Built, ResourceStack};
use super::text::StackText;
use super::value::Value;
use crate::adaptor::{
    AlignedAdaptor, CheckedAdaptor, LimitingAdaptor, LocalDeviceResource, LogFormat,
    LoggingAdaptor, PrefetchAdaptor, StatisticsAdaptor, ThreadSafeAdaptor, TracedAdaptor,
    TrackingAdaptor,
};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::DEFAULT_ALIGNMENT;
use crate::layout::DeviceLayout;
use crate::pinned::{PinnedPool, PinnedResource};
use crate::resource::{
    CudaResource, DeviceBlock, DeviceResource, Handles, Mappable, MissPolicy, PoolResource,
    VirtualResource,
};
use crate::stream::Stream;
use crate::sync::Arc;
use aquifer_mr::{
    ArenaResource, AsyncResource, BinningResource, FixedSizeResource, ManagedResource,
    SystemResource,
};
use std::error::Error as _;

impl StackText {
    /// Makes the resources on `device`, from the inside out.
    ///
    /// ```
    /// use aquifer::{Device, ErrorKind, mr::StackText};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let text: StackText = "pool(cuda, max=1000) | statistics".parse()?;
    /// let error = text.build(&device).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    /// assert!(error.to_string().starts_with("making `pool`, at column 1 of a stack's text: "));
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of the builders, and of asking the device for its memory where the text has a part
    /// of it. Each error names the resource or the adaptor and its column in the text as it was
    /// written. Where no call of the driver failed, the error's source is a
    /// [`StackTextError`](crate::mr::StackTextError).
    pub fn build(&self, device: &Device) -> Result<ResourceStack> {
        let Layers { first, others } = self.layers();
        let options = Options { layer: first, device };
        let made = make_source(options).map_err(|error| self.failed(first, error))?;
        let mut top = made.resource();
        let mut layers = vec![made];
        for layer in others {
            let options = Options { layer, device };
            let made = make_over(options, top).map_err(|error| self.failed(layer, error))?;
            top = made.resource();
            layers.push(made);
        }
        Ok(ResourceStack::new(Some(self.clone()), top, layers))
    }

    fn failed<M>(&self, layer: &Layer<M>, error: Error) -> Error {
        failed(self.source(), layer, error)
    }
}

impl ResourceStack {
    /// The stack with more resources and adaptors around it, from the inside out, such as
    /// `pool(max=1GiB) | statistics`. The methods of the returned stack also reach the layers of this one.
    ///
    /// ```
    /// use aquifer::{Device, mr::StackText};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// let shared = "pool(cuda)".parse::<StackText>()?.build(&device)?;
    /// let limited = shared.with("limiting(64MiB) | statistics")?;
    /// assert_eq!(limited.text().unwrap().to_string(), "pool(cuda) | limiting(64MiB) | statistics");
    /// assert!(limited.pool().is_some() && shared.statistics().is_none());
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of reading a [`StackText`] and of [`StackText::build`]. A stack has the same
    /// limits of length as a text.
    pub fn with(&self, text: &str) -> Result<Self> {
        self.with_layers(text, read_around(text)?)
    }

    /// Does the work of [`with`](Self::with), and makes the text [shareable](StackText::shareable).
    #[doc(hidden)]
    pub fn with_shareable(&self, text: &str) -> Result<Self> {
        let mut layers = read_around(text)?;
        if let (Some(layer), Mappable::Plain) = (layers.first_mut(), self.resource().mappable()) {
            layer.make_shareable();
        }
        self.with_layers(text, layers)
    }

    fn with_layers(&self, text: &str, layers: Vec<Layer<Over>>) -> Result<Self> {
        let combined = self.text().map(|known| known.with(&layers)).transpose()?;
        let mut top = self.resource().clone();
        let mut made = Vec::with_capacity(layers.len());
        for layer in &layers {
            let options = Options { layer, device: self.device() };
            let one = make_over(options, top).map_err(|error| failed(text, layer, error))?;
            top = one.resource();
            made.push(one);
        }
        Ok(Self::over(combined, top, made, &[self]))
    }
}

fn read_around(text: &str) -> Result<Vec<Layer<Over>>> {
    parse::around(text).map_err(|problem| problem.into_error(text, ErrorKind::InvalidArgument))
}

/// An error of making a layer, with its place in the text.
fn failed<M>(text: &str, layer: &Layer<M>, error: Error) -> Error {
    let wrong = locate(text, layer.at.clone(), error.message().to_owned());
    let (name, column) = (layer.kind.name, wrong.column());
    let has_cause = error.driver().is_none() && error.source().is_some();
    let error = error.within(format_args!("making `{name}`, at column {column} of a stack's text"));
    // What a resource of the program's failed of stays the source.
    if has_cause { error } else { error.with_cause(wrong) }
}

/// The options of a layer, as the builders take them.
#[derive(Clone, Copy)]
struct Options<'a, M> {
    layer: &'a Layer<M>,
    device: &'a Device,
}

impl<'a, M> Options<'a, M> {
    /// Bytes.
    fn size(&self, name: &str) -> Result<Option<usize>> {
        match self.layer.value(name) {
            Some(Value::Size(bytes)) => Ok(Some(*bytes)),
            Some(Value::Part(part)) => {
                let total = self.device.memory_info()?.total;
                let beside = match self.layer.value("alignment") {
                    Some(Value::Size(alignment)) if alignment.is_power_of_two() => *alignment,
                    _ => DEFAULT_ALIGNMENT,
                };
                Ok(Some(part.of(total as u64, beside.max(DEFAULT_ALIGNMENT))))
            }
            _ => Ok(None),
        }
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        Ok(match self.layer.value(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        })
    }

    /// An exponent. A number that does not fit is above all that a builder takes.
    fn exponent(&self, name: &str) -> Result<Option<u32>> {
        Ok(self.number(name)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn switch(&self, name: &str) -> Result<Option<bool>> {
        Ok(match self.layer.value(name) {
            Some(Value::Switch(on)) => Some(*on),
            _ => None,
        })
    }

    fn policy(&self, name: &str) -> Result<Option<MissPolicy>> {
        Ok(match self.layer.value(name) {
            Some(Value::Name("rmm")) => Some(MissPolicy::rmm()),
            Some(Value::Name(_)) => Some(MissPolicy::default()),
            _ => None,
        })
    }

    fn handles(&self, name: &str) -> Result<Option<Handles>> {
        Ok(match self.layer.value(name) {
            Some(Value::Name("on")) => Some(Handles::On),
            Some(Value::Name("off")) => Some(Handles::Off),
            Some(Value::Name(_)) => Some(Handles::Auto),
            _ => None,
        })
    }

    fn format(&self, name: &str) -> Result<Option<LogFormat>> {
        Ok(match self.layer.value(name) {
            Some(Value::Name("events")) => Some(LogFormat::Events),
            Some(Value::Name(_)) => Some(LogFormat::Rmm),
            _ => None,
        })
    }

    fn fill(&self, name: &str) -> Result<Option<Option<u8>>> {
        Ok(match self.layer.value(name) {
            Some(Value::Fill(byte)) => Some(*byte),
            _ => None,
        })
    }

    fn path(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(match self.layer.value(name) {
            Some(Value::Path(path)) => Some(path),
            _ => None,
        })
    }
}

/// Hands each option that is given to the builder's method of its name.
macro_rules! set {
    ($builder:expr, $options:expr, $($read:ident: $($name:ident),+;)*) => {{
        let mut builder = $builder;
        $($(
            if let Some(value) = $options.$read(stringify!($name))? {
                builder = builder.$name(value);
            }
        )+)*
        builder
    }};
}

/// Makes a resource that is over no other.
fn make_source(options: Options<'_, Source>) -> Result<Built> {
    let device = options.device;
    let pinned = || {
        set!(PinnedResource::builder(device), options, switch: portable, mapped, write_combined;)
            .build()
    };
    Ok(match options.layer.make {
        Source::Cuda => Built::Plain(CudaResource::new(device).into_shared()),
        Source::Virtual => Built::Plain(VirtualResource::new(device)?.into_shared()),
        Source::Async => {
            let builder = set!(
                AsyncResource::builder(device), options,
                size: initial_size, release_threshold;
                switch: reuse_follow_event_dependencies, reuse_opportunistic,
                    reuse_internal_dependencies, managed, fabric;
            );
            #[cfg(unix)]
            let builder = set!(builder, options, switch: shareable;);
            Built::Async(Arc::new(builder.build()?))
        }
        Source::AsyncDefault => Built::Async(Arc::new(AsyncResource::default_pool(device)?)),
        Source::Managed => Built::Plain(
            set!(ManagedResource::builder(device), options, switch: oversubscribe;)
                .build()?
                .into_shared(),
        ),
        Source::System => Built::Plain(
            set!(SystemResource::builder(device), options, size: headroom;).build()?.into_shared(),
        ),
        Source::Pinned => Built::Pinned(pinned()?),
        Source::PinnedPool => Built::PinnedPool(
            set!(
                PinnedPool::builder(pinned()?), options,
                size: initial_size, maximum_size, growth_step, quarantine_bytes, magazine_bytes;
                number: magazine_entries; switch: wait_for_device;
            )
            .build()?,
        ),
    })
}

/// Makes a resource or an adaptor over another.
fn make_over(options: Options<'_, Over>, upstream: AnyResource) -> Result<Built> {
    Ok(match options.layer.make {
        Over::Pool => Built::Pool(
            set!(
                PoolResource::builder(upstream), options,
                size: initial_size, maximum_size, soft_limit, release_threshold, growth_step, alignment, magazine_bytes;
                number: magazine_entries;
                policy: miss_policy;
                handles: handles;
            )
            .build()?,
        ),
        Over::FixedSize => Built::FixedSize(
            set!(
                FixedSizeResource::builder(upstream), options,
                size: block_size;
                number: blocks_per_chunk, initial_blocks;
            )
            .build()?,
        ),
        Over::Binning => {
            let min = options.exponent("min_exponent")?.unwrap_or(18);
            let max = options.exponent("max_exponent")?.unwrap_or(22);
            let builder = BinningResource::builder(upstream).fixed_size_bins(min, max);
            Built::Binning(builder.build()?)
        }
        Over::Arena => Built::Arena(
            set!(
                ArenaResource::builder(upstream), options,
                size: arena_size;
                path: dump_on_failure;
            )
            .build()?,
        ),
        Over::Aligned => {
            let alignment = options.size("alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
            let threshold = options.size("threshold_bytes")?.unwrap_or(0);
            let adaptor = AlignedAdaptor::new(upstream, alignment, threshold)?;
            Built::Plain(adaptor.into_shared())
        }
        Over::Checked => Built::Checked(
            set!(
                CheckedAdaptor::builder(upstream), options,
                switch: require_same_stream;
                fill: poison;
            )
            .build(),
        ),
        Over::Limiting => {
            let limit = options.size("limit")?.unwrap_or(usize::MAX);
            let alignment = options.size("alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
            Built::Limiting(LimitingAdaptor::with_alignment(upstream, limit, alignment)?)
        }
        Over::Logging => Built::Logging(
            set!(
                LoggingAdaptor::builder(upstream), options,
                path: path;
                format: format;
                number: capacity;
                switch: locations;
            )
            .build()?,
        ),
        Over::Prefetch => Built::Plain(PrefetchAdaptor::new(upstream).into_shared()),
        Over::Statistics => Built::Statistics(StatisticsAdaptor::new(upstream)),
        Over::ThreadSafe => {
            Built::Plain(ThreadSafeAdaptor::new(OneAtATime(upstream)).into_shared())
        }
        Over::Traced => Built::Plain(TracedAdaptor::new(upstream).into_shared()),
        Over::Tracking => Built::Tracking(
            set!(TrackingAdaptor::builder(upstream), options, switch: capture_backtraces;).build(),
        ),
    })
}

/// A resource, of which an adaptor makes one call at a time.
#[derive(Debug)]
struct OneAtATime(AnyResource);

// SAFETY: the resource's own promises, of one call at a time as of many.
unsafe impl LocalDeviceResource for OneAtATime {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn allocate(&mut self, stream: &Stream, layout: DeviceLayout) -> Result<DeviceBlock> {
        self.0.allocate(stream, layout)
    }

    unsafe fn deallocate(&mut self, stream: &Stream, block: DeviceBlock) {
        // SAFETY: the caller's promise, unchanged.
        unsafe { self.0.deallocate(stream, block) }
    }
}
