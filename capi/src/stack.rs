//! Stacks of resources: their making and their end, their log, and pools for captures.

use crate::cache;
use crate::capture::OfCapture;
use crate::handles::{closed, next};
use crate::references::{References, Released};
use crate::route::{self, Route, RouteInUse};
use crate::scope::{self, Asked, Scope};
use crate::status::{Failure, Result, aquifer_status as Status};
use crate::{fork, open_streams};
use aquifer_rs::{
    Device, DeviceResource, Stream,
    mr::{LogFormat, LoggingAdaptor, ResourceStack, StackText},
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Without a text and without the variable.
const DEFAULT: &str = "pool(cuda, handles=off)";

/// The process's own stack of each device.
static DEFAULTS: LazyLock<Mutex<HashMap<i32, Own>>> = LazyLock::new(Mutex::default);

/// A stack that is the process's own.
#[derive(Clone, Copy)]
enum Own {
    /// Made for it: it stays for good.
    Kept(u32),
    /// Set in its place: the process is one of its users.
    Set(u32),
}

impl Own {
    fn number(self) -> u32 {
        match self {
            Self::Kept(number) | Self::Set(number) => number,
        }
    }
}

/// A stack of resources on one device, by its handle's number.
pub(crate) struct Stack {
    pub(crate) resources: ResourceStack,
    references: References,
    state: Mutex<State>,
}

struct State {
    main: Arc<Route>,
    log: Option<LoggingAdaptor<Arc<dyn DeviceResource>>>,
    captures: Vec<Capture>,
    /// Nothing allocates by its routes any more.
    is_closed: bool,
    /// The captures that take allocations now, in the order of their begins.
    active: Vec<Active>,
}

/// The name of a graph's memory.
pub(crate) type Key = (u64, u64);

struct Active {
    key: Key,
    scope: Scope,
}

/// What an allocation comes by.
pub(crate) struct Present {
    pub(crate) route: RouteInUse,
    /// Later ones on the stream come by it as well, until the cache's generation changes.
    pub(crate) is_lasting: bool,
}

/// The memory of the graphs of one key.
struct Capture {
    key: Key,
    /// One for each stream that has allocated.
    routes: Vec<Arc<Route>>,
    /// A side stream that was made before the capture: cudarc waits for the device with a program's first stream.
    spare: Option<Stream>,
}

impl Stack {
    /// A stack by a text; of the variable `AQUIFER_STACK`, or a pool, without one.
    pub(crate) fn create(text: Option<&str>, device: &Device) -> Result<u32> {
        let text = match text {
            Some(text) => text.parse::<StackText>()?,
            None => match StackText::from_env()? {
                Some(text) => text,
                None => DEFAULT.parse()?,
            },
        };
        // PyTorch, CuPy and Numba share memory with other processes by `cuIpcGetMemHandle`, which handles do not serve.
        Ok(Self::register(text.shareable().build(device)?, false))
    }

    /// A stack of these resources, with one user.
    pub(crate) fn register(resources: ResourceStack, has_callbacks: bool) -> u32 {
        let number = next();
        let own = Some(resources.own());
        let main = resources.resource().clone();
        let main = Route::new(number, main, own, has_callbacks, None);
        let (captures, active) = (Vec::new(), Vec::new());
        let state = State { main, log: None, captures, is_closed: false, active };
        let (references, state) = (References::new(), Mutex::new(state));
        let stack = Arc::new(Self { resources, references, state });
        STACKS.write().insert(number, stack);
        number
    }

    /// The process's stack of a device, which it keeps: by the variable, or a pool.
    pub(crate) fn default_of(ordinal: i32) -> Result<u32> {
        if let Some(own) = DEFAULTS.lock().get(&ordinal) {
            return Ok(own.number());
        }
        // Not under the lock: it opens the device. A second thread's stack is released again.
        let made = Self::create(None, &device(ordinal)?)?;
        let stack = get(made)?;
        let keep = || {
            stack.references.keep();
            Own::Kept(made)
        };
        let number = DEFAULTS.lock().entry(ordinal).or_insert_with(keep).number();
        if number != made
            && let Some(second) = release(made)?
        {
            second.close();
        }
        Ok(number)
    }

    /// Makes a stack the process's own one of its device.
    pub(crate) fn set_default(number: u32) -> Result<()> {
        let stack = get(number)?;
        let ordinal = stack.resources.device().ordinal() as i32;
        let before = DEFAULTS.lock().get(&ordinal).copied();
        if let Some(Ok(before)) = before.map(|own| get(own.number()))
            && !before.state.lock().active.is_empty()
        {
            let message = "the process's stack is in a capture, and was to be changed (end the capture first)";
            return Err(Failure::new(Status::AQUIFER_ERROR_CAPTURE, message));
        }
        stack.retain();
        let before = DEFAULTS.lock().insert(ordinal, Own::Set(number));
        cache::invalidate();
        // The new one is set, whatever becomes of the one before.
        match before {
            Some(Own::Set(before)) => {
                if let Ok(Some(last)) = release(before) {
                    last.close();
                }
            }
            // It stays, and nothing allocates of it: its free memory goes back, as far as it can now.
            Some(Own::Kept(before)) => {
                let _ = get(before).map(|stack| stack.resources.wait_and_trim(0));
            }
            None => {}
        }
        Ok(())
    }

    /// The process's own stacks.
    pub(crate) fn defaults() -> Vec<u32> {
        DEFAULTS.lock().values().map(|own| own.number()).collect()
    }

    /// Whether its resources call code of the program.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.state.lock().main.has_callbacks
    }

    pub(crate) fn retain(&self) {
        self.references.retain();
    }

    /// Counts one user less; whether it was the last. The process, which keeps its own stack, is none that can be
    /// counted off.
    pub(crate) fn release(&self) -> Result<bool> {
        match self.references.release() {
            Released::Used => Ok(false),
            Released::Last => Ok(true),
            Released::Kept => {
                let message = "the process keeps this stack, as it is its own (release what \
                               stack_create and stack_retain gave)";
                Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message))
            }
        }
    }

    /// What blocks come from now, for a stream.
    pub(crate) fn present_route(&self, stream: u32) -> Result<Present> {
        let mut state = self.state.lock();
        let mut is_lasting = true;
        let mut key = None;
        if !state.is_closed && !state.active.is_empty() {
            let on = open_streams::get(stream)?;
            // One of another device is refused by the stack.
            if on.device() == self.resources.device() {
                key = state.active.iter().find(|it| it.scope.names(stream)).map(|it| it.key);
                let filter = |it: &Active| it.scope.filter().map(|filter| (it.key, filter.clone()));
                let filters: Vec<_> = state.active.iter().filter_map(filter).collect();
                is_lasting = filters.is_empty();
                if key.is_none() && !is_lasting {
                    // Not under the lock: they are code of the program.
                    drop(state);
                    key = first_that_takes(&filters, &on)?;
                    state = self.state.lock();
                }
            }
        }
        if state.is_closed {
            return Err(closed("stack", "released"));
        }
        let present = |route: RouteInUse| Ok(Present { route, is_lasting });
        let Some(key) = key else { return present(state.main.clone().enter()) };
        if let Some(route) = route_of(&state, key, stream) {
            return present(route.enter());
        }
        // Without the log, which would go on in the pool after its end.
        let below = state.main.unlogged().clone();
        let capture = state.captures.iter_mut().find(|capture| capture.key == key);
        let spare = capture.and_then(|capture| capture.spare.take());
        drop(state);
        // Not under the lock: it makes a stream. Of two that are made at once the first stays.
        let (pool, capture) = OfCapture::new(below, stream, spare)?;
        let made = Route::new(next(), pool, None, true, Some(capture));
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            made.close();
            return Err(closed("stack", "released"));
        }
        let known = route_of(&state, key, stream);
        let capture = state.captures.iter_mut().find(|capture| capture.key == key);
        let (route, is_spare) = match (known, capture) {
            (Some(known), _) => (known, true),
            (None, Some(capture)) => {
                capture.routes.push(made.clone());
                (made.clone(), false)
            }
            // The graphs are gone since.
            (None, None) => (state.main.clone(), true),
        };
        let route = route.enter();
        drop(state);
        if is_spare {
            made.close();
        }
        present(route)
    }

    /// The end: free memory goes back, and the rest with the last block.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let captures = std::mem::take(&mut state.captures);
        let active = std::mem::take(&mut state.active);
        let log = state.log.take();
        let main = state.main.clone();
        drop(state);
        active.into_iter().for_each(|active| active.scope.end());
        captures.iter().flat_map(|capture| &capture.routes).for_each(|route| route.close());
        main.set_log(None);
        main.close();
        drop((log, captures));
        if route::get(main.number).is_some() {
            // What is free by now; the rest when the route goes, which tells of no error, too.
            let _ = self.resources.own().wait_and_trim(0);
        }
    }

    /// Writes a row for each allocation and free from now on.
    pub(crate) fn start_log(&self, path: &str, format: LogFormat) -> Result<()> {
        let mut state = self.state.lock();
        if state.log.is_some() {
            let message = "the stack has a log already (stop it first)";
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        }
        let log = LoggingAdaptor::builder(state.main.unlogged().clone());
        let log = log.path(path).format(format).build()?;
        state.main.set_log(Some(Arc::new(log.clone())));
        state.log = Some(log);
        Ok(())
    }

    /// Writes no more rows, and waits until those of former calls are written.
    pub(crate) fn stop_log(&self) -> Result<()> {
        let mut state = self.state.lock();
        let Some(log) = state.log.take() else {
            let message = "the stack has no log (start one first)";
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        };
        state.main.set_log(None);
        drop(state);
        Ok(log.flush()?)
    }

    /// The allocations of a scope come from the pool of `key` from now on, until the capture ends.
    pub(crate) fn begin_capture(&self, key: Key, scope: Scope) -> Result<()> {
        let device = self.resources.device();
        for number in scope.streams() {
            let stream = open_streams::get(*number)?;
            if stream.device() != device {
                let message = format!(
                    "a capture of memory of {device} was to begin with {stream} (name streams of the stack's device)"
                );
                return Err(Failure::new(Status::AQUIFER_ERROR_WRONG_DEVICE, message));
            }
        }
        let spare = Some(device.new_stream()?);
        // Where it is refused, the scope goes behind the lock, as each argument does: it may have code of the program.
        let mut state = self.state.lock();
        state.require_beside(key, &scope)?;
        match state.captures.iter_mut().find(|capture| capture.key == key) {
            // Another graph of the same memory.
            Some(known) => known.spare = spare,
            None => state.captures.push(Capture { key, routes: Vec::new(), spare }),
        }
        state.active.push(Active { key, scope });
        drop(state);
        cache::invalidate();
        Ok(())
    }

    /// Allocations come from the stack again. The pool of `key` keeps its memory for the graph.
    pub(crate) fn end_capture(&self, key: Key) -> Result<()> {
        if scope::is_in_filter() {
            let message = "a filter was to end a capture, which waits for filters (end it when the filter has returned)";
            return Err(Failure::new(Status::AQUIFER_ERROR_CAPTURE, message));
        }
        let mut state = self.state.lock();
        let Some(place) = state.active.iter().position(|active| active.key == key) else {
            let message = "the stack is in no capture of this key (begin it first)";
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        };
        let ended = state.active.remove(place);
        drop(state);
        cache::invalidate();
        ended.scope.end();
        route::end_routes();
        Ok(())
    }

    /// The graphs of `key` are gone: the memory of its pools goes back to the stack with their last blocks, after all
    /// work of the device.
    pub(crate) fn release_capture(&self, key: Key) -> Result<()> {
        let mut state = self.state.lock();
        if state.active.iter().any(|active| active.key == key) {
            let message =
                "the capture of this key is active, and was to be released (end it first)";
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        }
        let known = state.captures.iter().position(|capture| capture.key == key);
        let Some(place) = known else {
            let message =
                "the stack has no capture of this key (begin it first, and release it once)";
            return Err(Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message));
        };
        let released = state.captures.swap_remove(place);
        drop(state);
        released.routes.iter().for_each(|route| route.close());
        route::end_routes();
        Ok(())
    }
}

static STACKS: LazyLock<RwLock<HashMap<u32, Arc<Stack>>>> = LazyLock::new(RwLock::default);

/// A stack that is not released.
pub(crate) fn get(number: u32) -> Result<Arc<Stack>> {
    STACKS.read().get(&number).cloned().ok_or_else(|| closed("stack", "released"))
}

/// Counts one user less; gives the stack where it was the last.
pub(crate) fn release(number: u32) -> Result<Option<Arc<Stack>>> {
    let mut stacks = STACKS.write();
    let Some(stack) = stacks.get(&number) else { return Err(closed("stack", "released")) };
    if !stack.release()? {
        return Ok(None);
    }
    let last = stacks.remove(&number);
    drop(stacks);
    cache::invalidate();
    Ok(last)
}

impl State {
    /// Refuses a capture that cannot be active beside those that are.
    fn require_beside(&self, key: Key, scope: &Scope) -> Result<()> {
        if self.is_closed {
            return Err(closed("stack", "released"));
        }
        for active in &self.active {
            let shared =
                scope.streams().iter().find(|stream| active.scope.streams().contains(stream));
            let message = match (&active.scope, scope) {
                _ if active.key == key => {
                    "a capture of this key is active (end it first, or give the other graph a key of its own)".into()
                }
                (Scope::AllStreams, _) => {
                    "the stack is in a capture of all streams (end it first, or begin it with its own streams)".into()
                }
                (_, Scope::AllStreams) => {
                    "a capture of all streams was to begin, and another one is active (end that first, or name streams)".into()
                }
                _ => match shared {
                    Some(shared) => format!(
                        "{} is in another capture that is active (end that first, or capture on another stream)",
                        open_streams::get(*shared)?
                    ),
                    None => continue,
                },
            };
            return Err(Failure::new(Status::AQUIFER_ERROR_CAPTURE, message));
        }
        Ok(())
    }
}

/// The key of the first capture whose filter takes an allocation on a stream.
fn first_that_takes(filters: &[(Key, Arc<Asked>)], on: &Stream) -> Result<Option<Key>> {
    for (key, filter) in filters {
        if filter.takes(on)? {
            return Ok(Some(*key));
        }
    }
    Ok(None)
}

/// The route of a stream in a capture.
fn route_of(state: &State, key: Key, stream: u32) -> Option<Arc<Route>> {
    let capture = state.captures.iter().find(|capture| capture.key == key)?;
    let is_its = |route: &&Arc<Route>| {
        route.capture.as_ref().is_some_and(|capture| capture.stream == stream)
    };
    capture.routes.iter().find(is_its).cloned()
}

/// Whether device 0 is a simulated one where there is no GPU. Relaxed: a program asks for it before it asks for a
/// device.
static SIMULATES: AtomicBool = AtomicBool::new(false);

/// From now on device 0 is a simulated one where there is no GPU.
pub(crate) fn simulate() {
    SIMULATES.store(true, Ordering::Relaxed);
}

/// A device by its number. With `AQUIFER_BACKEND=sim`, or after [`simulate`] where there is no GPU, 0 is the simulated
/// device.
pub(crate) fn device(ordinal: i32) -> Result<Device> {
    let ordinal = usize::try_from(ordinal).map_err(|_| {
        let message = format!("{ordinal} is no device's number (count from 0)");
        Failure::new(Status::AQUIFER_ERROR_INVALID_ARGUMENT, message)
    })?;
    fork::install_handler();
    let detected = match SIMULATES.load(Ordering::Relaxed) {
        true => Device::detect_or_simulate()?,
        false => Device::detect()?,
    };
    if ordinal == 0 {
        return Ok(detected);
    }
    if detected.simulator().is_some() {
        let message =
            format!("device {ordinal} was asked for, where there is one simulated device, 0");
        return Err(Failure::new(Status::AQUIFER_ERROR_NO_DEVICE, message));
    }
    Ok(Device::open(ordinal)?)
}
