//! Graphs on a GPU: the end of a capture, and instantiation.

use super::library::{Handle, Library, out_param};
use crate::driver::{DriverResult, RawGraph, has_ended_capture};

/// Ends the capture that began on `stream`. The caller destroys the returned template.
fn template(library: &Library, stream: Handle) -> DriverResult<Handle> {
    // SAFETY: `graph` is writable for the call, which sets it to null if the capture was invalidated.
    out_param(|graph| unsafe { library.stream_end_capture(stream, graph) })
}

/// Ends the capture that began on `stream`, and makes it executable.
pub(super) fn end(library: &Library, stream: Handle) -> DriverResult<RawGraph> {
    let graph = template(library, stream)?;
    // SAFETY: `executable` is writable for the call; the template came from the line above.
    let made = out_param(|executable| unsafe { library.graph_instantiate(executable, graph, 0) });
    // The executable graph is a copy. A template that cannot be destroyed is leaked.
    // SAFETY: the template is not used after this.
    let _ = unsafe { library.graph_destroy(graph) };
    made.map(RawGraph)
}

/// Ends the capture that began on `stream` and discards its template.
pub(super) fn abandon(library: &Library, stream: Handle) -> DriverResult<()> {
    match template(library, stream) {
        // SAFETY: the template is not used after this.
        Ok(graph) => unsafe { library.graph_destroy(graph) },
        Err(error) if has_ended_capture(&error) => Ok(()),
        Err(error) => Err(error),
    }
}
