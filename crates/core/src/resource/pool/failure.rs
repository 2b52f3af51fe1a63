//! The errors and events of a pool's failed requests.

use super::options::PoolOwner;
use super::siblings::{Others, is_nested, others, trim_others};
use super::{Asked, PoolResource, PoolStatistics};
use crate::debug_log::{POOL, deferred_event};
use crate::driver::MemoryInfo;
use crate::error::{Error, ErrorKind};
use crate::impls::Count;
use crate::layout::{DeviceLayout, Requested, SMALLER_ALIGNMENT};
use crate::pool::{Failure, MissStep};
use crate::resource::asleep;
use crate::resource::device_resource::DeviceResource;
use crate::stream::CAPTURED_ELSEWHERE;

const MORE_UPSTREAM: &str = "free some memory, or use a device or an upstream with more of it";

impl PoolOwner {
    fn noun(self) -> &'static str {
        match self {
            Self::Pool | Self::Default => "a pool",
            Self::Arena => "an arena",
            Self::FixedSize => "a pool of blocks of one size",
        }
    }

    /// The advice on memory in a capture, if the driver began none that the pool was told of.
    fn in_capture(self) -> &'static str {
        match self {
            Self::Pool | Self::Default => {
                "give this pool to Stream::capture, and make vectors on the stream that it captures, on the \
                 thread that captures; or make them before"
            }
            Self::Arena | Self::FixedSize => {
                "make vectors before the capture, or in it with a PoolResource that Stream::capture was given"
            }
        }
    }

    /// The advice on a larger maximum, if it has one.
    fn larger(self) -> &'static str {
        match self {
            Self::Arena => "build the arena with a larger arena_size",
            Self::Pool | Self::Default | Self::FixedSize => "give the pool a larger maximum_size",
        }
    }
}

/// The facts that a refusal tells of the pool and of its device.
pub(super) struct Refused {
    reserved: usize,
    live: usize,
    largest_free: usize,
    pending: usize,
    maximum: Option<usize>,
    /// `None` if the device does not tell.
    device: Option<MemoryInfo>,
    others: Others,
}

impl<U: DeviceResource + 'static> PoolResource<U> {
    fn emit_failure(&self, asked: usize, why: &'static str) {
        let (pool, device) = (self.pool.id(), self.device().ordinal());
        deferred_event!(error, target: POOL, pool, device, asked, why, "a pool cannot go on");
    }

    /// Emits the event of a failed request, and makes its error.
    #[cold]
    pub(super) fn explain(&self, failure: Failure<Error>, asked: Asked<'_>) -> Error {
        let (device, noun) = (self.device(), self.pool.upstream().owner.noun());
        let (pool, ordinal, bytes) = (self.pool.id(), device.ordinal(), asked.bytes());
        match failure {
            Failure::Upstream(error) => {
                if error.kind() == ErrorKind::ContextLost && self.pool.upstream().is_first_loss() {
                    let error = error.to_string();
                    deferred_event!(error, target: POOL, pool, device = ordinal, asked = bytes, error, "device lost");
                }
                match asked {
                    Asked::Allocation(..) => error.within(format_args!(
                        "allocating {} from {noun} on {device}",
                        Count(bytes, "byte")
                    )),
                    _ => error,
                }
            }
            Failure::Exhausted(upstream) => self.out_of_memory(upstream, asked),
            Failure::Captured => {
                deferred_event!(
                    warn, target: POOL, pool, device = ordinal, asked = bytes,
                    "refused a stream in capture"
                );
                let served = Count(bytes, "byte");
                let (what, advice) = match asked {
                    Asked::AllocationElsewhere(_, stream) => (
                        format!(
                            "serve {served} to {stream}, which is in a capture on another thread"
                        ),
                        CAPTURED_ELSEWHERE,
                    ),
                    Asked::Allocation(..) => (
                        format!("serve {served} to a stream in capture"),
                        self.pool.upstream().owner.in_capture(),
                    ),
                    _ => (
                        "give all of its memory back beside a capture".into(),
                        "trim it before the capture or after it",
                    ),
                };
                Error::new(ErrorKind::Capture, format!("{noun} on {device} cannot {what}"))
                    .with_advice(advice)
            }
            Failure::Gone => {
                self.emit_failure(bytes, "a stream is gone that memory has to be ordered after");
                Error::new(
                    ErrorKind::Driver,
                    format!("{noun} on {device} cannot order memory after a stream that is gone"),
                )
                .with_advice("an earlier error of the driver is the cause: install a subscriber of `tracing` to see it")
            }
            Failure::Asleep => asleep::error_of(device, pool),
            Failure::Crowded => {
                self.emit_failure(bytes, "there are more streams than a pool can tell apart");
                Error::new(
                    ErrorKind::Unsupported,
                    format!("{noun} on {device} has no room for another stream: 65,534 live in it"),
                )
                .with_advice("drop streams that are not used")
            }
        }
    }

    /// Whether the request is for a larger alignment than that of every block.
    fn is_over_aligned(&self, asked: Asked<'_>) -> bool {
        matches!(asked, Asked::Allocation(layout) if self.requested(layout).is_over_aligned())
    }

    fn requested(&self, layout: DeviceLayout) -> Requested {
        let usual = self.pool.settings().alignment as usize;
        Requested { bytes: layout.bytes(), alignment: layout.alignment(), usual }
    }

    /// Whether no memory of upstream could be so large that it has the request at its alignment for sure.
    fn is_aligned_past_all(&self, asked: Asked<'_>) -> bool {
        let Asked::Allocation(layout) = asked else { return false };
        let padding = layout.alignment() as u64
            - self.pool.settings().alignment.min(layout.alignment() as u64);
        let largest = self.pool.largest();
        (layout.bytes() as u64).saturating_add(padding) > largest
    }

    /// Has the other pools of the device give back free memory that the device is past, for so many bytes.
    pub(super) fn trim_others(&self, bytes: usize) {
        // In a call of a resource around this pool, whose locks the thread may have.
        if !is_nested() {
            trim_others(self.device(), self.pool.id(), (bytes, false), &mut || true);
        }
    }

    /// The memory of the other pools of the device. In a call of a resource around this pool, which may be one of them,
    /// there is none, since the outermost pool tells.
    pub(super) fn others(&self) -> Others {
        if is_nested() { Others::default() } else { others(self.device(), self.pool.id()) }
    }

    fn out_of_memory(&self, upstream: Option<Error>, asked: Asked<'_>) -> Error {
        let (error, now) = self.refusal(upstream.as_ref(), asked);
        let (pool, device, bytes) = (self.pool.id(), self.device().ordinal(), asked.bytes());
        let Refused { reserved, live, largest_free, pending, maximum, others, .. } = now;
        let (free, total) = now.device.map(|info| (info.free, info.total)).unzip();
        let steps = self.pool.settings().steps.clone();
        let why = upstream.map(|error| error.to_string());
        deferred_event!(
            warn, target: POOL, pool, device, asked = bytes, ?steps, reserved, live, pending,
            largest_free, maximum, device_free = free, device_total = total,
            others_reserved = others.reserved, others_free = others.free, upstream = why,
            "out of memory"
        );
        error
    }

    /// The error of a request that is refused, with the facts that it tells.
    pub(super) fn refusal(&self, upstream: Option<&Error>, asked: Asked<'_>) -> (Error, Refused) {
        let (device, owner) = (self.device(), self.pool.upstream().owner);
        let PoolStatistics { reserved, live, largest_free, .. } = self.statistics();
        let limits = &self.pool.settings().limits;
        let now = Refused {
            reserved,
            live,
            largest_free,
            pending: self.pool.pending_bytes(),
            maximum: limits.has_maximum().then(|| limits.maximum()),
            device: device.memory_info().ok(),
            others: self.others(),
        };
        let counted = |bytes| Count(bytes, "byte");
        let requested = match asked {
            Asked::Allocation(layout) => self.requested(layout),
            _ => Requested { bytes: asked.bytes(), alignment: 1, usual: 1 },
        };
        let limit = match now.maximum {
            Some(maximum) => format!(", whose maximum is {}", counted(maximum)),
            None => String::new(),
        };
        let last = upstream
            .map_or_else(String::new, |error| format!("; its upstream: {}", error.message()));
        let of_device = match now.device {
            // Most upstreams of the device say it.
            Some(info) if !last.contains(" free of its ") => format!(
                "; the device has {} free of its {}",
                Count(info.free, "byte"),
                Count(info.total, "byte")
            ),
            _ => String::new(),
        };
        let of_others = match now.others {
            Others { reserved: 0, .. } => String::new(),
            Others { reserved, free } => format!(
                "; other pools of the device have {}, {} of them free",
                counted(reserved),
                counted(free)
            ),
        };
        let message = format!(
            "allocating {requested} from {} on {device}{limit}: it has {}, {} of them in use and {} \
             pending, and its largest free block has {}{of_others}{of_device}{last}",
            owner.noun(),
            counted(reserved),
            counted(live),
            counted(now.pending),
            counted(largest_free),
        );
        let error = Error::new(ErrorKind::OutOfMemory, message);
        let error = match upstream.and_then(Error::driver) {
            Some(driver) => error.with_driver(driver.clone()),
            None => error,
        };
        (error.with_advice(self.advice(&now, upstream, asked)), now)
    }

    /// The advice that would have helped.
    fn advice(&self, now: &Refused, upstream: Option<&Error>, asked: Asked<'_>) -> String {
        let (bytes, owner) = (asked.bytes(), self.pool.upstream().owner);
        let steps = &self.pool.settings().steps;
        let is_pool = matches!(owner, PoolOwner::Pool | PoolOwner::Default);
        let waits = steps.contains(&MissStep::Trim);
        let is_over_aligned = self.is_over_aligned(asked);
        // Other threads go on: of two moments.
        let own_free = now.reserved.saturating_sub(now.live);
        let fits_pending = now.pending > 0 && own_free >= bytes;
        let device_free = now.device.map_or(0, |info| info.free);
        let fits_others = now.others.free > 0
            && now.others.free.saturating_add(device_free).saturating_add(own_free) >= bytes;
        match (now.maximum, upstream) {
            _ if self.pool.aligned_units(bytes).is_none() => {
                let largest = Count(self.pool.largest() as usize, "byte");
                format!(
                    "no block of it can have more than {largest}: ask its upstream, or for less"
                )
            }
            _ if is_over_aligned && self.is_aligned_past_all(asked) => SMALLER_ALIGNMENT.into(),
            (Some(maximum), _) if bytes > maximum => format!("ask for less, or {}", owner.larger()),
            (_, None) if now.largest_free >= bytes && is_over_aligned => match is_pool {
                true => "ask for a smaller alignment, or build the pool with that alignment".into(),
                false => SMALLER_ALIGNMENT.into(),
            },
            (_, None) if now.largest_free >= bytes => {
                "its free blocks wait for other streams: synchronise those, or give the pool a miss policy \
                 with MissStep::Ordered and MissStep::Wait"
                    .into()
            }
            _ if is_pool && fits_pending && !waits => {
                "wait for the streams that use what is pending, or give the pool a miss policy with \
                 MissStep::Trim, which waits"
                    .into()
            }
            (_, Some(error)) if error.driver().is_some() && fits_others => {
                "trim the other pools of the device, or give the pool a miss policy with MissStep::Trim, \
                 which waits for their streams"
                    .into()
            }
            (Some(maximum), None)
                if is_pool
                    && !self.maps_handles()
                    && maximum - now.live.min(maximum) >= bytes =>
            {
                format!(
                    "its free memory is in pieces: take the pool over a VirtualResource, which joins \
                     them, or {}",
                    owner.larger()
                )
            }
            (Some(_), None) => format!("free some memory, or {}", owner.larger()),
            (_, Some(upstream)) => upstream.advice().unwrap_or(MORE_UPSTREAM).into(),
            (None, None) if steps.contains(&MissStep::GrowToMaximum) => MORE_UPSTREAM.into(),
            (None, None) => {
                "free some memory, or give the pool a miss policy with MissStep::Grow".into()
            }
        }
    }
}
