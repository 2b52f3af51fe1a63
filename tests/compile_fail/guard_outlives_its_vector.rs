//! A guard that outlives the vector that it lends.

use aquifer::{DeviceVec, Result, Stream};

fn misuse(home: &Stream, other: &Stream) -> Result<()> {
    let guard = {
        let vec = DeviceVec::<u32>::zeroed(home, 3)?;
        vec.on(other)?
    };
    drop(guard);
    Ok(())
}

fn main() {}
