//! The errors and events of a pool's failed requests.

use super::options::PoolOwner;
use super::{Asked, PoolResource, PoolStatistics};
use crate::debug_log::{POOL, deferred_event};
use crate::error::{Error, ErrorKind};
use crate::impls::Count;
use crate::layout::{DeviceLayout, Requested, SMALLER_ALIGNMENT};
use crate::pool::{Failure, MissStep};
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

    /// How memory comes into a capture, where the driver began none that it was declared to.
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

    /// How its maximum is raised, if it has one.
    fn larger(self) -> &'static str {
        match self {
            Self::Arena => "build the arena with a larger arena_size",
            Self::Pool | Self::Default | Self::FixedSize => "give the pool a larger maximum_size",
        }
    }
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

    fn out_of_memory(&self, upstream: Option<Error>, asked: Asked<'_>) -> Error {
        let (pool, device, owner) = (self.pool.id(), self.device(), self.pool.upstream().owner);
        let PoolStatistics { reserved, live, largest_free, .. } = self.statistics();
        let settings = self.pool.settings();
        let (maximum, has_maximum) = (settings.limits.maximum(), settings.limits.has_maximum());
        let (counted, bytes) = (|bytes| Count(bytes, "byte"), asked.bytes());
        let advice = match (has_maximum, &upstream) {
            _ if self.pool.aligned_units(bytes).is_none() => {
                let largest = counted(self.pool.largest() as usize);
                format!("no block of it can have more than {largest}: ask its upstream, or for less")
            }
            _ if self.is_over_aligned(asked) && self.is_aligned_past_all(asked) => {
                SMALLER_ALIGNMENT.into()
            }
            (true, _) if bytes > maximum => format!("ask for less, or {}", owner.larger()),
            (_, None) if largest_free >= bytes && self.is_over_aligned(asked) => {
                match owner {
                    PoolOwner::Pool | PoolOwner::Default => {
                        "ask for a smaller alignment, or build the pool with that alignment".into()
                    }
                    PoolOwner::Arena | PoolOwner::FixedSize => SMALLER_ALIGNMENT.into(),
                }
            }
            (_, None) if largest_free >= bytes => {
                "its free blocks wait for other streams: synchronise those, or give the pool a miss policy \
                 with MissStep::Ordered and MissStep::Wait"
                    .into()
            }
            (true, None) => format!("free some memory, or {}", owner.larger()),
            (_, Some(upstream)) => upstream.advice().unwrap_or(MORE_UPSTREAM).into(),
            (false, None) if settings.steps.contains(&MissStep::GrowToMaximum) => MORE_UPSTREAM.into(),
            (false, None) => {
                "free some memory, or give the pool a miss policy with MissStep::Grow".into()
            }
        };
        let limit = match has_maximum {
            true => format!(", whose maximum is {}", counted(maximum)),
            false => String::new(),
        };
        let requested = match asked {
            Asked::Allocation(layout) => self.requested(layout),
            _ => Requested { bytes, alignment: 1, usual: 1 },
        };
        let last = match &upstream {
            Some(error) => format!("; its upstream: {}", error.message()),
            None => String::new(),
        };
        let message = format!(
            "allocating {requested} from {} on {device}{limit}: it has {}, {} of them in use, and its \
             largest free block has {}{last}",
            owner.noun(),
            counted(reserved),
            counted(live),
            counted(largest_free),
        );
        let (ordinal, steps) = (device.ordinal(), settings.steps.clone());
        let why = upstream.as_ref().map(|error| error.to_string());
        let maximum = has_maximum.then_some(maximum);
        deferred_event!(
            warn, target: POOL, pool, device = ordinal, asked = bytes, ?steps, reserved, live,
            largest_free, maximum, upstream = why, "out of memory"
        );
        let error = Error::new(ErrorKind::OutOfMemory, message);
        match upstream.as_ref().and_then(Error::driver) {
            Some(driver) => error.with_driver(driver.clone()),
            None => error,
        }
        .with_advice(advice)
    }
}
