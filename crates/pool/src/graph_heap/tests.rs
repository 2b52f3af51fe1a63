//! A graph heap against a model of bytes.

use super::*;
use crate::Block;
use std::collections::BTreeSet;

const UNIT: u64 = 1 << UNIT_SHIFT;
/// The thread that records.
const HERE: u64 = 5;
const OWN: SlotId = 7;
const OTHER: SlotId = 9;

fn chunk(at: u64, units: u64) -> Block {
    Block { address: at * UNIT, token: at, bytes: (units * UNIT) as usize }
}

fn heap_with(graphs: &[usize]) -> GraphHeap {
    let mut heap = GraphHeap::new(3, false);
    graphs.iter().for_each(|graph| heap.begin(*graph, HERE));
    heap
}

/// All memory is ready.
fn any(_: Tag) -> usize {
    usize::MAX
}

fn tokens(free: &[Cached]) -> Vec<u64> {
    free.iter().map(|block| block.token).collect()
}

#[test]
fn captures_take_what_others_have_freed_and_only_where_it_is_ready() {
    let mut heap = heap_with(&[1, 2]);
    assert!(heap.allocate((1, HERE), (4, 256), any).is_none(), "there is nothing yet");
    let first = heap.add_chunk(1, &chunk(16, 4), 0, (OWN, 5)).unwrap();
    assert_eq!((first.address, first.units), (16 * UNIT, 4));
    assert!(heap.allocate((2, HERE), (1, 256), any).is_none(), "it is in use");
    assert_eq!(heap.free_made(first.node, 2), Err(NotLive(first.node)), "not its own");
    heap.free_made(first.node, 1).unwrap();
    assert_eq!(heap.free_made(first.node, 1), Err(NotLive(first.node)), "twice");
    assert_eq!(heap.tags(), [OWN]);
    // It has the stamp that it had before its capture took it.
    assert!(
        heap.allocate((2, HERE), (2, 256), |tag| if tag == OWN { 4 } else { usize::MAX }).is_none()
    );
    assert!(heap.allocate((2, HERE + 1), (2, 256), any).is_none(), "another thread");
    let second = heap.allocate((2, HERE), (2, 256), |tag| if tag == OWN { 5 } else { 0 }).unwrap();
    assert_eq!(second.address, first.address);
    assert_eq!((heap.bytes_of(1), heap.bytes_of(2)), (1024, 512));
    assert_eq!((heap.bytes(), heap.free_bytes(), heap.graphs()), (1024, 512, 2));
    heap.free_made(second.node, 2).unwrap();
    // The second is gone, and the first may still run.
    assert_eq!(tokens(&heap.end(2, OWN, 8)), []);
    assert_eq!(heap.waits_of(1), [(OWN, 5), (OWN, 8)]);
    assert_eq!(tokens(&heap.end(1, OWN, 9)), [16]);
    assert!(heap.is_over());
}

#[test]
fn what_a_capture_leaves_over_stops_the_graphs_that_would_write_over_it() {
    let mut heap = heap_with(&[1, 2, 3]);
    let scratch = heap.add_chunk(1, &chunk(0, 8), 0, (0, 0)).unwrap();
    heap.free_made(scratch.node, 1).unwrap();
    let left = heap.allocate((2, HERE), (2, 256), any).unwrap();
    let freed = heap.allocate((2, HERE), (2, 256), any).unwrap();
    heap.free_made(freed.node, 2).unwrap();
    assert_eq!(
        heap.overwritten_by(1),
        0,
        "the capture is not over, and its memory has no contents"
    );
    assert!(heap.end_capture(2));
    assert_eq!([1, 2, 3].map(|graph| heap.overwritten_by(graph)), [2 * UNIT, 0, 0]);
    // A capture of later works elsewhere.
    assert!(heap.allocate((2, HERE), (1, 256), any).is_none(), "its capture is over");
    let late = heap.add_chunk(2, &chunk(64, 1), 0, (0, 0)).unwrap();
    assert!(!heap.is_made_by(late.node, 2), "its work may run for real");
    assert_eq!(heap.free(late.node, OWN, 1), Ok(false), "the graph may have it");
    let third = heap.allocate((3, HERE), (6, 256), any).unwrap();
    assert!(heap.end_capture(3));
    assert_eq!([1, 2, 3].map(|graph| heap.overwritten_by(graph)), [8 * UNIT, 6 * UNIT, 0]);
    assert_eq!(heap.launches_after(1), []);
    assert_eq!(heap.free(left.node, OWN, 1), Ok(false));
    assert_eq!([1, 2, 3].map(|graph| heap.launches_after(graph)), [vec![(OWN, 1)], vec![], vec![]]);
    assert_eq!(heap.free(left.node, OWN, 1), Err(NotLive(left.node)));
    assert_eq!([1, 2, 3].map(|graph| heap.overwritten_by(graph)), [6 * UNIT, 6 * UNIT, 0]);
    // Graphs that are gone stop nobody, and the vector stays.
    for (graph, goes) in [(3, vec![]), (2, vec![64]), (1, vec![])] {
        assert_eq!(tokens(&heap.end(graph, OWN, 2)), goes);
    }
    assert!(!heap.is_over());
    assert_eq!(heap.free(third.node, OTHER, 4), Ok(true), "now all of it can go back");
    heap.use_unused(4);
    // Each end came after launches that the next use comes after, too.
    let mut waits = heap.waits_of(4);
    waits.sort_unstable();
    waits.dedup();
    assert_eq!(waits, [(OWN, 1), (OWN, 2), (OTHER, 4)]);
    assert_eq!(tokens(&heap.end(4, OTHER, 5)), [0]);
    assert!(heap.is_over());
}

#[test]
fn a_heap_that_is_open_stays() {
    let mut heap = GraphHeap::new(0, true);
    heap.begin(1, HERE);
    let block = heap.add_chunk(1, &chunk(0, 1), 0, (0, 0)).unwrap();
    heap.free_made(block.node, 1).unwrap();
    assert_eq!(tokens(&heap.end(1, OWN, 0)), [0]);
    assert!(!heap.is_over());
    heap.is_open = false;
    assert!(heap.is_over());
}

/// A live block, the graph that has made it, and whether that one's capture is over.
type Live = (GraphBlock, usize, bool);

#[test]
fn it_is_what_a_model_of_bytes_says() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut heap = heap_with(&[]);
        let (mut next_graph, mut next_chunk) = (1, 0);
        // Graphs with the units that they use, and whether they record.
        let mut graphs: BTreeMap<usize, (BTreeSet<u64>, bool)> = BTreeMap::new();
        let mut chunks: BTreeMap<u64, u64> = BTreeMap::new();
        let mut live: Vec<Live> = Vec::new();
        let units = |block: &GraphBlock| {
            let first = block.address / UNIT;
            first..first + u64::from(block.units)
        };
        for _ in 0..400 {
            let recording: Vec<usize> =
                graphs.iter().filter(|(_, it)| it.1).map(|(graph, _)| *graph).collect();
            match random.u32(..10) {
                0 | 1 if recording.len() < 3 => {
                    heap.begin(next_graph, HERE);
                    graphs.insert(next_graph, (BTreeSet::new(), true));
                    next_graph += 1;
                }
                2..=5 if !recording.is_empty() => {
                    let graph = recording[random.usize(..recording.len())];
                    let size = random.u32(1..9);
                    let block =
                        heap.allocate((graph, HERE), (size, 256), any).unwrap_or_else(|| {
                            // Some adjoin.
                            next_chunk += u64::from(random.bool());
                            let new = chunk(next_chunk, u64::from(size));
                            chunks.insert(next_chunk, u64::from(size));
                            next_chunk += u64::from(size);
                            heap.add_chunk(graph, &new, 0, (OWN, 0)).unwrap()
                        });
                    assert_eq!(block.units, size);
                    let is_live = |unit: u64| live.iter().any(|it| units(&it.0).contains(&unit));
                    assert!(!units(&block).any(is_live), "handed out twice");
                    graphs.get_mut(&graph).unwrap().0.extend(units(&block));
                    live.push((block, graph, false));
                }
                6 | 7 if !live.is_empty() => {
                    let (block, graph, is_over) = live.swap_remove(random.usize(..live.len()));
                    if !is_over && random.bool() {
                        heap.free_made(block.node, graph).unwrap();
                    } else {
                        let goes = heap.free(block.node, OTHER, 1).unwrap();
                        let is_idle = |(at, size): (&u64, &u64)| {
                            let chunk = *at..*at + *size;
                            let is_in = |unit: u64| chunk.contains(&unit);
                            units(&block).any(is_in)
                                && !graphs.values().any(|it| it.0.iter().copied().any(is_in))
                                && !live.iter().any(|it| units(&it.0).any(is_in))
                        };
                        assert_eq!(goes, chunks.iter().any(is_idle));
                        if goes {
                            heap.use_unused(next_graph);
                            for block in heap.end(next_graph, OWN, 1) {
                                assert!(chunks.remove(&(block.address / UNIT)).is_some());
                            }
                            next_graph += 1;
                        }
                    }
                }
                8 if !recording.is_empty() => {
                    let graph = recording[random.usize(..recording.len())];
                    heap.end_capture(graph);
                    graphs.get_mut(&graph).unwrap().1 = false;
                    live.iter_mut().filter(|it| it.1 == graph).for_each(|it| it.2 = true);
                }
                _ => {
                    let over: Vec<usize> =
                        graphs.iter().filter(|(_, it)| !it.1).map(|(graph, _)| *graph).collect();
                    if over.is_empty() {
                        continue;
                    }
                    let graph = over[random.usize(..over.len())];
                    graphs.remove(&graph);
                    for block in heap.end(graph, OWN, 1) {
                        let at = block.address / UNIT;
                        let size = chunks.remove(&at).expect("a chunk that is there");
                        let is_in = |unit: u64| (at..at + size).contains(&unit);
                        assert!(!graphs.values().any(|it| it.0.iter().copied().any(is_in)));
                        assert!(!live.iter().any(|it| units(&it.0).any(is_in)));
                    }
                }
            }
            assert_eq!(heap.bytes() as u64, chunks.values().sum::<u64>() * UNIT);
            let in_use: u32 = live.iter().map(|it| it.0.units).sum();
            assert_eq!((heap.bytes() - heap.free_bytes()) as u64, u64::from(in_use) * UNIT);
            for (graph, (used, _)) in &graphs {
                assert_eq!(heap.bytes_of(*graph) as u64, used.len() as u64 * UNIT);
                let left = live.iter().filter(|it| it.2 && it.1 != *graph);
                let over = left.filter(|it| units(&it.0).any(|unit| used.contains(&unit)));
                let over: u64 = over.map(|it| u64::from(it.0.units) * UNIT).sum();
                assert_eq!(heap.overwritten_by(*graph), over, "seed {seed}");
            }
        }
        graphs.keys().for_each(|graph| drop(heap.end(*graph, OWN, 1)));
        for (block, ..) in live {
            if heap.free(block.node, OTHER, 1) == Ok(true) {
                heap.use_unused(next_graph);
                heap.end(next_graph, OWN, 1);
            }
        }
        assert!(heap.is_over(), "seed {seed}: {heap:?}");
    }
}
