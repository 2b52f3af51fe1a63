//! What an operation is to do, before anybody knows where its memory lies: the form in which a graph
//! keeps it.

use super::queue::Work;
use super::table::Place;
use crate::backend::kernel::HostArg;
use crate::backend::{FillWord, HostForm, LaunchConfig, RawArg};

/// What an operation does to the ranges that it touches. Made into [`Work`] at every launch anew,
/// where the ranges lie by then.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// From the first range to the last.
    Copy {
        bytes: usize,
    },
    /// A copy from pageable memory, staged when it was enqueued.
    Unload {
        staged: Vec<u8>,
    },
    Fill {
        stride: usize,
        word: FillWord,
        count: usize,
    },
    Kernel {
        host: HostForm,
        config: LaunchConfig,
        arguments: Vec<RawArg>,
    },
}

/// The caller's own pointer to the host's side of a copy, which stands before the block's.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostSide {
    Source(*const u8),
    Target(*mut u8),
}

impl Plan {
    /// The work on ranges that were found at `places`.
    pub(super) fn build(self, places: &[Place], host: Option<HostSide>) -> Work {
        let (Some(first), Some(last)) = (places.first(), places.last()) else {
            return self.on_no_memory();
        };
        match self {
            Self::Copy { bytes } => {
                let source = match host {
                    Some(HostSide::Source(pointer)) => pointer,
                    _ => first.pointer.cast_const(),
                };
                let target = match host {
                    Some(HostSide::Target(pointer)) => pointer,
                    _ => last.pointer,
                };
                Work::Copy { target, source, bytes }
            }
            Self::Unload { staged } => Work::Unload { target: first.pointer, staged },
            Self::Fill { stride, word, count } => {
                Work::Fill { target: first.pointer, stride, word, count }
            }
            Self::Kernel { host, config, arguments } => kernel(host, config, &arguments, places),
        }
    }

    /// A kernel may do without.
    fn on_no_memory(self) -> Work {
        match self {
            Self::Kernel { host, config, arguments } => kernel(host, config, &arguments, &[]),
            _ => Work::Nothing,
        }
    }
}

fn kernel(host: HostForm, config: LaunchConfig, arguments: &[RawArg], places: &[Place]) -> Work {
    let mut places = places.iter();
    let arguments = arguments
        .iter()
        .map(|argument| match *argument {
            RawArg::Scalar { value, bytes } => HostArg::Scalar { value, bytes },
            RawArg::Buffer { bytes, access, .. } => {
                let place = if bytes > 0 { places.next() } else { None };
                let pointer = place.map(|place| place.pointer);
                // An empty buffer lies nowhere; a slice of none wants an aligned pointer.
                let nowhere = std::ptr::without_provenance_mut(4096);
                HostArg::Buffer { pointer: pointer.unwrap_or(nowhere), bytes, access }
            }
        })
        .collect();
    Work::Kernel { host, config, arguments }
}
