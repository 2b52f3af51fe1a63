//! A test for Miri, with pointers of several chunks into one buffer, while all are written and moved.

use super::*;

fn written_by_turns<B: HostBuffer<Item = u32> + Deref<Target = [u32]>>(buffer: B) {
    let mut chunks = HostChunk::new(buffer).into_chunks(3).unwrap();
    let (first, rest) = chunks.split_first_mut().unwrap();
    let lent: &mut [u32] = first;
    for chunk in rest.iter_mut() {
        chunk[0] = 7;
        lent[0] += 1;
        let (pointer, length) = chunk.parts();
        // SAFETY: the last element of the chunk, which nothing else has.
        unsafe { pointer.add(length - 1).write(9) };
        lent[2] += chunk[length - 1];
    }
    // Each moves, as into a transfer, and one goes to another thread.
    let last = chunks.pop().unwrap();
    let last = std::thread::spawn(move || last).join().unwrap();
    chunks.insert(0, last);
    let whole = HostChunk::from_chunks(chunks).unwrap().into_inner().unwrap();
    assert_eq!(*whole, [2, 0, 18, 7, 0, 9, 9]);
}

#[test]
fn chunks_are_written_by_turns() {
    written_by_turns(vec![0; 7]);
    written_by_turns(vec![0; 7].into_boxed_slice());
    written_by_turns(HostChunk::new(vec![0; 7].into_boxed_slice()));
}

#[test]
fn the_last_chunk_drops_the_buffer() {
    let mut head = HostChunk::new(vec![1_u32, 2]);
    let tail = head.split_off(1).unwrap();
    drop(head);
    assert_eq!(*tail, [2]);
    drop(tail);
}
