//! What the stand-in remembers: the log, the contexts of each thread, and what is alive.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const NOT_INITIALIZED: u32 = 3;
pub const NO_DEVICE: u32 = 100;
pub const INVALID_DEVICE: u32 = 101;
pub const INVALID_PTX: u32 = 218;
pub const INVALID_CONTEXT: u32 = 201;
pub const INVALID_HANDLE: u32 = 400;
pub const ILLEGAL_STATE: u32 = 401;
pub const NOT_FOUND: u32 = 500;
pub const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
pub const STREAM_CAPTURE_INVALIDATED: u32 = 901;

/// How a block was allocated, if not by `cuMemAlloc`.
#[derive(PartialEq)]
pub enum Origin {
    Host,
    Managed,
    Pool(u64),
}

/// What is alive, and what was asked to fail.
#[derive(Default)]
pub struct State {
    pub initialised: bool,
    /// Retains of each device's primary context.
    pub retained: HashMap<i32, u32>,
    /// Blocks of memory: address to length and alignment.
    pub blocks: HashMap<u64, (usize, usize)>,
    /// Of blocks that are not plain memory.
    pub origins: HashMap<u64, Origin>,
    /// Live streams, events, graphs, pools, modules; a handle is never used twice.
    pub handles: HashSet<u64>,
    /// By pool and attribute.
    pub pool_settings: HashMap<(u64, u32), u64>,
    pub modules: HashMap<u64, String>,
    /// Reserved addresses: their length, and the range of host memory around them.
    pub reservations: BTreeMap<u64, (usize, (u64, usize))>,
    /// Memory that `cuMemCreate` made: its length, by handle. It stays here while it is mapped.
    pub memory: HashMap<u64, usize>,
    /// What is mapped at an address: the length and the handle.
    pub mappings: BTreeMap<u64, (usize, u64)>,
    pub capture: u32,
    /// Streams on which a capture began: 1 while it is whole, 2 once it is lost.
    pub captures: HashMap<u64, u32>,
    next: u64,
    /// By function: how many calls until the one that fails, and its code.
    failures: HashMap<String, (u32, u32)>,
    /// By function: how long its next call takes.
    delays: HashMap<String, Duration>,
}

impl State {
    pub fn handle(&mut self) -> u64 {
        self.next += 0x10;
        let handle = 0x5000_0000 + self.next;
        self.handles.insert(handle);
        handle
    }

    pub fn capture_status(&self, stream: u64) -> u32 {
        self.captures.get(&stream).copied().unwrap_or(self.capture)
    }

    /// The reservation that holds a range.
    pub fn is_reserved(&self, address: u64, bytes: usize) -> bool {
        let around = self.reservations.range(..=address).next_back();
        around.is_some_and(|(start, all)| address + bytes as u64 <= start + all.0 as u64)
    }

    /// Whether anything is mapped in a range.
    pub fn is_mapped(&self, address: u64, bytes: usize) -> bool {
        let before = self.mappings.range(..address + bytes as u64).next_back();
        before.is_some_and(|(start, mapping)| start + mapping.0 as u64 > address)
    }

    /// Where the mappings begin that are a range, if it is some that adjoin.
    pub fn whole_mappings(&self, address: u64, bytes: usize) -> Vec<u64> {
        let end = address + bytes as u64;
        let (mut at, mut whole) = (address, Vec::new());
        while let Some((mapped, _)) = self.mappings.get(&at).filter(|_| at < end) {
            whole.push(at);
            at += *mapped as u64;
        }
        if at == end { whole } else { Vec::new() }
    }

    /// A call that no capture survives. Whether the stream has one.
    pub fn lose_capture(&mut self, stream: u64) -> bool {
        self.captures.get_mut(&stream).map(|status| *status = 2).is_some()
    }

    pub fn fail(&mut self, name: &str, nth: u32, code: u32) {
        self.failures.insert(name.to_owned(), (nth, code));
    }

    pub fn delay(&mut self, name: &str, milliseconds: u64) {
        self.delays.insert(name.to_owned(), Duration::from_millis(milliseconds));
    }

    fn fails(&mut self, name: &str) -> Option<u32> {
        let (left, code) = self.failures.get_mut(name)?;
        // Call 0 is each one.
        if *left == 0 {
            return Some(*code);
        }
        *left -= 1;
        if *left > 0 {
            return None;
        }
        let code = *code;
        self.failures.remove(name);
        Some(code)
    }
}

pub fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE
        .get_or_init(|| {
            let mut state = State::default();
            // name:nth:code, more of them after commas
            for wish in std::env::var("STAND_IN_FAIL").unwrap_or_default().split(',') {
                let mut parts = wish.split(':');
                if let (Some(name), Some(Ok(nth)), Some(Ok(code))) =
                    (parts.next(), parts.next().map(str::parse), parts.next().map(str::parse))
                {
                    state.fail(name, nth, code);
                }
            }
            Mutex::new(state)
        })
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn devices() -> i32 {
    std::env::var("STAND_IN_DEVICES").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

thread_local! {
    // Never dropped: a thread's last destructors may call the driver.
    static CONTEXTS: RefCell<ManuallyDrop<Vec<u64>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

pub fn current() -> u64 {
    CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// As the driver has it: the top is replaced, null takes it off.
pub fn set_current(context: u64) {
    CONTEXTS.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

pub fn push(context: u64) {
    CONTEXTS.with_borrow_mut(|stack| stack.push(context));
}

pub fn pop() -> Option<u64> {
    CONTEXTS.with_borrow_mut(|stack| stack.pop())
}

/// Writes one line, and says whether this call was asked to fail.
pub fn enter(name: &str, arguments: String) -> Option<u32> {
    let space = if arguments.is_empty() { "" } else { " " };
    line(format!("{name} ctx={:#x}{space}{arguments}\n", current()));
    let delay = state().delays.remove(name);
    delay.into_iter().for_each(std::thread::sleep);
    state().fails(name)
}

/// Writes a line about the call before: what its pointers lead to.
pub fn note(text: String) {
    line(format!("# {text}\n"));
}

fn line(text: String) {
    if let Ok(path) = std::env::var("STAND_IN_LOG")
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = file.write_all(text.as_bytes());
    }
}
