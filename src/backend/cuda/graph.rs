//! Graphs on a GPU: from the end of a capture to something that can be launched.

use super::library::{Handle, Library};
use crate::backend::{DriverResult, RawGraph};
use crate::error::DriverError;

/// Ends the capture that began on `stream`: the template that it recorded, which its caller destroys.
fn template(library: &Library, stream: Handle) -> DriverResult<Handle> {
    let mut graph = 0;
    // SAFETY: `graph` is writable for the call, which sets it to null where the capture was lost.
    unsafe { library.stream_end_capture(stream, &raw mut graph) }?;
    Ok(graph)
}

/// Ends the capture that began on `stream`, and makes it executable.
pub(super) fn end(library: &Library, stream: Handle) -> DriverResult<RawGraph> {
    let graph = template(library, stream)?;
    let mut executable = 0;
    // SAFETY: `executable` is writable for the call; the template came from the line above.
    let made = unsafe { library.graph_instantiate(&raw mut executable, graph, 0) };
    // The executable is a copy. A template that cannot be destroyed is leaked, and harms nobody.
    // SAFETY: the template is ours alone, and not used after this.
    let _ = unsafe { library.graph_destroy(graph) };
    made.map(|()| RawGraph(executable))
}

/// Ends the capture that began on `stream`, and throws away what it recorded.
pub(super) fn abandon(library: &Library, stream: Handle) -> DriverResult<()> {
    match template(library, stream) {
        // SAFETY: the template is ours alone, and not used after this.
        Ok(graph) => unsafe { library.graph_destroy(graph) },
        // A capture that was lost has nothing to throw away, and has ended all the same.
        Err(error) => match error.code() {
            DriverError::STREAM_CAPTURE_INVALIDATED | DriverError::STREAM_CAPTURE_UNJOINED => {
                Ok(())
            }
            _ => Err(error),
        },
    }
}
