//! A capture that loses its graph.

use aquifer::{Device, Result, Stream};

/// Costs the capture its graph, as a library would that was told of none.
pub(crate) fn spoil(device: &Device, stream: &Stream) -> Result<()> {
    if let Some(simulator) = device.simulator() {
        let joined = device.new_stream()?;
        joined.wait_for(stream)?;
        assert!(!simulator.stop_capture(&joined), "it is not the one that began");
    }
    #[cfg(feature = "cuda")]
    if let Ok(stream) = stream.cuda_stream() {
        assert!(stream.synchronize().is_err());
    }
    Ok(())
}
