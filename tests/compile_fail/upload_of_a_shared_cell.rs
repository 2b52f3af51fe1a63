//! Others could write while the device reads.

use aquifer::Stream;
use std::cell::Cell;
use std::sync::Arc;

fn misuse(stream: &Stream, shared: Arc<[Cell<u32>]>) {
    let _ = stream.upload_new(shared);
}

fn main() {}
