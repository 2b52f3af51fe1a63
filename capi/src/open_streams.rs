//! The streams that are open, by the numbers of their handles.

use crate::cache;
use crate::handles::{closed, next};
use crate::status::{Failure, Result, aquifer_status as Status};
use aquifer_rs::Stream;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::LazyLock;

struct OpenStream {
    stream: Stream,
    opened: usize,
    /// The active captures that name it.
    captures: usize,
}

#[derive(Default)]
struct OpenStreams {
    by_number: HashMap<u32, OpenStream>,
    /// By the stream's own number.
    by_id: HashMap<u64, u32>,
}

static STREAMS: LazyLock<RwLock<OpenStreams>> = LazyLock::new(RwLock::default);

/// Opens a stream, or counts one more user of it.
pub(crate) fn open(stream: Stream) -> u32 {
    let mut streams = STREAMS.write();
    let streams = &mut *streams;
    let number = *streams.by_id.entry(stream.id()).or_insert_with(next);
    streams
        .by_number
        .entry(number)
        .or_insert(OpenStream { stream, opened: 0, captures: 0 })
        .opened += 1;
    number
}

/// Takes back the last close of a stream, which failed.
pub(crate) fn reopen(number: u32, stream: Stream) {
    let mut streams = STREAMS.write();
    streams.by_id.insert(stream.id(), number);
    streams.by_number.insert(number, OpenStream { stream, opened: 1, captures: 0 });
}

/// Whether a stream is open.
pub(crate) fn is_open(number: u32) -> bool {
    STREAMS.read().by_number.contains_key(&number)
}

/// The number of a stream that is open, without counting.
pub(crate) fn opened(stream: &Stream) -> Option<u32> {
    STREAMS.read().by_id.get(&stream.id()).copied()
}

/// Counts one user less; gives the stream where it was the last.
pub(crate) fn close(number: u32) -> Result<Option<Stream>> {
    let mut streams = STREAMS.write();
    let Some(open) = streams.by_number.get_mut(&number) else {
        return Err(closed("stream", "closed"));
    };
    if open.opened == 1 && open.captures > 0 {
        // Opened again it would have another number, and the graph's memory would come from the stack.
        let message = format!(
            "{} is named by a capture that is active, and was to be closed (call capture_end first)",
            open.stream
        );
        return Err(Failure::new(Status::AQUIFER_ERROR_CAPTURE, message));
    }
    open.opened -= 1;
    if open.opened > 0 {
        return Ok(None);
    }
    let last = streams.by_number.remove(&number).map(|open| open.stream);
    if let Some(stream) = &last {
        streams.by_id.remove(&stream.id());
    }
    drop(streams);
    cache::invalidate();
    Ok(last)
}

pub(crate) fn get(number: u32) -> Result<Stream> {
    let streams = STREAMS.read();
    let open = streams.by_number.get(&number);
    open.map(|open| open.stream.clone()).ok_or_else(|| closed("stream", "closed"))
}

/// The streams that an active capture names, by their numbers: none of them is closed meanwhile.
pub(crate) struct StreamsOfCapture(Vec<u32>);

impl StreamsOfCapture {
    /// # Errors
    ///
    /// Where one of them is closed.
    pub(crate) fn new(numbers: &[u32]) -> Result<Self> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut streams = STREAMS.write();
        if numbers.iter().any(|number| !streams.by_number.contains_key(number)) {
            return Err(closed("stream", "closed"));
        }
        for number in &numbers {
            if let Some(open) = streams.by_number.get_mut(number) {
                open.captures += 1;
            }
        }
        drop(streams);
        Ok(Self(numbers))
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        self.0.binary_search(&number).is_ok()
    }

    pub(crate) fn numbers(&self) -> &[u32] {
        &self.0
    }
}

impl Drop for StreamsOfCapture {
    fn drop(&mut self) {
        let mut streams = STREAMS.write();
        for number in &self.0 {
            if let Some(open) = streams.by_number.get_mut(number) {
                open.captures -= 1;
            }
        }
    }
}
