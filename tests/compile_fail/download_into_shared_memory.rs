//! Others read what is shared.

use aquifer::{DeviceVec, Stream};
use std::sync::Arc;

fn misuse(stream: &Stream, vec: DeviceVec<u32>, shared: Arc<[u32]>) {
    let _ = stream.download(vec, shared);
}

fn main() {}
