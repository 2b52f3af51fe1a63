//! The data of a declared capture, which are its thread and its streams.
//!
//! It is generic over the stream, since a stream's gate names the capture that has closed it.

use super::gate::GateOwner;
use crate::event::{Event, Recorder};
use crate::sync::Arc;
use crate::sync::trusted::{Mutex, MutexGuard};

/// A thing that a graph keeps for the work that it recorded, such as memory. It is called when the graph is destroyed
/// and will not be launched again, with the streams of its last launches, each once. The launches may still run.
///
/// It is called in a drop, so it does not panic. It is never called in the child of a fork, which leaks it.
pub(crate) type Attachment<S> = Box<dyn FnOnce(&[S]) + Send + Sync>;

/// One declared capture, of streams of type `S`.
#[allow(missing_debug_implementations, reason = "for the crates above alone")]
pub struct CaptureState<S> {
    recorder: Arc<Recorder>,
    /// The first is the stream that the capture began on.
    members: Mutex<Vec<Member<S>>>,
    /// The events that lie outside and that one of the streams waits for. Each launch comes after them.
    outside: Mutex<Vec<Arc<Event>>>,
    /// The things that the graph is to keep. `None` when the graph has them, and nothing can be added any more.
    attachments: Mutex<Option<Vec<Attachment<S>>>>,
}

/// A stream that takes part.
pub(super) struct Member<S> {
    pub(super) stream: S,
    /// An event after all that the stream was given before it took part.
    pub(super) before: Arc<Event>,
}

impl<S> GateOwner for CaptureState<S> {
    fn is_here(&self) -> bool {
        self.recorder.is_here()
    }
}

impl<S: Clone + PartialEq> CaptureState<S> {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder: Arc::new(recorder),
            members: Mutex::default(),
            outside: Mutex::default(),
            attachments: Mutex::new(Some(Vec::new())),
        }
    }

    pub(super) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    pub(super) fn members(&self) -> MutexGuard<'_, Vec<Member<S>>> {
        self.members.lock()
    }

    pub(super) fn take_members(&self) -> Vec<Member<S>> {
        std::mem::take(&mut *self.members.lock())
    }

    /// Makes the graph's launches wait for an event from outside, and the streams when the capture has ended.
    pub(super) fn wait_for_outside(&self, event: Event) {
        self.outside.lock().push(Arc::new(event));
    }

    pub(super) fn outside(&self) -> Vec<Arc<Event>> {
        self.outside.lock().clone()
    }

    /// Gives the graph something to keep. Returns it if the capture is over.
    pub(super) fn attach(&self, attachment: Attachment<S>) -> Result<(), Attachment<S>> {
        match &mut *self.attachments.lock() {
            Some(attachments) => attachments.push(attachment),
            None => return Err(attachment),
        }
        Ok(())
    }

    pub(super) fn close_attachments(&self) -> Vec<Attachment<S>> {
        self.attachments.lock().take().unwrap_or_default()
    }

    /// The event after all that a stream of the capture was given before it took part.
    pub(super) fn before(&self, stream: &S) -> Option<Arc<Event>> {
        let members = self.members.lock();
        members.iter().find(|member| member.stream == *stream).map(|member| member.before.clone())
    }

    /// The events that a launch comes after. The streams of the capture recorded them before they took part, or were
    /// made to
    /// wait for.
    pub(super) fn all_before(&self) -> Vec<Arc<Event>> {
        let members = self.members.lock();
        members.iter().map(|member| member.before.clone()).chain(self.outside()).collect()
    }

    /// The event before each member, where `stream` is one of them. This is one look at both, since the capture
    /// may end meanwhile, and no stream takes part in it from then on.
    pub(super) fn all_before_if_member(&self, stream: &S) -> Option<Vec<Arc<Event>>> {
        let members = self.members.lock();
        let is_member = members.iter().any(|member| member.stream == *stream);
        is_member.then(|| members.iter().map(|member| member.before.clone()).collect())
    }

    pub(super) fn streams(&self) -> Vec<S> {
        self.members.lock().iter().map(|member| member.stream.clone()).collect()
    }
}
