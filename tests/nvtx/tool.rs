//! What a tool that watches memory has heard, and tests that run beside one.

use crate::{CHILD, child_with, tool};
use aquifer::{DeviceBlock, DeviceLayout, DeviceResource, Stream};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) const KIB: usize = 1 << 10;

/// What a tool knows, by address.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// Bytes and name.
    pub(crate) heaps: BTreeMap<usize, (usize, String)>,
    /// Bytes, the heap's address and the name.
    pub(crate) regions: BTreeMap<usize, (usize, usize, String)>,
    /// Regions that there ever were.
    pub(crate) ever: usize,
    /// Heaps that were refused.
    pub(crate) refused: usize,
}

impl Told {
    /// What the stand-in has heard so far. Fails on a call that makes no sense there.
    pub(crate) fn now() -> Self {
        let path = std::env::var_os("STAND_IN_NVTX_LOG").unwrap();
        let heard = std::fs::read_to_string(path).unwrap_or_default();
        let mut told = Self::default();
        // Another thread may be in the middle of the last line.
        let whole = heard.rfind('\n').map_or("", |end| &heard[..end]);
        for line in whole.lines() {
            let mut words = line.split(' ');
            let what = words.next().unwrap();
            let rest: Vec<&str> = words.collect();
            let number = |at: usize| match rest[at].strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16).unwrap(),
                None => rest[at].parse().unwrap(),
            };
            match what {
                "heap" => told.heap(number(0), number(1), rest[2..].join(" ")),
                "end-heap" => {
                    let (bytes, _) = told.heaps.remove(&number(0)).expect(line);
                    assert_eq!(told.within(number(0), bytes), [], "left in a heap that ends");
                }
                "region" => told.region(number(0), number(1), number(2)),
                "end-region" => drop(told.regions.remove(&number(0)).expect(line)),
                "name" => told.regions.get_mut(&number(0)).expect(line).2 = rest[1..].join(" "),
                "refused" => told.refused += 1,
                "domain" | "push" | "pop" => {}
                _ => panic!("{line}"),
            }
        }
        told
    }

    fn heap(&mut self, address: usize, bytes: usize, name: String) {
        assert!(name.len() <= 49, "{name}");
        let mut overlapping = self.heaps.range(..address + bytes);
        assert!(!overlapping.any(|(at, heap)| at + heap.0 > address), "{address:#x} {bytes}");
        self.heaps.insert(address, (bytes, name));
    }

    fn region(&mut self, address: usize, bytes: usize, heap: usize) {
        let (size, _) = self.heaps[&heap];
        assert!(heap <= address && address + bytes <= heap + size, "{address:#x} of {heap:#x}");
        assert_eq!(self.within(address, bytes), [], "{address:#x} {bytes}");
        self.regions.insert(address, (bytes, heap, String::new()));
        self.ever += 1;
    }

    pub(crate) fn within(&self, address: usize, bytes: usize) -> Vec<usize> {
        let before = self.regions.range(..address + bytes);
        before.filter(|(at, region)| *at + region.0 > address).map(|(at, _)| *at).collect()
    }

    pub(crate) fn is_live(&self, block: &DeviceBlock) -> bool {
        let region = self.regions.get(&(block.address() as usize));
        region.is_some_and(|region| region.0 == block.bytes())
    }
}

/// Runs the test of this name, modules included, in a process of its own that a tool watches, and there
/// `body`.
pub(crate) fn watched(name: &str, body: impl FnOnce()) {
    beside_tool(name, &[("STAND_IN_NVTX_MEMORY", "1")], body);
}

/// As [`watched`], by a tool that finds this in its environment.
pub(crate) fn beside_tool(name: &str, set: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let file = format!("aquifer-{}-{name}.log", std::process::id());
    let log: PathBuf = std::env::temp_dir().join(file);
    let _ = std::fs::remove_file(&log);
    let output = child_with(name, &tool(), &log, set);
    let heard = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}\n{heard}");
}

pub(crate) fn take(from: &impl DeviceResource, stream: &Stream, bytes: usize) -> DeviceBlock {
    let block = from.allocate(stream, DeviceLayout::new(bytes).unwrap()).unwrap();
    assert!(Told::now().is_live(&block), "{block:?} {:?}", Told::now());
    block
}

/// Gives a block back that nothing uses later, and whose region ends with it.
pub(crate) fn give(to: &impl DeviceResource, stream: &Stream, block: DeviceBlock) {
    let at = block.address() as usize;
    assert!(Told::now().is_live(&block));
    // SAFETY: allocated from the resource; nothing uses it.
    unsafe { to.deallocate(stream, block) };
    assert!(!Told::now().regions.contains_key(&at), "{at:#x}");
}

pub(crate) fn assert_all_is_over() {
    let told = Told::now();
    assert!(told.heaps.is_empty() && told.regions.is_empty() && told.ever > 0, "{told:?}");
}

/// Runs `body` on so many threads, until they are gone: what a thread keeps of pools ends with it, and
/// a scope alone does not wait for that.
pub(crate) fn on_threads(threads: usize, body: impl Fn(usize) + Sync) {
    let body = &body;
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|at| scope.spawn(move || body(at))).collect();
        started.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
