//! The end of a loan puts this stream in order, which has to be the owner's still.

use aquifer::Device;
use aquifer::container::BorrowedVec;
use aquifer::stream::BorrowedStream;

unsafe fn misuse<'a>(device: &Device, stream: u64, address: u64) -> BorrowedVec<'a, f32> {
    let stream = unsafe { BorrowedStream::new(device, stream).unwrap() };
    unsafe { BorrowedVec::new(&stream, address, 9).unwrap() }
}

fn main() {}
