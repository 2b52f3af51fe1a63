//! Which allocations a capture takes.

use super::{BYTES, alone, unfollowed};
use crate::scope::Scope;
use crate::stack::{self, Stack, device};
use crate::status::{Failure, aquifer_status as Status};
use crate::{handles, memory, open_streams, page_map, route};
use aquifer_rs::{Device, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// An open stream, and its number.
fn open(device: &Device) -> (Stream, u32) {
    let stream = device.new_stream().unwrap();
    let number = open_streams::open(stream.clone());
    (stream, number)
}

/// One that others may capture.
fn open_foreign(device: &Device) -> (Stream, u32) {
    let handle = device.simulator().unwrap().create_foreign_stream().unwrap();
    // SAFETY: it is never destroyed.
    let stream = unsafe { Stream::from_handle(device, handle) }.unwrap();
    let number = open_streams::open(stream.clone());
    (stream, number)
}

/// The number of the capture's route by which a block came, if one did.
fn route_of_capture(address: u64) -> Option<u32> {
    let route = page_map::entry(address).unwrap().block().route;
    route::get(route).unwrap().capture.is_some().then_some(route)
}

fn is_of_capture(address: u64) -> bool {
    route_of_capture(address).is_some()
}

/// Allocates on a stream, and frees: whether the block was a capture's.
fn takes(stack: u32, stream: u32) -> bool {
    let block = memory::allocate(stack, 4096, 0, stream).unwrap();
    let is_of_capture = is_of_capture(block);
    memory::deallocate(block, 0, Some(stream)).unwrap();
    is_of_capture
}

fn allocate_warm(stack: u32, stream: u32) -> Option<u64> {
    let (stack, stream) = (handles::stack_handle(stack), handles::stream_handle(stream));
    memory::allocate_fast(stack, 4096, stream).map(|block| block.unwrap())
}

fn is_warm(stack: u32, stream: u32) -> bool {
    let Some(block) = allocate_warm(stack, stream) else { return false };
    assert!(!is_of_capture(block), "no thread remembers a capture");
    memory::deallocate(block, 0, Some(stream)).unwrap();
    true
}

/// One of two threads that meet. Where the other one fails, this one does, and waits no longer.
struct Party {
    other: Sender<()>,
    own: Receiver<()>,
}

impl Party {
    fn both() -> [Self; 2] {
        let ((first, of_first), (second, of_second)) = (mpsc::channel(), mpsc::channel());
        [Self { other: second, own: of_first }, Self { other: first, own: of_second }]
    }

    fn meet(&self) {
        let _ = self.other.send(());
        self.own.recv().expect("the other thread goes on");
    }
}

#[track_caller]
fn says<T>(result: Result<T, Failure>, status: Status, text: &str) {
    let Err(failure) = result else { panic!("it was not refused") };
    assert_eq!(failure.status(), status, "{}", failure.message());
    assert!(failure.message().contains(text), "{} is not of `{text}`", failure.message());
}

#[test]
fn a_capture_keeps_nothing_of_what_other_threads_free_on_their_streams() {
    const BLOCKS: usize = 1057;
    const GIB: usize = 1 << 30;
    let _alone = alone();
    // The other one has magazines.
    for device in [device(0).unwrap(), unfollowed()] {
        let (captured, one) = open_foreign(&device);
        let (_, two) = open(&device);
        let stack = Stack::create(Some("pool(cuda, max=4GiB)"), &device).unwrap();
        let of_stack = stack::get(stack).unwrap();
        let statistics = || of_stack.resources.pool_statistics().unwrap();
        let [own, other] = Party::both();
        std::thread::scope(|threads| {
            let (of_stack, device, captured) = (&of_stack, &device, &captured);
            let captures = threads.spawn(move || {
                of_stack.begin_capture((1, 1), Scope::of_streams(&[one]).unwrap()).unwrap();
                device.simulator().unwrap().start_capture(captured).unwrap();
                let block = memory::allocate(stack, BYTES, 0, one).unwrap();
                assert!(is_of_capture(block));
                other.meet();
                other.meet();
                assert!(device.simulator().unwrap().stop_capture(captured), "it is whole");
                memory::end_capture(of_stack, (1, 1)).unwrap();
                block
            });
            let own = own;
            own.meet();
            let of_graph = statistics().reserved;
            assert!(of_graph <= 64 << 20, "{of_graph}");
            let allocate = |bytes| memory::allocate(stack, bytes, 0, two).unwrap();
            let free = |block| memory::deallocate(block, 0, Some(two)).unwrap();
            (0..BLOCKS).for_each(|_| free(allocate(BYTES)));
            let peak = statistics().peak_reserved;
            assert!(peak <= of_graph + (64 << 20), "freed blocks are handed out again: {peak}");
            let blocks: Vec<_> = (0..BLOCKS).map(|_| allocate(BYTES)).collect();
            assert!(!blocks.iter().any(|block| is_of_capture(*block)));
            let peak = statistics().peak_reserved;
            assert!(peak < of_graph + BLOCKS * BYTES * 5 / 4, "{peak}");
            blocks.into_iter().for_each(free);
            own.meet();
            let of_capture = captures.join().unwrap();
            // The graph is not released.
            of_stack.resources.wait_and_trim(0).unwrap();
            let left = statistics().reserved;
            assert!(left <= of_graph, "{left} of {of_graph}");
            let large: Vec<_> = (0..3).map(|_| allocate(GIB)).collect();
            large.into_iter().for_each(free);
            memory::deallocate(of_capture, 0, Some(one)).unwrap();
        });
        of_stack.release_capture((1, 1)).unwrap();
        of_stack.resources.wait_and_trim(0).unwrap();
        assert_eq!(statistics().reserved, 0);
        stack::release(stack).unwrap().unwrap().close();
    }
}

#[test]
fn other_streams_are_warm_beside_a_capture_of_named_ones() {
    let _alone = alone();
    for device in [device(0).unwrap(), unfollowed()] {
        let [one, two, three] = [(); 3].map(|()| open(&device).1);
        let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
        let of_stack = stack::get(stack).unwrap();
        for stream in [one, two, three] {
            assert!(!takes(stack, stream));
            assert!(is_warm(stack, stream));
        }
        of_stack.begin_capture((1, 1), Scope::of_streams(&[three, one, three]).unwrap()).unwrap();
        for _ in 0..3 {
            for (stream, is_named) in [(one, true), (two, false), (three, true)] {
                assert_eq!(takes(stack, stream), is_named);
                assert_eq!(is_warm(stack, stream), !is_named);
            }
        }
        memory::end_capture(&of_stack, (1, 1)).unwrap();
        for stream in [one, two, three] {
            assert!(!takes(stack, stream));
            assert!(is_warm(stack, stream));
        }
        of_stack.release_capture((1, 1)).unwrap();
        stack::release(stack).unwrap().unwrap().close();
    }
}

#[test]
fn two_threads_capture_at_once_each_on_its_stream() {
    let _alone = alone();
    let device = device(0).unwrap();
    let simulator = device.simulator().unwrap();
    let streams = [(); 2].map(|()| open_foreign(&device));
    let (_, beside) = open(&device);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let capture = |number: usize, party: Party| {
        let ((stream, on), key) = (&streams[number], (7, number as u64));
        of_stack.begin_capture(key, Scope::of_streams(&[*on]).unwrap()).unwrap();
        simulator.start_capture(stream).unwrap();
        party.meet();
        let kept = memory::allocate(stack, BYTES, 0, *on).unwrap();
        for _ in 0..100 {
            let block = memory::allocate(stack, BYTES, 0, *on).unwrap();
            assert_eq!(route_of_capture(block), route_of_capture(kept));
            memory::deallocate(block, 0, Some(*on)).unwrap();
        }
        party.meet();
        // The first ends here, and the second is in its capture still.
        if number == 0 {
            assert!(simulator.stop_capture(stream), "it is whole");
            memory::end_capture(&of_stack, key).unwrap();
            assert!(!takes(stack, *on));
        }
        party.meet();
        if number == 1 {
            assert!(takes(stack, *on));
            assert!(simulator.stop_capture(stream), "it is whole");
            memory::end_capture(&of_stack, key).unwrap();
            assert!(!takes(stack, *on));
        }
        assert!(!takes(stack, beside));
        let route = route_of_capture(kept).unwrap();
        memory::deallocate(kept, 0, Some(*on)).unwrap();
        route
    };
    let [first, second] = Party::both();
    let capture = &capture;
    let routes: Vec<_> = std::thread::scope(|threads| {
        let threads = [(0, first), (1, second)]
            .map(|(number, party)| threads.spawn(move || capture(number, party)));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_ne!(routes[0], routes[1], "each has a pool of its own");
    for key in [(7, 0), (7, 1)] {
        of_stack.release_capture(key).unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(of_stack.resources.pool_statistics().unwrap().live, 0);
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn a_second_graph_of_a_key_has_the_memory_of_the_first() {
    let _alone = alone();
    let device = device(0).unwrap();
    let [one, two] = [(); 2].map(|()| open(&device).1);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let mut first = None;
    for named in [&[one][..], &[two, one]] {
        of_stack.begin_capture((1, 1), Scope::of_streams(named).unwrap()).unwrap();
        let block = memory::allocate(stack, BYTES, 0, one).unwrap();
        assert_eq!(*first.get_or_insert(block), block);
        assert_eq!(takes(stack, two), named.contains(&two));
        memory::deallocate(block, 0, Some(one)).unwrap();
        memory::end_capture(&of_stack, (1, 1)).unwrap();
    }
    of_stack.release_capture((1, 1)).unwrap();
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn a_filter_is_asked_for_each_allocation_of_a_stream() {
    let _alone = alone();
    for device in [device(0).unwrap(), unfollowed()] {
        let [(captured, one), (_, two)] = [(); 2].map(|()| open(&device));
        let default = open_streams::open(device.default_stream());
        let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
        let of_stack = stack::get(stack).unwrap();
        let [of_one, of_default] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let handle = captured.handle();
        let (ones, defaults) = (of_one.clone(), of_default.clone());
        let filter = move |stream| {
            ones.fetch_add(usize::from(stream == handle), Ordering::Relaxed);
            // As CUDA has it.
            defaults.fetch_add(usize::from(stream == 0), Ordering::Relaxed);
            stream == handle
        };
        of_stack.begin_capture((1, 1), Scope::filtered(Box::new(filter))).unwrap();
        for round in 1..=3 {
            for stream in [one, two, default] {
                assert_eq!(takes(stack, stream), stream == one);
                assert!(allocate_warm(stack, stream).is_none(), "it is asked each time");
            }
            assert_eq!(of_one.load(Ordering::Relaxed), round);
            assert_eq!(of_default.load(Ordering::Relaxed), round);
        }
        // A free asks nothing, so it is warm.
        let block = memory::allocate(stack, 4096, 0, two).unwrap();
        let freed = memory::deallocate_fast(block, 0, handles::stream_handle(two));
        assert_eq!(freed, Some(Status::AQUIFER_OK));
        memory::end_capture(&of_stack, (1, 1)).unwrap();
        for stream in [one, two] {
            assert!(!takes(stack, stream));
            assert!(is_warm(stack, stream));
        }
        assert_eq!(of_one.load(Ordering::Relaxed), 3, "it is not asked after the end");
        of_stack.release_capture((1, 1)).unwrap();
        stack::release(stack).unwrap().unwrap().close();
    }
}

/// As `torch.cuda.use_mem_pool` has it.
#[test]
fn a_filter_by_thread_is_asked_on_the_thread_that_allocates() {
    let _alone = alone();
    let device = device(0).unwrap();
    let (_, stream) = open(&device);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let [party, other] = Party::both();
    std::thread::scope(|threads| {
        let of_stack = &of_stack;
        let thread = threads.spawn(move || {
            let own = std::thread::current().id();
            let filter = move |_| std::thread::current().id() == own;
            of_stack.begin_capture((1, 1), Scope::filtered(Box::new(filter))).unwrap();
            for _ in 0..4 {
                other.meet();
                assert!(takes(stack, stream), "the thread is the filter's");
                other.meet();
            }
        });
        let party = party;
        for _ in 0..4 {
            party.meet();
            party.meet();
            assert!(!takes(stack, stream), "the thread is another one");
        }
        thread.join().unwrap();
    });
    // On another thread than the begin.
    memory::end_capture(&of_stack, (1, 1)).unwrap();
    of_stack.release_capture((1, 1)).unwrap();
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn of_filters_that_take_an_allocation_the_first_has_it_and_a_name_comes_before_both() {
    let _alone = alone();
    let device = device(0).unwrap();
    let [one, two] = [(); 2].map(|()| open(&device).1);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let route = |stream| {
        let block = memory::allocate(stack, 4096, 0, stream).unwrap();
        let route = route_of_capture(block);
        memory::deallocate(block, 0, Some(stream)).unwrap();
        route
    };
    let all = || Scope::filtered(Box::new(|_| true));
    of_stack.begin_capture((1, 1), all()).unwrap();
    let of_first = route(one);
    of_stack.begin_capture((2, 2), all()).unwrap();
    assert_eq!(route(one), of_first);
    of_stack.begin_capture((3, 3), Scope::of_streams(&[one]).unwrap()).unwrap();
    let of_name = route(one);
    assert!(of_name.is_some() && of_name != of_first);
    assert!(route(two).is_some_and(|other| Some(other) != of_name));
    memory::end_capture(&of_stack, (3, 3)).unwrap();
    assert_eq!(route(one), of_first);
    memory::end_capture(&of_stack, (1, 1)).unwrap();
    let of_second = route(one);
    assert!(of_second.is_some() && of_second != of_first && of_second != of_name);
    memory::end_capture(&of_stack, (2, 2)).unwrap();
    assert_eq!(route(one), None);
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn the_end_waits_for_a_filter_that_is_asked_and_drops_it() {
    let _alone = alone();
    let device = device(0).unwrap();
    let (_, stream) = open(&device);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    // What PyTorch's filter reads, which may go when the end has returned.
    let graph = Arc::new(AtomicBool::new(false));
    let (asks, asked) = mpsc::channel();
    let [ended, other] = Party::both();
    let filter = {
        let graph = graph.clone();
        move |_| {
            asks.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            graph.store(true, Ordering::Release);
            false
        }
    };
    of_stack.begin_capture((1, 1), Scope::filtered(Box::new(filter))).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            takes(stack, stream);
            other.meet();
            takes(stack, stream);
        });
        let ended = ended;
        // It may never be asked, which is the test's failure.
        let is_asked = asked.recv_timeout(Duration::from_secs(20));
        memory::end_capture(&of_stack, (1, 1)).unwrap();
        let (has_returned, count) = (graph.load(Ordering::Acquire), Arc::strong_count(&graph));
        ended.meet();
        is_asked.expect("the filter is asked");
        assert!(has_returned, "the end waits for it");
        assert_eq!(count, 1, "and it is gone");
    });
    of_stack.release_capture((1, 1)).unwrap();
    stack::release(stack).unwrap().unwrap().close();
}

#[test]
fn a_filter_goes_with_a_begin_that_is_refused_and_with_its_stack() {
    let _alone = alone();
    let device = device(0).unwrap();
    let (_, stream) = open(&device);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let counted = Arc::new(());
    let filter = || {
        let counted = counted.clone();
        Scope::filtered(Box::new(move |_| Arc::strong_count(&counted) > 0))
    };
    of_stack.begin_capture((1, 1), filter()).unwrap();
    says(of_stack.begin_capture((1, 1), filter()), Status::AQUIFER_ERROR_CAPTURE, "end it first");
    assert_eq!(Arc::strong_count(&counted), 2);
    assert!(takes(stack, stream));
    stack::release(stack).unwrap().unwrap().close();
    assert_eq!(Arc::strong_count(&counted), 1);
    says(of_stack.begin_capture((2, 2), filter()), Status::AQUIFER_ERROR_CLOSED, "released");
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn a_filter_that_calls_the_library_is_not_asked_again_and_ends_nothing() {
    let _alone = alone();
    let device = device(0).unwrap();
    let (_, stream) = open(&device);
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let counted = Arc::new(());
    let filter = {
        let (of_stack, counted) = (of_stack.clone(), counted.clone());
        move |_| {
            assert!(!takes(stack, stream), "it is the filter's own");
            says(
                memory::end_capture(&of_stack, (1, 1)),
                Status::AQUIFER_ERROR_CAPTURE,
                "when the filter has returned",
            );
            if Arc::strong_count(&counted) > 2 {
                stack::release(stack).unwrap().unwrap().close();
            }
            true
        }
    };
    of_stack.begin_capture((1, 1), Scope::filtered(Box::new(filter))).unwrap();
    assert!(takes(stack, stream));
    // It waits for nothing, and goes when it has returned.
    let third = counted.clone();
    let refused = memory::allocate(stack, 4096, 0, stream);
    says(refused, Status::AQUIFER_ERROR_CLOSED, "released");
    drop(third);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn captures_that_cannot_be_say_what_to_do() {
    let _alone = alone();
    let device = device(0).unwrap();
    let [(foreign, one), (_, two)] = [(); 2].map(|()| open_foreign(&device));
    let (_, elsewhere) = open(&unfollowed());
    let (_, shut) = open(&device);
    memory::close_stream(shut).unwrap();
    let stack = Stack::create(Some("pool(cuda)"), &device).unwrap();
    let of_stack = stack::get(stack).unwrap();
    let named = |numbers: &[u32]| Scope::of_streams(numbers).unwrap();
    let in_capture = Status::AQUIFER_ERROR_CAPTURE;
    let argument = Status::AQUIFER_ERROR_INVALID_ARGUMENT;
    says(of_stack.end_capture((1, 1)), argument, "begin it first");
    says(of_stack.release_capture((1, 1)), argument, "begin it first");
    says(Scope::of_streams(&[one, shut]).map(drop), Status::AQUIFER_ERROR_CLOSED, "keep it");
    memory::close_stream(one).unwrap();
    let one = open_streams::open(foreign);
    let wrong = of_stack.begin_capture((1, 1), named(&[one, elsewhere]));
    says(wrong, Status::AQUIFER_ERROR_WRONG_DEVICE, "name streams of the stack's device");
    of_stack.begin_capture((1, 1), named(&[one])).unwrap();
    let again = "give the other graph a key of its own";
    says(of_stack.begin_capture((1, 1), named(&[two])), in_capture, again);
    let other = "end that first, or capture on another stream";
    says(of_stack.begin_capture((2, 2), named(&[two, one])), in_capture, other);
    let all = "name streams";
    says(of_stack.begin_capture((2, 2), Scope::AllStreams), in_capture, all);
    says(of_stack.release_capture((1, 1)), argument, "end it first");
    says(of_stack.end_capture((2, 2)), argument, "begin it first");
    // Opened again, it would be another stream's number.
    says(memory::close_stream(one), in_capture, "call capture_end first");
    assert!(takes(stack, one), "it is open still");
    assert!(!takes(stack, two), "what was refused takes nothing");
    memory::end_capture(&of_stack, (1, 1)).unwrap();
    says(of_stack.end_capture((1, 1)), argument, "begin it first");
    memory::close_stream(one).unwrap();
    of_stack.begin_capture((2, 2), Scope::AllStreams).unwrap();
    says(of_stack.begin_capture((3, 3), named(&[two])), in_capture, "with its own streams");
    assert!(takes(stack, two));
    // Of another device, it is the stack that refuses it.
    let wrong = memory::allocate(stack, 4096, 0, elsewhere);
    says(wrong, Status::AQUIFER_ERROR_WRONG_DEVICE, "");
    says(memory::allocate(stack, 4096, 0, one), Status::AQUIFER_ERROR_CLOSED, "closed");
    memory::end_capture(&of_stack, (2, 2)).unwrap();
    for key in [(1, 1), (2, 2)] {
        of_stack.release_capture(key).unwrap();
        says(of_stack.release_capture(key), argument, "release it once");
    }
    memory::close_stream(two).unwrap();
    // A stack that goes in a capture lets go of the streams.
    let (_, three) = open(&device);
    of_stack.begin_capture((3, 3), named(&[three])).unwrap();
    stack::release(stack).unwrap().unwrap().close();
    memory::close_stream(three).unwrap();
}
