//! A device that writes memory which was page-locked to be read alone faults.

use aquifer::pinned::Registered;
use aquifer::{Device, DeviceVec, Stream};

fn misuse(device: &Device, stream: &Stream, vec: DeviceVec<u8>) {
    let host = Registered::read_only(device, vec![0_u8; 9]).unwrap();
    let _ = stream.download(vec, host);
}

fn main() {}
