//! Driver calls of the pool that fail: it says so, publishes nothing too early, and goes on.

use crate::player::{Expected, Given, Player};
use crate::shared::{Item, Step, lock, unexpected};
use aquifer::{
    CudaResource, DeviceLayout, DeviceResource,
    mr::{AsyncResource, VirtualResource},
};
use std::sync::atomic::Ordering;

/// A call, and the code that it fails with.
const CALLS: [(&str, u32); 11] = [
    ("cuMemAlloc", 2),
    ("cuMemCreate", 2),
    ("cuMemAllocFromPoolAsync", 2),
    ("cuEventRecord", 999),
    ("cuEventRecord", 400),
    ("cuStreamWaitEvent", 999),
    ("cuStreamWaitEvent", 400),
    ("cuEventQuery", 999),
    ("cuEventSynchronize", 999),
    ("cuStreamSynchronize", 999),
    ("cuStreamIsCapturing", 999),
];

impl Player<'_> {
    pub(crate) fn trouble(&mut self) -> Step {
        let Some(simulator) = self.shared.simulator.clone() else { return Ok(()) };
        if lock(&self.shared.captured).is_some() {
            return Ok(());
        }
        let (call, code) = self.random.pick(&CALLS);
        let before = simulator.call_count(call);
        // The first call, or the second, so that one of two gets through.
        let nth = 1 + self.random.below(2) as u64;
        simulator.fail_call(call, nth, code).map_err(unexpected("arming a failure"))?;
        self.says(|| format!("call {nth} of {call} fails with {code}"));
        let given = self.suffer()?;
        let made = simulator.call_count(call) - before;
        if made >= nth {
            self.shared.count("failures of driver calls");
            match call {
                "cuEventRecord" => self.shared.count("failed records"),
                "cuStreamWaitEvent" => self.shared.count("failed waits"),
                _ => {}
            }
            if call.starts_with("cuMemAlloc") || call == "cuMemCreate" {
                self.shared.count("failed allocations");
            } else {
                // A failed allocation costs nothing. These may cost memory, if that is said aloud.
                self.shared.may_leak.store(true, Ordering::Relaxed);
            }
        }
        for _ in made..nth {
            self.disarm(call)?;
        }
        match given {
            Some(item) => self.write(item),
            None => Ok(()),
        }
    }

    /// Something that only the pool makes driver calls for. What it gives is not written yet: the
    /// failure might hit the vector's own calls.
    fn suffer(&mut self) -> Step<Option<Item>> {
        match self.random.below(9) {
            0..5 => {
                let Some(stream) = self.stream() else { return Ok(None) };
                let length = self.length();
                match self.allocate(&stream, length, Expected::Trouble)? {
                    Given::Memory(item) if self.random.one_in(2) => return Ok(Some(item)),
                    Given::Memory(item) => self.drop_item(item),
                    Given::Refused | Given::NoPool => {}
                }
            }
            5..7 => {
                let clean = |item: &Item| item.lent.is_empty();
                if let Some(index) = self.items.iter().position(clean) {
                    let item = self.items.swap_remove(index);
                    self.drop_item(item);
                }
            }
            7 => self.try_to_detach()?,
            _ => {
                if let Some((pool, _)) = self.pool() {
                    let _ = pool.wait_and_trim(0);
                }
            }
        }
        Ok(None)
    }

    /// Makes the call itself, so that the failure hits nobody else.
    fn disarm(&mut self, call: &str) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        let layout = DeviceLayout::new(256).map_err(unexpected("a layout"))?;
        let give_back = |resource: &dyn DeviceResource| {
            if let Ok(block) = resource.allocate(&stream, layout) {
                // SAFETY: the block is this resource's, and no work uses it.
                unsafe { resource.deallocate(&stream, block) };
            }
        };
        let event = || stream.record().map_err(unexpected("recording to disarm"));
        match call {
            "cuMemAlloc" => give_back(&CudaResource::new(&self.shared.device)),
            "cuMemCreate" => {
                let mapped = VirtualResource::new(&self.shared.device);
                give_back(&mapped.map_err(unexpected("mapped memory"))?);
            }
            "cuMemAllocFromPoolAsync" => {
                give_back(&AsyncResource::new(&self.shared.device).map_err(unexpected("a pool"))?);
            }
            "cuEventRecord" => drop(stream.record()),
            "cuStreamWaitEvent" => drop(stream.wait(&event()?)),
            "cuEventQuery" => drop(event()?.is_complete()),
            "cuEventSynchronize" => drop(event()?.synchronize()),
            "cuStreamSynchronize" => drop(stream.synchronize()),
            "cuStreamIsCapturing" => {
                // Asked of streams alone that may be in a capture which nobody declared.
                let Some(simulator) = &self.shared.simulator else { return Ok(()) };
                let own = self.shared.device.new_stream().map_err(unexpected("a stream"))?;
                simulator.start_capture(&own).map_err(unexpected("a capture to disarm"))?;
                drop(own.is_capturing());
                simulator.stop_capture(&own);
            }
            _ => return Err(format!("{call} cannot be disarmed")),
        }
        Ok(())
    }
}
