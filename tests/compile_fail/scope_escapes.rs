//! The handle of a scope, kept for when it has ended.

use aquifer::{Result, Stream, transfer::Scope};

fn misuse(stream: &Stream) -> Result<()> {
    let mut kept: Option<&Scope<'_, '_>> = None;
    stream.scope(|s| {
        kept = Some(s);
        Ok::<_, aquifer::Error>(())
    })?;
    drop(kept);
    Ok(())
}

fn main() {}
