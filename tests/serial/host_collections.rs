//! The host's collections live in page-locked and mapped memory.

use crate::{alone, support};
use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as AllocBox;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{DeviceVec, MappedAlloc, PinnedAlloc, pinned::PinnedResource};
use hashbrown::{HashMap, HashSet};
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Everything below, in one kind of memory.
fn check<A: Allocator + Clone + Send + Sync + 'static>(allocator: A) {
    vectors(allocator.clone());
    vectors_of_owners(allocator.clone());
    zero_sized(allocator.clone());
    boxes(allocator.clone());
    byte_strings(allocator.clone());
    maps(allocator.clone());
    sets(allocator.clone());
    macros(allocator.clone());
    across_threads(allocator);
}

#[test]
fn collections_live_in_pinned_memory() {
    let _alone = alone();
    check(PinnedAlloc);
}

#[test]
fn collections_live_in_mapped_memory() {
    let _alone = alone();
    check(MappedAlloc);
}

#[test]
fn collections_live_in_a_resource_of_their_own() {
    let _alone = alone();
    let device = support::device();
    let pinned = PinnedResource::new(&device).unwrap();
    check(pinned.clone());
    pinned.trim().unwrap();
    if let Some(simulator) = device.simulator() {
        assert_eq!(simulator.host_blocks(), 0);
    }
}

/// Counts what is dropped.
#[derive(Clone, Debug)]
struct Owner(Arc<AtomicUsize>, String);

impl Owner {
    fn many(count: usize) -> (Arc<AtomicUsize>, impl Iterator<Item = Self>) {
        let dropped = Arc::new(AtomicUsize::new(0));
        let counter = dropped.clone();
        (dropped, (0..count).map(move |n| Self(counter.clone(), format!("owner {n}"))))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn vectors<A: Allocator + Clone>(allocator: A) {
    let mut vec: AllocVec<u32, A> = AllocVec::new_in(allocator.clone());
    assert_eq!(vec.capacity(), 0);
    for n in 0..10_000 {
        vec.push(n);
    }
    assert!(vec.iter().copied().eq(0..10_000));
    assert_eq!(vec.drain(100..9_900).sum::<u32>(), (100..9_900).sum());
    assert_eq!(vec.len(), 200);
    vec.shrink_to_fit();
    assert!(vec.capacity() < 10_000);
    vec.extend(vec.clone().iter().map(|n| n + 1));
    vec.extend_from_slice(&[7; 100]);
    vec.insert(0, 42);
    assert_eq!((vec.remove(0), vec.swap_remove(0)), (42, 0));
    vec.retain(|n| n % 2 == 1);
    vec.dedup();
    vec.sort_unstable_by_key(|n| std::cmp::Reverse(*n));
    assert!(vec.is_sorted_by_key(|n| std::cmp::Reverse(*n)));
    let tail = vec.split_off(10);
    let replaced: Vec<u32> = vec.splice(2..4, [1, 2, 3]).collect();
    assert_eq!((vec.len(), replaced.len()), (11, 2));
    vec.truncate(3);
    vec.resize(6, 9);
    assert_eq!(vec[3..], [9, 9, 9]);
    let boxed = tail.into_boxed_slice();
    assert_eq!(boxed.clone().into_vec()[..], boxed[..]);
    assert_eq!(AllocVec::from_iter_in_order(allocator, 5), [0, 1, 2, 3, 4]);
}

/// What `collect` would be.
trait FromIterIn<A: Allocator> {
    fn from_iter_in_order(allocator: A, count: u32) -> Self;
}

impl<A: Allocator> FromIterIn<A> for AllocVec<u32, A> {
    fn from_iter_in_order(allocator: A, count: u32) -> Self {
        let mut vec = AllocVec::with_capacity_in(count as usize, allocator);
        vec.extend(0..count);
        vec
    }
}

fn vectors_of_owners<A: Allocator + Clone>(allocator: A) {
    let (dropped, owners) = Owner::many(1000);
    let mut vec = AllocVec::new_in(allocator.clone());
    vec.extend(owners);
    let mut iterator = vec.into_iter();
    assert_eq!(iterator.next().unwrap().1, "owner 0");
    assert_eq!(iterator.next_back().unwrap().1, "owner 999");
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    drop(iterator);
    assert_eq!(dropped.load(Ordering::Relaxed), 1000);

    let (dropped, owners) = Owner::many(100);
    let mut nested: AllocVec<AllocVec<Owner, A>, A> = AllocVec::new_in(allocator.clone());
    for owner in owners {
        let mut inner = AllocVec::new_in(allocator.clone());
        inner.push(owner);
        nested.push(inner);
    }
    assert_eq!(nested.drain(50..60).take(3).count(), 3);
    assert_eq!(dropped.load(Ordering::Relaxed), 10);
    drop(nested);
    assert_eq!(dropped.load(Ordering::Relaxed), 100);
}

fn zero_sized<A: Allocator + Clone>(allocator: A) {
    let mut vec: AllocVec<(), A> = AllocVec::new_in(allocator.clone());
    assert_eq!(vec.capacity(), usize::MAX);
    vec.resize(1_000_000, ());
    assert_eq!(vec.into_iter().count(), 1_000_000);
    #[repr(align(8192))]
    #[derive(Clone)]
    struct Aligned;
    let mut vec = AllocVec::new_in(allocator.clone());
    vec.extend(std::iter::repeat_n(Aligned, 10));
    assert!(vec.as_ptr().addr().is_multiple_of(8192));
    let boxed = AllocBox::new_in(Aligned, allocator.clone());
    assert!(std::ptr::from_ref(&*boxed).addr().is_multiple_of(8192));
    let mut empty: AllocVec<u64, A> = AllocVec::with_capacity_in(0, allocator);
    empty.shrink_to_fit();
    assert!(empty.into_boxed_slice().is_empty());
}

trait Speaks: Debug {
    fn speak(&self) -> String;
}

impl Speaks for Owner {
    fn speak(&self) -> String {
        self.1.clone()
    }
}

fn boxes<A: Allocator + Clone>(allocator: A) {
    let (dropped, mut owners) = Owner::many(2);
    let boxed = AllocBox::new_in(owners.next().unwrap(), allocator.clone());
    let speaker: AllocBox<dyn Speaks, A> = aquifer::allocator_api2::unsize_box!(boxed);
    assert_eq!(speaker.speak(), "owner 0");
    drop(speaker);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let boxed = AllocBox::new_in(owners.next().unwrap(), allocator.clone());
    let inner = AllocBox::into_inner(boxed);
    assert_eq!(inner.speak(), "owner 1");
    #[repr(align(65536))]
    struct Page([u8; 65536]);
    let page = AllocBox::new_in(Page([7; 65536]), allocator.clone());
    assert!(std::ptr::from_ref(&*page).addr().is_multiple_of(65536));
    assert!(page.0.iter().all(|byte| *byte == 7));
    let function: AllocBox<dyn Fn(u32) -> u32, A> =
        aquifer::allocator_api2::unsize_box!(AllocBox::new_in(|n| n + 1, allocator));
    assert_eq!(function(1), 2);
}

fn byte_strings<A: Allocator + Clone>(allocator: A) {
    let mut text: AllocVec<u8, A> = AllocVec::new_in(allocator);
    std::io::Write::write_all(&mut Appends(&mut text), "page-locked \u{1F4A7}".as_bytes()).unwrap();
    assert_eq!(std::str::from_utf8(&text).unwrap(), "page-locked \u{1F4A7}");
    let frozen = text.into_boxed_slice();
    assert_eq!(frozen.split(|byte| *byte == b'-').count(), 2);
    assert!(frozen.starts_with(b"page"));
}

struct Appends<'a, A: Allocator>(&'a mut AllocVec<u8, A>);

impl<A: Allocator> std::io::Write for Appends<'_, A> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn maps<A: Allocator + Clone>(allocator: A) {
    let mut map: HashMap<u64, String, RandomState, A> =
        HashMap::with_hasher_in(RandomState::new(), allocator.clone());
    for n in 0..10_000 {
        assert!(map.insert(n, n.to_string()).is_none());
    }
    assert_eq!(map.len(), 10_000);
    assert!((0..10_000).all(|n| map[&n] == n.to_string()));
    map.retain(|n, _| n % 100 == 0);
    map.shrink_to_fit();
    assert!(map.capacity() < 1000);
    assert_eq!(map.remove(&100).as_deref(), Some("100"));
    *map.entry(200).or_default() += "!";
    assert_eq!(map.clone()[&200], "200!");
    assert!(map.try_reserve(usize::MAX / 64).is_err());
    assert_eq!(map.drain().count(), 99);
    map.insert(1, "again".into());
    assert_eq!(map.into_iter().next().unwrap().1, "again");
}

fn sets<A: Allocator + Clone>(allocator: A) {
    let new = || HashSet::with_hasher_in(RandomState::new(), allocator.clone());
    let (mut even, mut small) = (new(), new());
    even.extend((0..1000_u32).map(|n| n * 2));
    small.extend(0..1000_u32);
    assert_eq!(even.intersection(&small).count(), 500);
    assert!(even.contains(&1998) && !even.contains(&1999));
}

fn macros<A: Allocator + Clone>(allocator: A) {
    // The form with a list is for `Global` alone in allocator-api2 0.2.
    let filled = aquifer::allocator_api2::vec![in allocator.clone(); 5_u64; 1000];
    let empty: AllocVec<u8, A> = aquifer::allocator_api2::vec![in allocator];
    assert_eq!((filled.iter().sum::<u64>(), empty.len()), (5000, 0));
}

fn across_threads<A: Allocator + Clone + Send + Sync + 'static>(allocator: A) {
    let mut vec = AllocVec::new_in(allocator.clone());
    vec.extend(0..1000_u64);
    let vec = std::thread::spawn(move || {
        vec.extend(1000..100_000);
        vec
    });
    let vec = vec.join().unwrap();
    assert!(vec.iter().copied().eq(0..100_000));
    let shared = Arc::new(vec);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let shared = shared.clone();
            scope.spawn(move || assert_eq!(shared[part * 1000], part as u64 * 1000));
        }
    });
    let map = std::thread::spawn(move || {
        let mut map = HashMap::with_hasher_in(RandomState::new(), allocator);
        map.extend((0..1000).map(|n| (n, n * n)));
        map
    });
    let map = map.join().unwrap();
    assert_eq!(map[&30], 900);
    std::thread::spawn(move || drop((map, shared))).join().unwrap();
}

#[test]
fn a_pinned_vector_goes_to_the_device_and_back() {
    let _alone = alone();
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pinned = PinnedResource::new(&device).unwrap();
    let mut host: AllocVec<u32, PinnedResource> = AllocVec::new_in(pinned.clone());
    host.extend(0..100_000);
    let address = host.as_ptr();
    let vec = DeviceVec::from_slice(&stream, &host).unwrap();
    let back = vec.to_vec_in(PinnedAlloc).unwrap();
    assert_eq!(back[..], host[..]);
    // An owned transfer gives the very vector back.
    let (mut host, vec) = stream.upload(host, vec).unwrap().wait().unwrap();
    assert_eq!(host.as_ptr(), address);
    host.fill(0);
    let (host, vec) = stream.download(vec, host).unwrap().wait().unwrap();
    assert!(host.iter().copied().eq(0..100_000));
    assert_eq!(host.as_ptr(), address);
    assert_eq!(vec.to_vec_in(pinned).unwrap()[..], host[..]);
}
