//! Random programs on a `DeviceVec`, on several streams, against a `Vec` that does the same.

#![allow(clippy::forget_non_drop, reason = "that a guard is forgotten has to change nothing")]

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CheckedDevice, Device, DeviceResource, DeviceVec, PoolResource, Result, Stream,
    mr::{AsyncResource, VirtualResource, current_device_resource},
};
use kernels::{add_one, copy};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};
use std::sync::Arc;

/// Streams of a program; the last is the legacy default stream.
const STREAMS: usize = 4;
/// Elements that one step adds at most.
const MANY: usize = 24;
/// Elements of a few granules of the mapped pool's.
const GRANULES: usize = 6000;

/// A step. Positions are shares of the length, in 256ths, so that every program is a valid one.
#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Extend(Vec<u32>),
    Resize(usize, u32),
    /// To some granules, or in them.
    ResizeFar(usize, u32),
    Truncate(usize),
    Clear,
    Fill((u8, u8), u32),
    Get(u8),
    Set(u8, u32),
    Reserve(usize),
    ShrinkToFit,
    /// A kernel that writes a part, on a stream.
    AddOne((u8, u8), usize),
    /// Kernels that write two parts at once, each on its stream.
    AddOneApart(u8, usize, usize),
    /// A kernel on a stream that reads a part of the one vector and writes it to the other's.
    Copy((u8, u8), usize),
    /// A copy in the order of the target's home.
    CopyAtHome((u8, u8)),
    /// A guard to read that is forgotten before any work.
    ForgetOn((u8, u8), usize),
    /// A guard to write that is forgotten before any work.
    ForgetOnMut((u8, u8), usize),
    SetStream(usize),
    /// The two vectors change places.
    Swap,
    /// The one vector becomes a clone of the other.
    Clone,
    /// The other vector is dropped, and made anew at home on a stream.
    Renew(usize, Vec<u32>),
    RawParts,
    /// As wide elements, if there is no remainder, and back.
    Cast,
    Synchronize(usize),
    /// The program's handle on a stream is dropped and a new stream takes its place.
    NewStream(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let part = || any::<(u8, u8)>();
    let stream = 0..STREAMS;
    prop_oneof![
        2 => any::<u32>().prop_map(Step::Push),
        2 => prop::collection::vec(any::<u32>(), 0..MANY).prop_map(Step::Extend),
        2 => (0..MANY, any::<u32>()).prop_map(|(length, value)| Step::Resize(length, value)),
        2 => (0..GRANULES, any::<u32>()).prop_map(|(length, value)| Step::ResizeFar(length, value)),
        1 => (0..MANY).prop_map(Step::Truncate),
        1 => Just(Step::Clear),
        2 => (part(), any::<u32>()).prop_map(|(part, value)| Step::Fill(part, value)),
        1 => any::<u8>().prop_map(Step::Get),
        1 => any::<(u8, u32)>().prop_map(|(at, value)| Step::Set(at, value)),
        1 => (0..MANY).prop_map(Step::Reserve),
        1 => Just(Step::ShrinkToFit),
        6 => (part(), stream.clone()).prop_map(|(part, stream)| Step::AddOne(part, stream)),
        3 => (any::<u8>(), stream.clone(), stream.clone())
            .prop_map(|(middle, one, two)| Step::AddOneApart(middle, one, two)),
        5 => (part(), stream.clone()).prop_map(|(part, stream)| Step::Copy(part, stream)),
        3 => part().prop_map(Step::CopyAtHome),
        2 => (part(), stream.clone()).prop_map(|(part, stream)| Step::ForgetOn(part, stream)),
        2 => (part(), stream.clone()).prop_map(|(part, stream)| Step::ForgetOnMut(part, stream)),
        3 => stream.clone().prop_map(Step::SetStream),
        2 => Just(Step::Swap),
        1 => Just(Step::Clone),
        1 => (stream.clone(), prop::collection::vec(any::<u32>(), 0..MANY))
            .prop_map(|(stream, data)| Step::Renew(stream, data)),
        1 => Just(Step::RawParts),
        1 => Just(Step::Cast),
        1 => stream.clone().prop_map(Step::Synchronize),
        1 => (0..STREAMS - 1).prop_map(Step::NewStream),
    ]
}

/// A part of `length` elements.
fn part((start, share): (u8, u8), length: usize) -> std::ops::Range<usize> {
    let start = usize::from(start) * length / 255;
    start..start + usize::from(share) * (length - start) / 255
}

/// Two vectors and what they should hold.
struct Machine {
    streams: Vec<Stream>,
    vec: DeviceVec<u32>,
    other: DeviceVec<u32>,
    resource: Arc<dyn DeviceResource>,
    /// Elements that capacities are multiples of.
    granule: usize,
    model: Vec<u32>,
    other_model: Vec<u32>,
}

impl Machine {
    /// A part that both vectors have.
    fn common(&self, share: (u8, u8)) -> std::ops::Range<usize> {
        part(share, self.model.len().min(self.other_model.len()))
    }

    /// Runs one step; `false` if the device gave another value than the model.
    fn run(&mut self, step: Step) -> Result<bool> {
        let length = self.model.len();
        match step {
            Step::Push(value) => {
                self.vec.push(value)?;
                self.model.push(value);
            }
            Step::Extend(values) => {
                self.vec.extend_from_slice(&values)?;
                self.model.extend_from_slice(&values);
            }
            Step::Resize(length, value) | Step::ResizeFar(length, value) => {
                self.vec.resize(length, value)?;
                self.model.resize(length, value);
            }
            Step::Truncate(length) => {
                self.vec.truncate(length);
                self.model.truncate(length);
            }
            Step::Clear => {
                self.vec.clear();
                self.model.clear();
            }
            Step::Fill(share, value) => {
                self.vec.slice_mut(part(share, length))?.fill(value)?;
                self.model[part(share, length)].fill(value);
            }
            Step::Get(at) => {
                let index = usize::from(at) * length / 256;
                return Ok(length == 0 || self.vec.get(index)? == self.model[index]);
            }
            Step::Set(at, value) => {
                let index = usize::from(at) * length / 256;
                if length != 0 {
                    self.vec.set(index, value)?;
                    self.model[index] = value;
                }
            }
            Step::Reserve(more) => {
                self.vec.reserve(more)?;
                return Ok(self.vec.capacity() >= length + more);
            }
            Step::ShrinkToFit => {
                self.vec.shrink_to_fit()?;
                return Ok(self.vec.capacity() <= length.next_multiple_of(self.granule));
            }
            Step::AddOne(share, stream) => {
                add_one(&self.streams[stream], &mut self.vec.slice_mut(part(share, length))?)?;
                increment(&mut self.model[part(share, length)]);
            }
            Step::AddOneApart(middle, one, two) => {
                let (mut head, mut tail) =
                    self.vec.split_at_mut(usize::from(middle) * length / 255)?;
                add_one(&self.streams[one], &mut head)?;
                add_one(&self.streams[two], &mut tail)?;
                add_one(&self.streams[one], &mut head)?;
                let head = head.len();
                increment(&mut self.model);
                increment(&mut self.model[..head]);
            }
            Step::Copy(share, stream) => {
                let range = self.common(share);
                let from = self.vec.slice(range.clone())?;
                copy(&self.streams[stream], &from, &mut self.other.slice_mut(range.clone())?)?;
                self.other_model[range.clone()].copy_from_slice(&self.model[range]);
            }
            Step::CopyAtHome(share) => {
                let range = self.common(share);
                let from = self.vec.slice(range.clone())?;
                self.other.slice_mut(range.clone())?.copy_from(&from)?;
                self.other_model[range.clone()].copy_from_slice(&self.model[range]);
            }
            Step::ForgetOn(share, stream) => {
                let view = self.vec.slice(part(share, length))?;
                std::mem::forget(view.on(&self.streams[stream])?);
            }
            Step::ForgetOnMut(share, stream) => {
                let mut view = self.vec.slice_mut(part(share, length))?;
                std::mem::forget(view.on_mut(&self.streams[stream])?);
            }
            Step::SetStream(stream) => self.vec.set_stream(&self.streams[stream])?,
            Step::Swap => {
                std::mem::swap(&mut self.vec, &mut self.other);
                std::mem::swap(&mut self.model, &mut self.other_model);
            }
            Step::Clone => {
                self.vec = self.other.try_clone()?;
                self.model = self.other_model.clone();
            }
            Step::Renew(stream, data) => {
                self.other =
                    DeviceVec::from_slice_in(&self.streams[stream], &data, self.resource.clone())?;
                self.other_model = data;
            }
            Step::RawParts => {
                let empty = DeviceVec::new_in(&self.streams[0], self.resource.clone())?;
                let vec = std::mem::replace(&mut self.vec, empty);
                let (stream, block, length, resource) = vec.into_raw_parts()?;
                // SAFETY: the parts of a vector, put together once.
                self.vec = unsafe { DeviceVec::from_raw_parts(stream, block, length, resource)? };
            }
            Step::Cast => {
                let empty = DeviceVec::new_in(&self.streams[0], self.resource.clone())?;
                let vec = std::mem::replace(&mut self.vec, empty);
                self.vec = match vec.cast::<[u32; 3]>() {
                    Ok(wide) => wide.cast::<u32>()?,
                    Err(refused) => refused.value,
                };
                return Ok(self.vec.len() == length);
            }
            Step::Synchronize(stream) => self.streams[stream].synchronize()?,
            Step::NewStream(stream) => {
                self.streams[stream] = self.vec.device().new_stream()?;
            }
        }
        Ok(true)
    }
}

fn increment(values: &mut [u32]) {
    values.iter_mut().for_each(|value| *value = value.wrapping_add(1));
}

/// Where a program's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Driver,
    Pool,
    /// A pool that maps its memory, in small granules: vectors grow where they are.
    MappedPool,
}

fn run(seed: u64, memory: Memory, program: Vec<Step>) -> Result<(), TestCaseError> {
    let fail = |error: aquifer::Error| TestCaseError::fail(error.to_string());
    let device = match memory {
        Memory::MappedPool if !support::on_gpu() => {
            let config = SimConfig::default().seed(seed).granularity(4096);
            CheckedDevice::from(Device::simulated(support::as_asked(config)))
        }
        _ => support::seeded(seed),
    };
    let mut streams = Vec::new();
    for _ in 1..STREAMS {
        streams.push(device.new_stream().map_err(fail)?);
    }
    streams.push(device.default_stream());
    let data = [1, 2, 3, 4, 5, 6, 7];
    // The pool hands out multiples of 256 bytes, the driver what is asked.
    let (resource, granule): (Arc<dyn DeviceResource>, _) = match memory {
        Memory::Pool => (current_device_resource(&device).map_err(fail)?, 64),
        Memory::MappedPool => {
            let mapped = VirtualResource::new(&device).map_err(fail)?;
            (Arc::new(PoolResource::new(mapped).map_err(fail)?), 64)
        }
        Memory::Driver => (Arc::new(AsyncResource::new(&device).map_err(fail)?), 1),
    };
    let vec = |home| DeviceVec::from_slice_in(home, &data, resource.clone()).map_err(fail);
    let mut machine = Machine {
        vec: vec(&streams[0])?,
        other: vec(&streams[1])?,
        resource: resource.clone(),
        granule,
        model: data.to_vec(),
        other_model: data.to_vec(),
        streams,
    };
    for step in program {
        let shown = format!("{step:?}");
        let held = machine.run(step);
        prop_assert!(held.map_err(fail)?, "{shown}: {:?}", machine.vec);
        prop_assert_eq!(machine.vec.len(), machine.model.len());
    }
    prop_assert_eq!(&machine.vec.to_vec().map_err(fail)?, &machine.model);
    prop_assert_eq!(&machine.other.to_vec().map_err(fail)?, &machine.other_model);
    drop((machine, resource));
    device.synchronize().map_err(fail)?;
    if let Some(simulator) = device.simulator() {
        simulator.check().map_err(fail)?;
        prop_assert_eq!((simulator.live_bytes(), simulator.live_blocks()), (0, 0));
    }
    Ok(())
}

fn memories() -> impl Strategy<Value = Memory> {
    prop_oneof![1 => Just(Memory::Driver), 1 => Just(Memory::Pool), 2 => Just(Memory::MappedPool)]
}

proptest! {
    #![proptest_config(Config { cases: 512, failure_persistence: None, ..Config::default() })]

    #[test]
    fn programs_on_many_streams_give_what_a_vec_gives(
        seed in any::<u64>(),
        memory in memories(),
        program in prop::collection::vec(step(), 0..60),
    ) {
        run(seed, memory, program)?;
    }
}
