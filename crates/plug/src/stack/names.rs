//! The resources and adaptors that a text can name, and their options.
//!
//! The names are those of the builders' methods, and `build` hands each value to the method of its name.

/// One of [`LAYERS`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerKind {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) make: Make,
    pub(super) options: &'static [OptionKind],
}

/// The place of a name in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Innermost, over no other.
    Source,
    /// Around its upstream, as in `pool(cuda)`.
    Around,
    /// After a bar, as in `cuda | limiting(1GiB)`.
    Adaptor,
}

/// The resource or adaptor that a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    Source(Source),
    Over(Over),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Cuda,
    Virtual,
    Async,
    AsyncDefault,
    Managed,
    System,
    Pinned,
    PinnedPool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Pool,
    FixedSize,
    Binning,
    Arena,
    Aligned,
    Checked,
    Limiting,
    Logging,
    Prefetch,
    Statistics,
    ThreadSafe,
    Traced,
    Tracking,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OptionKind {
    pub(super) name: &'static str,
    pub(super) short: Option<&'static str>,
    pub(super) value: ValueKind,
    pub(super) given: Given,
}

/// The way to give an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// By its name, or not at all.
    ByName,
    /// Without its name, too. The values without names are these options, in their order.
    ByPlace,
    /// As `ByPlace`, and never left out.
    Always,
}

/// The kind of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Bytes.
    Size,
    /// Bytes, or a part of the device's memory.
    Memory,
    Number,
    Switch,
    /// One of these.
    Name(&'static [&'static str]),
    /// A byte, or `off`.
    Fill,
    Path,
}

impl LayerKind {
    pub(super) fn is_adaptor(&self) -> bool {
        self.place == Place::Adaptor
    }

    /// The kind of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        LAYERS.iter().find(|kind| kind.name == name)
    }

    /// The index of the option of this name, short or long.
    pub(super) fn option(&self, name: &str) -> Option<usize> {
        self.options.iter().position(|option| option.name == name || option.short == Some(name))
    }

    /// The options that can be given without a name, by their indices, in order.
    pub(super) fn by_place(&self) -> impl Iterator<Item = usize> + '_ {
        let by_place = |(_, option): &(usize, &OptionKind)| option.given != Given::ByName;
        self.options.iter().enumerate().filter(by_place).map(|(index, _)| index)
    }
}

const fn option(name: &'static str, value: ValueKind) -> OptionKind {
    OptionKind { name, short: None, value, given: Given::ByName }
}

const fn short(name: &'static str, short: &'static str, value: ValueKind) -> OptionKind {
    OptionKind { name, short: Some(short), value, given: Given::ByName }
}

const fn by_place(name: &'static str, value: ValueKind) -> OptionKind {
    OptionKind { name, short: None, value, given: Given::ByPlace }
}

const fn always(name: &'static str, value: ValueKind) -> OptionKind {
    OptionKind { name, short: None, value, given: Given::Always }
}

const fn source(name: &'static str, source: Source, options: &'static [OptionKind]) -> LayerKind {
    LayerKind { name, place: Place::Source, make: Make::Source(source), options }
}

const fn around(name: &'static str, over: Over, options: &'static [OptionKind]) -> LayerKind {
    LayerKind { name, place: Place::Around, make: Make::Over(over), options }
}

const fn adaptor(name: &'static str, over: Over, options: &'static [OptionKind]) -> LayerKind {
    LayerKind { name, place: Place::Adaptor, make: Make::Over(over), options }
}

/// The upstream of a resource that is given none.
pub(super) static DEFAULT_UPSTREAM: (&LayerKind, Source) = (&LAYERS[0], Source::Cuda);

use ValueKind::{Fill, Memory, Name, Number, Path, Size, Switch};

pub(super) static LAYERS: [LayerKind; 21] = [
    source("cuda", Source::Cuda, &[]),
    source("virtual", Source::Virtual, &[]),
    source(
        "async",
        Source::Async,
        &[
            short("initial_size", "initial", Memory),
            option("release_threshold", Memory),
            option("reuse_follow_event_dependencies", Switch),
            option("reuse_opportunistic", Switch),
            option("reuse_internal_dependencies", Switch),
            option("managed", Switch),
            #[cfg(unix)]
            option("shareable", Switch),
            option("fabric", Switch),
        ],
    ),
    source("async_default", Source::AsyncDefault, &[]),
    source("managed", Source::Managed, &[option("oversubscribe", Switch)]),
    source("system", Source::System, &[option("headroom", Memory)]),
    source(
        "pinned",
        Source::Pinned,
        &[option("portable", Switch), option("mapped", Switch), option("write_combined", Switch)],
    ),
    source(
        "pinned_pool",
        Source::PinnedPool,
        &[
            short("initial_size", "initial", Size),
            short("maximum_size", "max", Size),
            option("growth_step", Size),
            option("quarantine_bytes", Size),
            option("wait_for_device", Switch),
            option("magazine_entries", Number),
            option("magazine_bytes", Size),
            option("portable", Switch),
            option("mapped", Switch),
            option("write_combined", Switch),
        ],
    ),
    around(
        "pool",
        Over::Pool,
        &[
            short("initial_size", "initial", Memory),
            short("maximum_size", "max", Memory),
            option("soft_limit", Memory),
            option("release_threshold", Memory),
            option("growth_step", Memory),
            option("alignment", Size),
            option("miss_policy", Name(&["default", "rmm"])),
            option("magazine_entries", Number),
            option("magazine_bytes", Size),
            option("handles", Name(&["auto", "on", "off"])),
        ],
    ),
    around(
        "fixed_size",
        Over::FixedSize,
        &[
            option("block_size", Size),
            option("blocks_per_chunk", Number),
            option("initial_blocks", Number),
        ],
    ),
    around(
        "binning",
        Over::Binning,
        &[option("min_exponent", Number), option("max_exponent", Number)],
    ),
    around("arena", Over::Arena, &[option("arena_size", Memory), option("dump_on_failure", Path)]),
    adaptor(
        "aligned",
        Over::Aligned,
        &[always("alignment", Size), by_place("threshold_bytes", Size)],
    ),
    adaptor(
        "checked",
        Over::Checked,
        &[option("require_same_stream", Switch), option("poison", Fill)],
    ),
    adaptor("limiting", Over::Limiting, &[always("limit", Memory), option("alignment", Size)]),
    adaptor(
        "logging",
        Over::Logging,
        &[
            by_place("path", Path),
            option("format", Name(&["rmm", "events"])),
            option("capacity", Number),
            option("locations", Switch),
        ],
    ),
    adaptor("prefetch", Over::Prefetch, &[]),
    adaptor("statistics", Over::Statistics, &[]),
    adaptor("thread_safe", Over::ThreadSafe, &[]),
    adaptor("traced", Over::Traced, &[]),
    adaptor("tracking", Over::Tracking, &[option("capture_backtraces", Switch)]),
];
