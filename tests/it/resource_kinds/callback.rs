//! Memory that closures hand out.

use super::log::Log;
use super::{MIB, allocate, free, refused, support};
use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Error, ErrorKind,
    Stream, mr::CallbackResource,
};
use std::sync::{Arc, Mutex};
use tracing::Level;

type Calls = Arc<Mutex<Vec<(&'static str, Stream, usize, usize)>>>;

fn recording(device: &Device) -> (CallbackResource, Calls) {
    let calls = Calls::default();
    let (plain, asked, freed) = (CudaResource::new(device), calls.clone(), calls.clone());
    let back = plain.clone();
    let allocate = move |stream: &Stream, layout: DeviceLayout| {
        let call = ("allocate", stream.clone(), layout.bytes(), layout.alignment());
        asked.lock().unwrap().push(call);
        plain.allocate(stream, layout)
    };
    let deallocate = move |stream: &Stream, block: DeviceBlock| {
        freed.lock().unwrap().push(("free", stream.clone(), block.bytes(), 0));
        // SAFETY: the block is the plain resource's; the caller vouches for the rest.
        unsafe { back.deallocate(stream, block) }
    };
    // SAFETY: every block is the plain resource's, and goes back to it unchanged.
    let resource = unsafe { CallbackResource::new(device, allocate, deallocate) };
    (resource, calls)
}

#[test]
fn each_closure_is_called_once_with_all_that_was_asked() {
    let device = support::device();
    let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let (resource, calls) = recording(&device);
    for alignment in [256, 512, 4096, 2 * MIB] {
        let layout = DeviceLayout::with_alignment(10 * MIB, alignment).unwrap();
        let block = resource.allocate(&one, layout).unwrap();
        free(&resource.clone(), &two, block);
        let seen = std::mem::take(&mut *calls.lock().unwrap());
        let wanted =
            [("allocate", one.clone(), 10 * MIB, alignment), ("free", two.clone(), 10 * MIB, 0)];
        assert_eq!(seen, wanted);
    }
    let empty = allocate(&resource, &one, 0).unwrap();
    assert!(empty.is_empty());
    free(&resource, &one, empty);
    if !support::on_gpu() {
        let elsewhere = support::device().new_stream().unwrap();
        refused(allocate(&resource, &elsewhere, 1), ErrorKind::WrongDevice, "stream");
    }
    assert!(calls.lock().unwrap().is_empty());
}

#[test]
fn vectors_live_in_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let (resource, calls) = recording(&device);
    let vec = DeviceVec::from_slice_in(&stream, &[1_u32, 2, 3], Arc::new(resource)).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1, 2, 3]);
    drop(vec);
    device.synchronize().unwrap();
    let names: Vec<_> = calls.lock().unwrap().iter().map(|call| call.0).collect();
    assert_eq!(names, ["allocate", "free"]);
}

#[test]
fn its_errors_are_passed_on() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let full = |_: &Stream, _| Err(Error::new(ErrorKind::OutOfMemory, "the shelf is empty"));
    // SAFETY: it hands out nothing.
    let resource = unsafe { CallbackResource::new(&device, full, |_, _| {}) };
    refused(allocate(&resource, &stream, 1), ErrorKind::OutOfMemory, "the shelf is empty");
}

#[test]
fn a_panic_is_an_error_of_the_one_and_a_line_in_the_log_of_the_other() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // SAFETY: it hands out nothing.
    let thrower = unsafe {
        CallbackResource::new(&device, |_, layout| panic!("no {}", layout.bytes()), |_, _| {})
    };
    refused(allocate(&thrower, &stream, 7), ErrorKind::Unsupported, "panicked: no 7");

    /// What panics again when it is dropped.
    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("once more");
        }
    }
    let frees: [fn(&Stream, DeviceBlock); 2] =
        [|_, _| panic!("not today"), |_, _| std::panic::panic_any(Grenade)];
    for (deallocate, text) in frees.into_iter().zip(["not today", "it threw no text"]) {
        let made = |_: &Stream, layout: DeviceLayout| Ok(DeviceBlock::new(4096, layout.bytes(), 0));
        // SAFETY: the memory that it hands out is not used.
        let resource = unsafe { CallbackResource::new(&device, made, deallocate) };
        let block = allocate(&resource, &stream, 256).unwrap();
        let ((), log) = Log::of(|| free(&resource, &stream, block));
        assert_eq!(log.count(Level::ERROR, "a callback panicked"), 1, "{:?}", log.lines());
        assert_eq!(log.count(Level::ERROR, text), 1, "{:?}", log.lines());
    }
}

#[test]
fn it_equals_its_clones_alone() {
    let device = support::device();
    let ((one, _), (other, _)) = (recording(&device), recording(&device));
    assert!(one == one.clone() && one != other);
    let erased = |one: &CallbackResource| Arc::new(one.clone()) as Arc<dyn DeviceResource>;
    assert!(*erased(&one) == *erased(&one.clone()) && *erased(&one) != *erased(&other));
}
