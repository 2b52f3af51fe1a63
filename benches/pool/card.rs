//! Whether a pool can use the whole card: one large block out of many small ones, two pools in turn,
//! and two processes. Each row is of a pool on handles and of one on blocks.

use crate::groups::simulated_device;
use crate::rows::{MIB, median, nanoseconds, number};
use crate::subject::{Bench, Plain, fail, must};
use crate::workloads::SplitMix64;
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, ErrorKind, PoolResource,
    Result, Stream, mr::Handles,
};
use std::process::Command;
use std::time::Instant;

/// The peers that the rows name, and how their pools get memory.
pub(crate) const KINDS: [(&str, Handles); 2] =
    [("aquifer handles", Handles::On), ("aquifer blocks", Handles::Off)];

/// An empty pool. `None` where there are no handles.
pub(crate) fn pool(device: &Device, handles: Handles) -> Option<Plain> {
    match PoolResource::builder(CudaResource::new(device)).handles(handles).build() {
        Ok(pool) => Some(pool),
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        Err(error) => fail(&error),
    }
}

/// The value, or `None` where memory was refused. Any other error ends the program.
pub(crate) fn unless_refused<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => None,
        Err(error) => fail(&error),
    }
}

struct Card {
    device: Device,
    /// A stream for each of two pools.
    streams: [Stream; 2],
    /// What was free at the start.
    bytes: u64,
}

/// What a pool got, and how many requests it refused: one at most, since the first ends it.
struct Taken {
    blocks: Vec<DeviceBlock>,
    refused: u32,
}

impl Card {
    fn new(bench: &Bench) -> Self {
        // A simulated card is small, so that it is full after a few blocks.
        let device =
            if bench.simulated() { simulated_device(8 << 30) } else { bench.device.clone() };
        let streams = [must(device.new_stream()), must(device.new_stream())];
        let bytes = must(device.memory_info()).free;
        Self { device, streams, bytes: bytes as u64 }
    }

    /// So many percent of it, in whole MiB.
    fn percent(&self, percent: u64) -> u64 {
        (self.bytes / 100 * percent) & !(MIB - 1)
    }

    /// Blocks of `bytes` in all, log-uniform from 1 MiB to 1 GiB, or to a 64th of a small card.
    fn take(&self, pool: &Plain, stream: &Stream, bytes: u64) -> Taken {
        let mut random = SplitMix64(1);
        let doublings = ((self.bytes / 64).min(1 << 30) as f64 / MIB as f64).log2();
        let mut taken = Taken { blocks: Vec::new(), refused: 0 };
        let mut left = bytes;
        while left > 0 {
            let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            let size = left.min((MIB as f64 * (doublings * unit).exp2()) as u64);
            let layout = must(DeviceLayout::new(size as usize));
            match unless_refused(pool.allocate(stream, layout)) {
                Some(block) => taken.blocks.push(block),
                None => {
                    taken.refused = 1;
                    break;
                }
            }
            left -= size;
        }
        taken
    }

    fn free(&self, pool: &Plain, stream: &Stream, blocks: impl IntoIterator<Item = DeviceBlock>) {
        for block in blocks {
            // SAFETY: of this pool, made on this stream, given back once, and used by no work.
            unsafe { pool.deallocate(stream, block) };
        }
    }

    /// 95% of the card in blocks, of which every other one goes back, then a block of 40%. The pool
    /// moves what is free, or gives it back and asks for more. No pool copies a block.
    fn large_block(&self, bench: &Bench, peer: &str, handles: Handles) {
        const WORKLOAD: &str = "card 40% after half was freed";
        let (mut fills, mut times) = (Vec::new(), Vec::new());
        let (mut refused, mut refused_filling) = (0, 0);
        let (mut growths, mut returns) = (0, 0);
        for _ in 0..bench.count(3, 1) {
            let Some(pool) = pool(&self.device, handles) else { return };
            let stream = &self.streams[0];
            let start = Instant::now();
            let taken = self.take(&pool, stream, self.percent(95));
            fills.push(start.elapsed().as_secs_f64() * 1e9);
            refused_filling += taken.refused;
            let count = taken.blocks.len();
            let (kept, freed): (Vec<_>, Vec<_>) =
                taken.blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
            self.free(&pool, stream, freed.into_iter().map(|(_, block)| block));
            let before = pool.statistics();
            println!("# card: {count} blocks; then {} MiB live", before.live as u64 / MIB);
            let start = Instant::now();
            let layout = must(DeviceLayout::new(self.percent(40) as usize));
            let block = unless_refused(pool.allocate(stream, layout));
            let time = start.elapsed().as_secs_f64() * 1e9;
            let after = pool.statistics();
            growths = after.growths - before.growths;
            returns = after.returns - before.returns;
            match block {
                Some(_) => times.push(time),
                None => refused += 1,
            }
            self.free(&pool, stream, kept.into_iter().map(|(_, block)| block).chain(block));
            must(self.device.synchronize());
        }
        nanoseconds(peer, "card 95% in blocks", median(fills));
        number(peer, "card 95% in blocks refused", f64::from(refused_filling));
        number(peer, &format!("{WORKLOAD} refused"), f64::from(refused));
        // Handles, or blocks of the driver, of the last round.
        number(peer, &format!("{WORKLOAD} growths"), growths as f64);
        number(peer, &format!("{WORKLOAD} returns"), returns as f64);
        if !times.is_empty() {
            nanoseconds(peer, WORKLOAD, median(times));
        }
    }

    /// Two pools take 60% of the card and free it, in turn, three times each.
    fn two_pools(&self, peer: &str, handles: Handles) {
        let pools = [pool(&self.device, handles), pool(&self.device, handles)];
        let [Some(one), Some(two)] = pools else { return };
        let (mut times, mut refused) = (Vec::new(), 0);
        for _ in 0..3 {
            for (pool, stream) in [&one, &two].into_iter().zip(&self.streams) {
                let start = Instant::now();
                let taken = self.take(pool, stream, self.percent(60));
                times.push(start.elapsed().as_secs_f64() * 1e9);
                refused += taken.refused;
                self.free(pool, stream, taken.blocks);
            }
        }
        must(self.device.synchronize());
        number(peer, "card two pools at 60% in turn refused", f64::from(refused));
        // The first take finds an empty card.
        nanoseconds(peer, "card two pools at 60% in turn", median(times.split_off(1)));
    }

    /// This process takes 60% of the card, frees and trims it; then another one takes 60%.
    fn two_processes(&self, peer: &str, handles: Handles) {
        let Some(pool) = pool(&self.device, handles) else { return };
        let taken = self.take(&pool, &self.streams[0], self.percent(60));
        let refused = taken.refused;
        self.free(&pool, &self.streams[0], taken.blocks);
        must(self.device.synchronize());
        must(pool.trim(0));
        match refused_in_a_child(self.percent(60), handles) {
            Some(more) => {
                let refused = f64::from(refused) + more;
                number(peer, "card two processes at 60% after trim refused", refused);
            }
            None => println!("# card: the other process did not end well"),
        }
    }
}

/// Takes so many bytes in another process, which is this program with `--take`.
fn refused_in_a_child(bytes: u64, handles: Handles) -> Option<f64> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(["--only", "card", "--take", &bytes.to_string()]);
    if handles == Handles::On {
        command.arg("--handles");
    }
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.strip_prefix(CHILD))?.parse().ok()
}

/// What the line of the other process begins with.
const CHILD: &str = "child,refused,";

/// The other process.
fn take_in_a_child(bench: &Bench, card: &Card, bytes: u64) {
    let handles = if bench.handles == Handles::On { Handles::On } else { Handles::Off };
    let Some(pool) = pool(&card.device, handles) else { return };
    let taken = card.take(&pool, &card.streams[0], bytes);
    println!("{CHILD}{}", taken.refused);
    card.free(&pool, &card.streams[0], taken.blocks);
}

pub(crate) fn card(bench: &Bench) {
    let card = Card::new(bench);
    if let Some(bytes) = bench.take {
        return take_in_a_child(bench, &card, bytes);
    }
    println!("# card: {} MiB free", card.bytes / MIB);
    for (peer, handles) in KINDS {
        card.large_block(bench, peer, handles);
        card.two_pools(peer, handles);
        // A simulated card is its process's own.
        if !bench.simulated() {
            card.two_processes(peer, handles);
        }
    }
}
