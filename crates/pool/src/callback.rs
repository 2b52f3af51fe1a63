//! The user's callback on a request that would wait for the device, or be refused.

use super::core::Pool;
use super::placement::Search;
use super::request::{Request, TakenBlock};
use super::upstream::{Retry, Unserved, Upstream};

/// The most that the callback is asked about one request. One that frees a 64th of what is missing each time is enough; one
/// that always finds something, which other threads take, comes to an end.
pub const MAX_CALLS: u32 = 64;

/// What the callback was asked about one request.
#[derive(Debug, Default)]
pub(super) struct Calls {
    made: u32,
    is_over: bool,
}

/// What has come of it.
pub(super) enum CalledBack {
    /// Memory that needs no wait.
    Found(TakenBlock),
    /// The steps are to be taken again.
    Retry,
    GoOn,
}

impl<U: Upstream> Pool<U> {
    /// Asks the callback. Not where nobody waits for the request. In a call of upstream's that came back here upstream itself
    /// asks nobody: this thread has the lock of growth or of a trim then.
    pub(super) fn call_back(
        &self,
        request: &Request<'_, U>,
        error: Option<&U::Error>,
        calls: &mut Calls,
    ) -> CalledBack {
        if calls.is_over || calls.made == MAX_CALLS || !request.may_block() {
            return CalledBack::GoOn;
        }
        calls.made += 1;
        let (bytes, align, attempt) = (request.bytes(), request.align, calls.made);
        let retry = self.upstream.call_back(Unserved { bytes, align, error, attempt });
        calls.is_over = retry != Retry::Again;
        if retry == Retry::No {
            return CalledBack::GoOn;
        }
        self.look_again(request).map_or(CalledBack::Retry, CalledBack::Found)
    }

    /// Memory that needs no wait, after a callback has freed some: in the caches of threads, too. What can only be mapped is
    /// for the steps.
    fn look_again(&self, request: &Request<'_, U>) -> Option<TakenBlock> {
        self.flush_all();
        if !request.is_anywhere() {
            return None;
        }
        if request.graph_upto.is_none() {
            self.close_and_poll_all(Some(request.slot));
            self.merge_ready();
        }
        self.look(request, Search::Exhaustive)
    }
}
