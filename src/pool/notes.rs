//! What a pool tells of itself. The names are in [`debug_log`](crate::debug_log).

use super::core::Pool;
use super::upstream::Upstream;
use crate::debug_log::{POOL, event, is_wanted, later};
use crate::heap::Tag;
use std::time::Duration;

impl<U: Upstream> Pool<U> {
    fn stream_of(&self, tag: Tag) -> u64 {
        let slot = self.slot(tag);
        slot.and_then(|slot| slot.epochs.lock().stream.as_ref().map(U::id)).unwrap_or(0)
    }

    pub(super) fn note_growth(
        &self,
        stream: Option<&U::Stream>,
        asked: usize,
        bytes: usize,
        elapsed: Duration,
    ) {
        if !is_wanted() {
            return;
        }
        let (pool, device, reserved) = (self.id, U::device(&self.upstream), self.reserved());
        let stream = stream.map_or(0, U::id);
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        later(move || {
            event!(debug, target: POOL, pool, device, stream, asked, bytes, reserved, elapsed_ns, "pool grew");
        });
    }

    pub(super) fn note_refusal(
        &self,
        stream: Option<&U::Stream>,
        asked: usize,
        bytes: usize,
        error: &U::Error,
    ) {
        if !is_wanted() {
            return;
        }
        let (pool, device, reserved) = (self.id, U::device(&self.upstream), self.reserved());
        let (stream, error) = (stream.map_or(0, U::id), error.to_string());
        later(move || {
            event!(debug, target: POOL, pool, device, stream, asked, bytes, reserved, error, "upstream refused");
        });
    }

    /// No lock of a slot is held.
    pub(super) fn note_steal(
        &self,
        stream: &U::Stream,
        from: Tag,
        bytes: usize,
        how: &'static str,
    ) {
        if !is_wanted() {
            return;
        }
        let (pool, device) = (self.id, U::device(&self.upstream));
        let (stream, from) = (U::id(stream), self.stream_of(from));
        later(move || {
            event!(debug, target: POOL, pool, device, stream, from, bytes, how, "took a block of another stream");
        });
    }

    pub(super) fn note_gathering(&self, stream: &U::Stream, asked: usize, largest: u64) {
        if !is_wanted() {
            return;
        }
        let (pool, device, stream) = (self.id, U::device(&self.upstream), U::id(stream));
        later(move || {
            event!(debug, target: POOL, pool, device, stream, asked, largest, "gathered free memory");
        });
    }

    pub(super) fn note_return(&self, blocks: usize, bytes: usize) {
        if blocks == 0 || !is_wanted() {
            return;
        }
        let (pool, device, reserved) = (self.id, U::device(&self.upstream), self.reserved());
        later(move || {
            event!(debug, target: POOL, pool, device, blocks, bytes, reserved, "gave memory back");
        });
    }

    pub(super) fn note_end(&self, blocks: usize, bytes: usize, leaked: usize) {
        if !is_wanted() {
            return;
        }
        let (pool, device) = (self.id, U::device(&self.upstream));
        later(move || {
            event!(debug, target: POOL, pool, device, blocks, bytes, leaked, "pool ended");
        });
    }

    fn reserved(&self) -> usize {
        self.reserve.lock().bytes()
    }
}
