//! Blocks of one size.

use super::{KIB, MIB, allocate, disjoint, free, refused, support};
use aquifer::sim::SimConfig;
use aquifer::{CudaResource, DeviceLayout, DeviceResource, ErrorKind, mr::FixedSizeResource};
use std::sync::Arc;

#[test]
fn nothing_is_taken_before_it_is_asked_for_and_then_a_chunk() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    assert_eq!((resource.block_size(), simulator.live_bytes()), (MIB, 0));
    let block = allocate(&resource, &stream, 1).unwrap();
    assert_eq!((block.bytes(), resource.statistics().reserved), (MIB, 128 * MIB));
    assert_eq!(resource.statistics().live, MIB);
    free(&resource, &stream, block);
    assert_eq!(resource.statistics().live, 0);
    assert_eq!(resource.wait_and_trim(0).unwrap(), 128 * MIB);
    assert_eq!(simulator.live_bytes(), 0);
}

#[test]
fn a_chunk_serves_its_blocks_and_the_next_block_takes_another() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::builder(CudaResource::new(&device))
        .block_size(3 * 256)
        .blocks_per_chunk(5)
        .build()
        .unwrap();
    let sizes = [1, 255, 256, 257, 767, 768];
    let blocks: Vec<_> =
        sizes.iter().map(|bytes| allocate(&resource, &stream, *bytes).unwrap()).collect();
    assert!(blocks.iter().all(|block| block.bytes() == 768), "{blocks:?}");
    disjoint(&blocks);
    let statistics = resource.statistics();
    assert_eq!((statistics.growths, statistics.reserved), (2, 2 * 5 * 768));
    assert_eq!((statistics.live, statistics.live_blocks), (6 * 768, 6));
    blocks.into_iter().for_each(|block| free(&resource, &stream, block));
    assert_eq!(resource.wait_and_trim(5 * 768).unwrap(), 5 * 768);
    assert_eq!(resource.statistics().reserved, 5 * 768);
}

#[test]
fn initial_blocks_are_there_at_once_and_are_enough() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for block in [64 * KIB, 768 * KIB, 3 * MIB] {
        let resource = FixedSizeResource::builder(CudaResource::new(&device))
            .block_size(block)
            .initial_blocks(7)
            .build()
            .unwrap();
        assert_eq!(resource.statistics().reserved, 7 * block);
        let blocks: Vec<_> = (0..7).map(|_| allocate(&resource, &stream, 1).unwrap()).collect();
        disjoint(&blocks);
        assert_eq!(resource.statistics().growths, 1, "{block}: {:?}", resource.statistics());
        blocks.into_iter().for_each(|block| free(&resource, &stream, block));
    }
}

#[test]
fn more_than_a_block_is_out_of_memory_and_says_the_block_size() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    for bytes in [MIB + 1, 2 * MIB, 1 << 40, usize::MAX / 2, usize::MAX / 2 - 255] {
        let layout = DeviceLayout::with_alignment(bytes, 1).unwrap();
        let result = resource.allocate(&stream, layout);
        refused(result, ErrorKind::OutOfMemory, &format!("{bytes} bytes"));
        refused(resource.allocate(&stream, layout), ErrorKind::OutOfMemory, "blocks have 1048576");
    }
    refused(allocate(&resource, &stream, usize::MAX), ErrorKind::InvalidArgument, "address space");
    let result = resource.allocate(&stream, DeviceLayout::with_alignment(1, 1 << 62).unwrap());
    refused(result, ErrorKind::OutOfMemory, "(ask for a smaller alignment)");
    assert_eq!(resource.statistics().reserved, 0, "nothing was asked of upstream");
}

#[test]
fn no_bytes_are_an_empty_block() {
    let device = support::device();
    let other = support::device();
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    let block = allocate(&resource, &stream, 0).unwrap();
    assert!(block.is_empty());
    free(&resource, &stream, block);
    assert_eq!(resource.statistics().reserved, 0);
    if !support::on_gpu() {
        let elsewhere = other.new_stream().unwrap();
        refused(allocate(&resource, &elsewhere, 0), ErrorKind::WrongDevice, "stream");
        refused(allocate(&resource, &elsewhere, 1), ErrorKind::WrongDevice, "stream");
    }
}

#[test]
fn alignments_are_kept() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::builder(CudaResource::new(&device))
        .block_size(5 * 256)
        .blocks_per_chunk(4)
        .build()
        .unwrap();
    let mut held = Vec::new();
    for power in (0..=21).rev().chain(0..=21) {
        let layout = DeviceLayout::with_alignment(100, 1 << power).unwrap();
        let block = resource.allocate(&stream, layout).unwrap();
        assert!(block.address().is_multiple_of(1 << power), "{block:?} for {layout:?}");
        assert_eq!(block.bytes(), 5 * 256);
        held.push(block);
    }
    disjoint(&held);
    held.into_iter().for_each(|block| free(&resource, &stream, block));
    resource.wait_and_trim(0).unwrap();
    assert_eq!(resource.statistics().reserved, 0);
}

#[test]
fn options_that_make_no_sense_are_errors() {
    let device = support::device();
    let upstream = CudaResource::new(&device);
    let builder = || FixedSizeResource::builder(upstream.clone());
    for block in [0, 1, 255, 1000, 1 << 40, usize::MAX, usize::MAX - 255] {
        let text = format!("blocks of {block} byte");
        refused(builder().block_size(block).build(), ErrorKind::InvalidArgument, &text);
    }
    let built = builder().blocks_per_chunk(0).build();
    refused(built, ErrorKind::InvalidArgument, "chunks of no blocks");
    for blocks in [usize::MAX, 1 << 43] {
        let built = builder().blocks_per_chunk(blocks).build();
        refused(built, ErrorKind::InvalidArgument, "address space");
        let built = builder().initial_blocks(blocks).build();
        refused(built, ErrorKind::InvalidArgument, "address space");
    }
    assert!(builder().block_size((1 << 40) - 512).blocks_per_chunk(1).build().is_ok());
}

#[test]
fn where_upstream_has_less_than_a_chunk_its_blocks_are_used_all_the_same() {
    let (device, _) = support::simulated(SimConfig::default().capacity(8 << 20));
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match allocate(&resource, &stream, MIB) {
            Ok(block) => held.push(block),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), held.len()), (ErrorKind::OutOfMemory, 8), "{error}");
    held.into_iter().for_each(|block| free(&resource, &stream, block));
}

#[test]
fn handles_are_one_resource() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let resource = FixedSizeResource::new(CudaResource::new(&device)).unwrap();
    let (clone, other) =
        (resource.clone(), FixedSizeResource::new(CudaResource::new(&device)).unwrap());
    assert!(resource == clone && resource != other);
    let erased =
        |resource: &FixedSizeResource| Arc::new(resource.clone()) as Arc<dyn DeviceResource>;
    assert!(*erased(&resource) == *erased(&clone) && *erased(&resource) != *erased(&other));
    let block = allocate(&resource, &stream, 100).unwrap();
    free(&clone, &stream, block);
    assert_eq!(resource.statistics().live, 0);
}
