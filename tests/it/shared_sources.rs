//! Uploads from shared and immutable host memory.

use crate::support;
use aquifer::pinned::{HostChunk, HostRead, Registered};
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, ErrorKind, PinnedAlloc, Stream};
use std::sync::{Arc, Weak};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

static PRIMES: [u32; 5] = [2, 3, 5, 7, 11];

/// Uploads a source, whose elements are these, and gets it back.
fn goes_over<B: HostRead<Item = u32>>(stream: &Stream, source: B, elements: &[u32]) -> Outcome<B> {
    let (source, vec) = stream.upload_new(source)?.wait()?;
    assert_eq!(vec.to_vec()?, elements);
    let target = DeviceVec::zeroed(stream, 1)?;
    let (source, vec) = stream.upload_range(source, 1..2, target, ..)?.wait()?;
    assert_eq!(vec.get(0)?, elements[1]);
    Ok(source)
}

#[test]
fn each_kind_of_source_goes_over() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let list = [1, 2, 3_u32];
    goes_over(&stream, &PRIMES[..], &PRIMES)?;
    let shared: Arc<[u32]> = Arc::from(list);
    let other = shared.clone();
    let back = goes_over(&stream, shared, &list)?;
    assert!(Arc::ptr_eq(&back, &other));
    goes_over(&stream, Arc::new(list.to_vec()), &list)?;
    goes_over(&stream, Arc::new(Box::<[u32]>::from(list)), &list)?;
    let mut pinned = allocator_api2::vec::Vec::new_in(PinnedAlloc);
    pinned.extend(list);
    let pinned = goes_over(&stream, Arc::new(pinned), &list)?;
    let pinned = Arc::try_unwrap(pinned).map_err(|_| "the only owner")?;
    let boxed = Arc::new(pinned.into_boxed_slice());
    goes_over(&stream, boxed, &list)?;

    let mut chunk = HostChunk::new(vec![9, 1, 2, 3_u32]);
    let chunk = Arc::new(chunk.split_off(1)?);
    goes_over(&stream, chunk.clone(), &list)?;
    let registered = Registered::read_only(stream.device(), chunk);
    let registered = goes_over(&stream, registered.map_err(|failed| failed.error)?, &list)?;
    assert_eq!(registered[..], list);
    Ok(())
}

#[test]
fn others_read_while_the_device_does_and_a_drop_gives_up_one_owner() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let shared: Arc<[u32]> = Arc::from(vec![7; 10_000]);
    let uploads: Vec<_> =
        (0..3).map(|_| stream.upload_new(shared.clone())).collect::<Result<_, _>>()?;
    assert_eq!((Arc::strong_count(&shared), shared[9_999]), (4, 7));
    drop(uploads);
    stream.synchronize()?;
    let weak: Weak<[u32]> = Arc::downgrade(&shared);
    let vec = DeviceVec::from_vec(&stream, shared)?;
    assert_eq!(vec.to_vec()?, [7; 10_000]);
    stream.synchronize()?;
    assert!(weak.upgrade().is_none(), "freed when the copy is complete");
    Ok(())
}

#[test]
fn a_source_comes_back_with_an_error() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let shared: Arc<[u32]> = Arc::from([1, 2]);
    let failed = stream.upload(shared.clone(), DeviceVec::zeroed(&stream, 3)?).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::LengthMismatch);
    let (back, _vec) = *failed.buffers.ok_or("both buffers")?;
    assert!(Arc::ptr_eq(&back, &shared));

    let device = Device::simulated(SimConfig::default().without_read_only_host_register());
    let failed = Registered::read_only(&device, shared.clone()).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Unsupported);
    assert!(Arc::ptr_eq(&failed.buffer.ok_or("the source")?, &shared));
    let failed = Registered::read_only(stream.device(), &[0_u8; 0][..]).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidArgument);
    Ok(())
}

#[test]
fn shared_memory_is_locked_again_after_a_drop() -> Outcome {
    let device = support::device();
    let shared: Arc<[u32]> = Arc::from(vec![3; 5000]);
    for _ in 0..3 {
        let registered = Registered::read_only(&device, shared.clone()).map_err(|it| it.error)?;
        assert_eq!(registered[4999], 3);
        drop(registered);
    }
    Ok(())
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_go_over_and_stay_shared() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let whole = bytes::Bytes::from(vec![1, 2, 3, 4, 5]);
    let (part, vec) = stream.upload_new(whole.slice(1..4))?.wait()?;
    assert_eq!((vec.to_vec()?, &part[..]), (vec![2, 3, 4], &whole[1..4]));
    let upload = stream.upload_new(bytes::Bytes::from_static(b"abc"))?;
    drop(upload);
    // Not unique while the copy has a handle.
    let upload = stream.upload_new(whole.clone())?;
    assert!(whole.clone().try_into_mut().is_err());
    assert_eq!(upload.wait()?.1.to_vec()?, [1, 2, 3, 4, 5]);
    Ok(())
}

#[cfg(feature = "arrow")]
#[test]
fn columns_of_arrow_go_over_typed() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let column: arrow_buffer::ScalarBuffer<f32> = vec![1.0, 2.0, 3.0].into();
    let (column, vec) = stream.upload_new(column.slice(1, 2))?.wait()?;
    assert_eq!((vec.to_vec()?, &column[..]), (vec![2.0, 3.0], &[2.0, 3.0][..]));
    let (_, bytes) = stream.upload_new(column.into_inner())?.wait()?;
    assert_eq!(bytes.cast::<f32>()?.to_vec()?, [2.0, 3.0]);
    Ok(())
}

#[cfg(feature = "memmap2")]
#[test]
fn a_file_goes_over_where_it_is_mapped() -> Outcome {
    use std::io::Write;

    let mut file = tempfile::tempfile()?;
    let elements: Vec<u32> = (0..100_000).collect();
    file.write_all(aquifer::bytemuck::cast_slice(&elements))?;
    // SAFETY: nobody else has the file.
    let map = Arc::new(unsafe { memmap2::Mmap::map(&file)? });
    let device = support::device();
    let stream = device.new_stream()?;
    let (map, vec) = stream.upload_new(map)?.wait()?;
    assert_eq!(vec.cast::<u32>()?.to_vec()?, elements);
    match Registered::read_only(stream.device(), map) {
        Ok(registered) => {
            let (_, vec) = stream.upload_new(registered)?.wait()?;
            assert_eq!(vec.cast::<u32>()?.to_vec()?, elements);
        }
        // Some GPUs read no memory that they may not write.
        Err(failed) => {
            let error = failed.error;
            assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Driver), "{error}");
            support::skipped("a_file_goes_over_where_it_is_mapped", &error.to_string());
        }
    }
    Ok(())
}
