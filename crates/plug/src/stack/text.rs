//! The text of a stack, read.

use super::error::Problem;
use super::layer::{Layer, Layers};
use super::names::{Given, Over, Place, Source};
use super::parse;
use crate::error::{Error, ErrorKind, Result};
use crate::impls::variable;
use crate::sync::Arc;
use std::fmt;
use std::str::FromStr;

/// A stack of resources as a short text, read and checked, such as
/// `pool(cuda, initial=1GiB, max=80%) | limiting(40GiB) | statistics | logging(file)`.
///
/// [`parse`](str::parse) reads a text, and [`from_env`](Self::from_env) reads the
/// variable `AQUIFER_STACK`. [`build`](Self::build) makes the resources.
/// [`Display`](fmt::Display) writes the canonical text, with long names, in the order
/// of the tables below, with every upstream. Two texts are equal if their canonical
/// texts are.
///
/// ```
/// use aquifer::{Device, DeviceVec, mr::StackText};
///
/// let text: StackText = "pool(max=80%) | limiting(1GiB) | statistics".parse()?;
/// assert_eq!(text.to_string(), "pool(cuda, maximum_size=80%) | limiting(1GiB) | statistics");
///
/// let device = Device::detect_or_simulate()?;
/// let stack = text.build(&device)?;
/// let vec = DeviceVec::<f32>::zeroed_in(&device.new_stream()?, 1024, stack.clone())?;
/// assert_eq!(stack.counters().unwrap().bytes.current, 4096);
/// # drop(vec);
/// # Ok::<(), aquifer::Error>(())
/// ```
///
/// # Grammar
///
/// ```text
/// stack    = resource { "|" adaptor }
/// resource = name [ "(" [ argument { "," argument } ] ")" ]
/// adaptor  = name [ "(" [ argument { "," argument } ] ")" ]
/// argument = stack | value | option "=" value
/// value    = word | '"' text '"'
/// ```
///
/// The resource is innermost, and each adaptor is around all that stands before it. The argument that is a stack is a
/// resource's upstream. Without one the upstream is `cuda`. White space between words and marks is free. A
/// word is any characters but white space and `( ) , | = "`. Any value may be in quotes, where `\"` and `\\`
/// are a quote and a backslash. Names are in small letters.
///
/// A text is a tree without names for its parts, so it has no circles. It has at most 32 resources
/// and adaptors, of which 4 are resources with an upstream. It has at most 1 048 576 bytes, and
/// 4096 bytes in a value. Closures have no text. So
/// [`CallbackResource`](crate::mr::CallbackResource),
/// [`FailureCallbackAdaptor`](crate::mr::FailureCallbackAdaptor), a bin's own resource and a
/// handler of misuses are for programs alone.
///
/// # Resources
///
/// Options are those of the builders, which say what they mean and what holds without them.
///
/// | name | what it is | upstream | options |
/// | --- | --- | --- | --- |
/// | `cuda` | [`CudaResource`](crate::CudaResource) | | |
/// | `virtual` | [`VirtualResource`](crate::mr::VirtualResource) | | |
/// | `async` | [`AsyncResource`](crate::mr::AsyncResource), a driver pool of its own | | `initial_size` (or `initial`), `release_threshold`: memory; `reuse_follow_event_dependencies`, `reuse_opportunistic`, `reuse_internal_dependencies`, `managed`, `fabric`, `shareable` (on Unix): switch |
/// | `async_default` | the device's default driver pool | | |
/// | `managed` | [`ManagedResource`](crate::mr::ManagedResource) | | `oversubscribe`: switch |
/// | `system` | [`SystemResource`](crate::mr::SystemResource) | | `headroom`: memory |
/// | `pinned` | [`PinnedResource`](crate::pinned::PinnedResource) | | `portable`, `mapped`, `write_combined`: switch |
/// | `pinned_pool` | [`PinnedPool`](crate::pinned::PinnedPool) over a resource with the options of `pinned` | | `initial_size` (or `initial`), `maximum_size` (or `max`), `growth_step`, `quarantine_bytes`, `magazine_bytes`: size; `magazine_entries`: number; `wait_for_device`, `portable`, `mapped`, `write_combined`: switch |
/// | `pool` | [`PoolResource`](crate::PoolResource) | yes | `initial_size` (or `initial`), `maximum_size` (or `max`), `soft_limit`, `release_threshold`, `growth_step`: memory; `alignment`, `magazine_bytes`: size; `magazine_entries`: number; `miss_policy`: `default` or `rmm`; `handles`: `auto`, `on` or `off` |
/// | `fixed_size` | [`FixedSizeResource`](crate::mr::FixedSizeResource) | yes | `block_size`: size; `blocks_per_chunk`, `initial_blocks`: number |
/// | `binning` | [`BinningResource`](crate::mr::BinningResource) with fixed-size bins | yes | `min_exponent`, 18 unless given, and `max_exponent`, 22 unless given: number |
/// | `arena` | [`ArenaResource`](crate::mr::ArenaResource) | yes | `arena_size`: memory; `dump_on_failure`: path |
///
/// # Adaptors
///
/// | name | what it is | options |
/// | --- | --- | --- |
/// | `aligned` | [`AlignedAdaptor`](crate::mr::AlignedAdaptor) | `alignment`: size, always given; `threshold_bytes`: size, 0 unless given |
/// | `checked` | [`CheckedAdaptor`](crate::mr::CheckedAdaptor) | `require_same_stream`: switch; `poison`: `off`, or a byte as `0xdd` or `221` |
/// | `limiting` | [`LimitingAdaptor`](crate::mr::LimitingAdaptor) | `limit`: memory, always given; `alignment`: size |
/// | `logging` | [`LoggingAdaptor`](crate::mr::LoggingAdaptor) | `path`: path, of the environment unless given; `format`: `rmm` or `events`; `capacity`: number; `locations`: switch |
/// | `prefetch` | [`PrefetchAdaptor`](crate::mr::PrefetchAdaptor) | |
/// | `statistics` | [`StatisticsAdaptor`](crate::mr::StatisticsAdaptor) | |
/// | `thread_safe` | [`ThreadSafeAdaptor`](crate::mr::ThreadSafeAdaptor): one call at a time to all below, which no resource of a text needs | |
/// | `traced` | [`TracedAdaptor`](crate::mr::TracedAdaptor) | |
/// | `tracking` | [`TrackingAdaptor`](crate::mr::TrackingAdaptor) | `capture_backtraces`: switch |
///
/// `alignment` and `threshold_bytes` of `aligned`, `limit` of `limiting` and `path` of `logging` need
/// no name, in this order. An example is `aligned(4KiB, 64KiB)`. Every other option needs its name.
///
/// # Values
///
/// | value | how it is written |
/// | --- | --- |
/// | size | bytes: digits, or a number with a unit, which may have a point: `4096`, `512MiB`, `1.5GiB`. The units are `B`, `KiB MiB GiB TiB` of 1024 and `KB MB GB TB` of 1000 each. A size is a whole number of bytes that fits in `usize`: there is no rounding, no sign and no exponent |
/// | memory | a size, or a part of the device's memory, used or free: `0%` to `100%`, with six digits after the point at most. It is rounded down to a multiple of 256 bytes, or of the `alignment` beside it if that is more |
/// | number | digits |
/// | switch | `true` or `on`, `false` or `off` |
/// | path | a word, or a text in quotes: `"my logs/today, first.csv"` |
///
/// # Errors
///
/// An error of the text has a [`StackTextError`](crate::mr::StackTextError) as its source, which has the column.
/// An error of [`build`](Self::build) names the resource or the adaptor and its column.
///
/// ```
/// use aquifer::{ErrorKind, mr::StackText};
///
/// let error = "pool(cuda, initial=1e99GiB)".parse::<StackText>().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
/// assert!(error.to_string().starts_with("column 20 of a stack's text: initial_size: \"1e99GiB\" has the unit"));
/// ```
#[derive(Clone)]
pub struct StackText {
    /// The text as it was written, for the columns of later errors.
    source: Arc<str>,
    layers: Layers,
}

impl StackText {
    /// The variable of [`from_env`](Self::from_env).
    pub const VARIABLE: &'static str = "AQUIFER_STACK";

    /// The text of the variable `AQUIFER_STACK`, or `None` if it is not set, or empty.
    ///
    /// ```
    /// use aquifer::{Device, mr::{StackText, set_current_device_resource}};
    ///
    /// let device = Device::detect_or_simulate()?;
    /// if let Some(text) = StackText::from_env()? {
    ///     set_current_device_resource(text.build(&device)?);
    /// }
    /// # Ok::<(), aquifer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Environment`] if the text is wrong.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(value) = variable(Self::VARIABLE) else { return Ok(None) };
        let text = value.into_string().map_err(|value| {
            let value = value.display();
            let what = format!("AQUIFER_STACK is no Unicode text: {:?}", value.to_string());
            Error::new(ErrorKind::Environment, what).with_advice("write it in UTF-8, or unset it")
        })?;
        let wrong = |problem: Problem| {
            problem.into_error(&text, ErrorKind::Environment).within("AQUIFER_STACK")
        };
        Self::read(&text).map(Some).map_err(wrong)
    }

    fn read(text: &str) -> Result<Self, Problem> {
        Ok(Self { source: text.into(), layers: parse::stack(text)? })
    }

    /// The text with `handles=off` for a `pool` over `cuda` that says nothing of handles, so that `cuIpcGetMemHandle` shares
    /// its memory. For libraries over this crate, whose hosts call that.
    #[doc(hidden)]
    pub fn shareable(mut self) -> Self {
        if self.layers.first.make == Source::Cuda
            && let Some(layer) = self.layers.others.first_mut()
        {
            layer.make_shareable();
        }
        self
    }

    /// The text of these with `layers` around them.
    pub(super) fn with(&self, layers: &[Layer<Over>]) -> Result<Self> {
        let mut combined = self.clone();
        combined.layers.others.extend(layers.iter().cloned());
        // Read again, so that each layer's place is of the new text, and its limits hold.
        combined.to_string().parse()
    }

    /// The text as it was written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn layers(&self) -> &Layers {
        &self.layers
    }
}

impl FromStr for StackText {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::read(text).map_err(|problem| problem.into_error(text, ErrorKind::InvalidArgument))
    }
}

impl PartialEq for StackText {
    fn eq(&self, other: &Self) -> bool {
        self.layers == other.layers
    }
}

impl Eq for StackText {}

/// The canonical text.
impl fmt::Display for StackText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layers { first, others } = &self.layers;
        let around = |layer: &&Layer<Over>| layer.kind.place == Place::Around;
        for layer in others.iter().rev().filter(around) {
            write!(f, "{}(", layer.kind.name)?;
        }
        f.write_str(first.kind.name)?;
        write_options(f, first, "(", ")")?;
        for layer in others {
            if layer.kind.is_adaptor() {
                write!(f, " | {}", layer.kind.name)?;
                write_options(f, layer, "(", ")")?;
            } else {
                write_options(f, layer, ", ", "")?;
                f.write_str(")")?;
            }
        }
        Ok(())
    }
}

/// Writes the options of a layer, if it has any, between `before` and `after`.
fn write_options<M>(
    f: &mut fmt::Formatter<'_>,
    layer: &Layer<M>,
    before: &str,
    after: &str,
) -> fmt::Result {
    for (position, (index, value)) in layer.values.iter().enumerate() {
        f.write_str(if position == 0 { before } else { ", " })?;
        match layer.kind.options.get(*index) {
            Some(option) if option.given == Given::ByName => write!(f, "{}={value}", option.name)?,
            _ => write!(f, "{value}")?,
        }
    }
    f.write_str(if layer.values.is_empty() { "" } else { after })
}

/// The canonical text.
impl fmt::Debug for StackText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StackText").field(&format_args!("{self}")).finish()
    }
}
