//! Operations on a heap, decoded from bytes: blocks never overlap, only live ones can be freed, and no
//! byte is lost.

use aquifer_pool::heap::{Heap, Node, Piece, Tag};

const SHIFT: u32 = 8;
const TAGS: [Tag; 4] = [0, 1, 2, 4000];
const RANGE_BYTES: u64 = 1 << 20;

/// A live block: its node, address and bytes.
type Live = (Node, u64, u64);

/// Runs the operations that `input` says, four bytes each, then frees and takes everything back.
pub fn heap_operations(input: &[u8]) {
    let mut heap = Heap::new(SHIFT, TAGS[1]);
    let mut live: Vec<Live> = Vec::new();
    let mut outside = 0;
    let mut added = 0;
    for operation in input.chunks_exact(4) {
        let [kind, tag, first, second] = [0, 1, 2, 3].map(|at| operation[at]);
        let tag = TAGS[usize::from(tag % 4)];
        match kind % 8 {
            0 if added < 64 => {
                let bytes = (u64::from(first) + 1) << SHIFT;
                let address = (1 << 30) + u64::from(added) * RANGE_BYTES;
                heap.add(
                    tag,
                    Piece { upstream_block: added, address, bytes, stamp: usize::from(second) },
                );
                added += 1;
                outside += bytes;
            }
            0..=3 => allocate(&mut heap, &mut live, tag, first, second),
            4 | 5 if !live.is_empty() => {
                let (node, _, bytes) = live.swap_remove(usize::from(first) % live.len());
                let units = heap.free(node, tag, usize::from(second)).expect("it is live");
                assert!(u64::from(units) << SHIFT >= bytes, "the free block holds what was freed");
            }
            6 => {
                let node = Node::from(first);
                if live.iter().all(|(of, ..)| *of != node) {
                    assert!(heap.free(node, tag, 0).is_err(), "no live block was freed");
                }
            }
            _ => {
                let [from, stamp] = [first, second].map(usize::from);
                heap.retag(TAGS[from % 4], stamp, tag, stamp);
            }
        }
    }
    for (node, ..) in live {
        heap.free(node, TAGS[0], 0).expect("it is live");
    }
    let mut pieces = Vec::new();
    for tag in TAGS {
        heap.extract_all(tag, usize::MAX, &mut pieces);
    }
    assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), outside, "bytes were lost");
}

fn allocate(heap: &mut Heap, live: &mut Vec<Live>, tag: Tag, first: u8, second: u8) {
    let units = u32::from(first % 64) + 1;
    let align = 1_u64 << (second % 14);
    let upto = if second < 128 { usize::MAX } else { usize::from(second) };
    let Some(taken) = heap.allocate(tag, units, align, upto) else { return };
    let bytes = u64::from(units) << SHIFT;
    assert_eq!(taken.address % align, 0);
    assert_eq!(heap.live(taken.node), Ok((taken.address, units)));
    assert_eq!(taken.address / RANGE_BYTES, (taken.address + bytes - 1) / RANGE_BYTES);
    for (_, address, length) in &*live {
        let apart = taken.address + bytes <= *address || address + length <= taken.address;
        assert!(apart, "two live blocks overlap at {:#x}", taken.address);
    }
    live.push((taken.node, taken.address, bytes));
}
