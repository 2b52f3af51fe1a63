//! Mapped memory, as a kernel argument, kept for when its scope has ended.

use aquifer::{Error, Result, Stream};

fn misuse(stream: &Stream, host: &mut [u32]) -> Result<()> {
    let argument = stream.scope(|s| s.map_mut(host))?;
    drop(argument);
    Ok::<_, Error>(())
}

fn main() {}
