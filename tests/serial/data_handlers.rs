//! The handler of page-locked memory, which comes from what is current for the process.

use crate::{alone, contract, support};
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{SimConfig, Simulator};
use aquifer::{
    DeviceVec, ErrorKind, MappedAlloc,
    nep49::{DataAlloc, DataHandler, with_data_handler},
    pinned::{
        CurrentPinned, PinnedResource, last_error, reset_current_pinned_resource,
        set_current_pinned_resource,
    },
};
use std::ffi::c_void;

/// Makes a resource without a pool current, on a simulated device that counts its blocks.
fn counted(body: impl FnOnce(&Simulator, &PinnedResource)) {
    let _alone = alone();
    let (device, simulator) = support::simulated(SimConfig::default());
    let pinned = PinnedResource::new(&device).unwrap();
    let before = set_current_pinned_resource(pinned.clone());
    body(&simulator, &pinned);
    match before {
        Some(before) => drop::<Option<CurrentPinned>>(set_current_pinned_resource(before)),
        None => drop(reset_current_pinned_resource()),
    }
}

#[test]
fn pinned_handlers_keep_the_contract() {
    let _alone = alone();
    for handler in [DataHandler::pinned(), DataHandler::pinned_from(0)] {
        contract::check(|| DataAlloc::new(handler.clone()));
    }
}

#[test]
fn blocks_from_4_kib_are_page_locked_and_smaller_ones_are_the_heaps() {
    counted(|simulator, pinned| {
        let array = |bytes| {
            with_data_handler(DataHandler::pinned(), || {
                let mut array: AllocVec<u8, _> = AllocVec::new_in(DataAlloc::current());
                array.resize(bytes, 1);
                array
            })
        };
        let small = array(2000);
        assert_eq!(simulator.host_blocks(), 0);
        let mut large = array(4096);
        assert_eq!(simulator.host_blocks(), 1);
        MappedAlloc::device_address(&large).unwrap();
        assert!(MappedAlloc::device_address(&small).is_err());
        assert!(large.as_ptr().addr().is_multiple_of(64));
        // Over the limit and back, with what it holds.
        large.truncate(10);
        large.shrink_to_fit();
        pinned.trim().unwrap();
        assert_eq!((simulator.host_blocks(), &large[..]), (0, &[1; 10][..]));
        large.resize(100_000, 1);
        assert_eq!(simulator.host_blocks(), 1);
        assert!(large.iter().all(|byte| *byte == 1));
        drop((small, large));
        pinned.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    });
}

#[test]
fn the_limit_is_an_option() {
    counted(|simulator, pinned| {
        let all =
            AllocVec::<u8, _>::with_capacity_in(1, DataAlloc::new(DataHandler::pinned_from(0)));
        assert_eq!(
            (simulator.host_blocks(), all.allocator().handler_name()),
            (1, "aquifer_pinned")
        );
        let none = DataHandler::pinned_from(usize::MAX);
        let none = AllocVec::<u8, _>::with_capacity_in(1 << 20, DataAlloc::new(none));
        assert_eq!(simulator.host_blocks(), 1);
        drop((all, none));
        pinned.trim().unwrap();
        assert_eq!(simulator.host_blocks(), 0);
    });
}

#[test]
fn a_c_program_frees_page_locked_blocks_by_any_size() {
    counted(|simulator, pinned| {
        let handler = DataHandler::pinned();
        let table = handler.as_raw().allocator;
        let (malloc, calloc) = (table.malloc.unwrap(), table.calloc.unwrap());
        let (realloc, free) = (table.realloc.unwrap(), table.free.unwrap());
        for said in [0, 1, 4096, usize::MAX] {
            // SAFETY: the blocks are the test's, each freed once while the handle lives.
            unsafe {
                let zeroed: *mut c_void = calloc(table.ctx, 1000, 10);
                assert!(
                    std::slice::from_raw_parts(zeroed.cast::<u8>(), 10_000)
                        .iter()
                        .all(|it| *it == 0)
                );
                let grown = realloc(table.ctx, malloc(table.ctx, 10), 50_000);
                assert_eq!(simulator.host_blocks(), 2);
                free(table.ctx, zeroed, said);
                free(table.ctx, grown, said);
            }
            pinned.trim().unwrap();
            assert_eq!(simulator.host_blocks(), 0);
        }
    });
}

#[test]
fn a_block_goes_back_where_it_came_from_when_another_resource_is_current() {
    counted(|simulator, pinned| {
        let alloc = DataAlloc::new(DataHandler::pinned());
        let vec = AllocVec::<u8, _>::with_capacity_in(10_000, alloc);
        let (elsewhere, other) = support::simulated(SimConfig::default());
        set_current_pinned_resource(PinnedResource::new(&elsewhere).unwrap());
        assert_eq!((simulator.host_blocks(), other.host_blocks()), (1, 0));
        std::thread::spawn(move || drop(vec)).join().unwrap();
        pinned.trim().unwrap();
        assert_eq!((simulator.host_blocks(), other.host_blocks()), (0, 0));
    });
}

#[test]
fn a_refusal_of_the_driver_has_its_text() {
    counted(|simulator, _| {
        let handler = DataHandler::pinned();
        let mut vec = AllocVec::<u8, _>::new_in(DataAlloc::new(handler.clone()));
        simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
        assert!(vec.try_reserve(10_000).is_err());
        let error = last_error().unwrap();
        assert_eq!((error.kind(), error.driver().unwrap().code()), (ErrorKind::OutOfMemory, 2));
        let text = error.to_string();
        assert!(text.contains("\"aquifer_pinned\"") && text.contains("page-locked"), "{text}");
        simulator.fail_call("cuMemHostAlloc", 1, 2).unwrap();
        let table = handler.as_raw().allocator;
        // SAFETY: the handle lives.
        assert!(unsafe { table.malloc.unwrap()(table.ctx, 10_000) }.is_null());
        assert_eq!(last_error().unwrap().driver().unwrap().code(), 2);
        vec.try_reserve(10_000).unwrap();
    });
}

#[test]
fn an_array_goes_to_the_device_and_back() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut host: AllocVec<u32, _> = AllocVec::new_in(DataAlloc::new(DataHandler::pinned()));
    host.extend(0..10_000);
    let (address, vec) = (host.as_ptr(), DeviceVec::<u32>::zeroed(&stream, host.len()).unwrap());
    let (mut host, vec) = stream.upload(host, vec).unwrap().wait().unwrap();
    host.fill(0);
    let (host, _vec) = stream.download(vec, host).unwrap().wait().unwrap();
    assert_eq!((host.as_ptr(), host[9_999]), (address, 9_999));
    assert_eq!(host.allocator().handler_name(), "aquifer_pinned");
}
