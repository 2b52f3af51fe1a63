//! A simulated device, and how its driver calls begin.

use super::calls::Call;
use super::run::{discard_queues, drop_waiting_functions, has_stopped, run_background, run_until};
use super::simulator::Simulator;
use super::state::{Schedule, SimConfig, SimContext, lock_state, notify_changed};
use aquifer_driver::error::{DriverError, ErrorKind};
use aquifer_driver::{
    AsideCalls, BackendKind, CallSite, DeviceProperties, Driver, DriverResult, RegionCalls,
    call_not_forked, is_forked_child, is_in_host_function,
};
use aquifer_sync::Arc;
use aquifer_sync::trusted::Mutex;
use std::any::Any;
use std::thread::JoinHandle;

/// A simulated device. Its queues, blocks and events are in the shared state, under its context's id.
#[derive(Debug)]
pub struct SimDriver {
    pub(super) context: Arc<SimContext>,
    background: Mutex<Option<JoinHandle<()>>>,
}

impl SimDriver {
    /// Opens a new simulated device, distinct from all others.
    #[doc(hidden)]
    pub fn open(config: SimConfig) -> Arc<Self> {
        CallSite::want();
        let is_background = config.schedule == Schedule::Background;
        let context = Arc::new(SimContext::new(config));
        lock_state().add_device(Arc::clone(&context), is_background);
        let thread = if is_background { Self::start_background(&context) } else { None };
        Arc::new(Self { context, background: Mutex::new(thread) })
    }

    /// Starts the thread that runs the queues. If the system has none, they run on demand.
    fn start_background(context: &Arc<SimContext>) -> Option<JoinHandle<()>> {
        let own = Arc::clone(context);
        let name = String::from("aquifer simulated device");
        let started = std::thread::Builder::new().name(name).spawn(move || run_background(&own));
        if started.is_err()
            && let Some(device) = lock_state().devices.get_mut(&context.id)
        {
            device.background = false;
        }
        started.ok()
    }

    /// A handle for tests.
    #[doc(hidden)]
    pub fn simulator(&self) -> Simulator {
        Simulator { context: Arc::clone(&self.context) }
    }

    /// Begins a driver call, under the lock of the state. The call is counted, and refused if a failure was injected.
    pub(super) fn call(&self, name: &'static str) -> DriverResult<Call<'_>> {
        Call::begin(&self.context, name)
    }

    /// Makes a [`call`](Self::call) that waits. If the context is lost, it returns when no operation
    /// runs any more, so memory that a host form uses may be freed after it.
    pub(super) fn waiting(
        &self,
        name: &'static str,
        body: impl FnOnce(&mut Call<'_>) -> DriverResult<()>,
    ) -> DriverResult<()> {
        let result = self.call(name).and_then(|mut call| body(&mut call));
        if self.context.is_lost() {
            self.has_stopped();
        }
        result.map_err(|error| self.first_report(error))
    }

    /// The error of a call that waits. Where the context may have been lost before the call, the first report that was
    /// not taken goes before the loss.
    pub(super) fn first_report(&self, error: DriverError) -> DriverError {
        if error.kind() != ErrorKind::ContextLost || !self.context.is_lost() {
            return error;
        }
        self.context.sync_result(error.call()).err().unwrap_or(error)
    }
}

impl Drop for SimDriver {
    /// Runs the queues, then removes the device from the state. Memory that the host may have pointers
    /// to is leaked.
    fn drop(&mut self) {
        if is_forked_child() {
            return;
        }
        let id = self.context.id;
        let mut state = lock_state();
        if state.is_running_here() || is_in_host_function() {
            // Dropped inside of a host form, or of a function of the program: it cannot be waited for, so its streams stay.
            discard_queues(&mut state, id);
            state.devices.remove(&id);
            notify_changed();
            return;
        }
        state.stall_streams(id, None, false);
        run_until(&mut state, id, |state| has_stopped(state, id));
        discard_queues(&mut state, id);
        drop_waiting_functions(&mut state, id);
        state.remove_device(id);
        notify_changed();
        drop(state);
        self.context.emit_reports();
        let this_thread = std::thread::current().id();
        let thread = self.background.get_mut().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != this_thread) {
            // Its only way to fail is a panic, which has been printed.
            let _ = thread.join();
        }
    }
}

// SAFETY: every block is an allocation of its own, which lives until it is freed and every operation
// that touches it has run; queues are first in, first out, and an operation leaves its queue only to
// run.
unsafe impl Driver for SimDriver {
    fn kind(&self) -> BackendKind {
        BackendKind::Simulated
    }

    fn context_id(&self) -> u64 {
        self.context.id
    }

    fn ordinal(&self) -> usize {
        self.context.config.ordinal
    }

    fn properties(&self) -> &DeviceProperties {
        &self.context.config.properties
    }

    fn with_current(&self, body: &mut dyn FnMut()) -> DriverResult<()> {
        body();
        Ok(())
    }

    fn is_page_locked(&self, pointer: *const u8) -> bool {
        is_forked_child() || lock_state().blocks.is_page_locked(pointer.addr() as u64, 1)
    }

    fn has_stopped(&self) -> bool {
        // The child of a fork has the queues, and no thread that runs them.
        if is_forked_child() {
            return true;
        }
        let (id, mut state) = (self.context.id, lock_state());
        if state.is_running_here() || is_in_host_function() {
            // A wait could be for the calling thread itself.
            return has_stopped(&state, id);
        }
        run_until(&mut state, id, |state| has_stopped(state, id))
    }

    fn check(&self) -> DriverResult<()> {
        let name = "simulated device";
        call_not_forked(name)?;
        self.context.sync_result(name)
    }

    fn works_unasked(&self) -> bool {
        self.context.config.schedule == Schedule::Background
    }

    fn regions(&self) -> Option<&dyn RegionCalls> {
        self.context.config.pool_checks.then_some(self)
    }

    fn aside(&self) -> Option<&dyn AsideCalls> {
        Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
