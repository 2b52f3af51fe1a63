//! Elements that are less than `Pod`: with invalid bit patterns, with padding, of zerocopy's traits.

use crate::support;
use aquifer::bytemuck::allocation::TransparentWrapperAlloc;
use aquifer::bytemuck::{CheckedBitPattern, NoUninit, TransparentWrapper, Zeroable};
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceCopy, DeviceScalar, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig,
    PinnedAlloc,
};

/// A field element of another crate, below the modulus 101.
mod field {
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(transparent)]
    pub(super) struct Fr(u64);

    impl Fr {
        pub(super) fn new(value: u64) -> Self {
            Self(value % 101)
        }
    }
}
use field::Fr;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
struct Scalar(Fr);

// SAFETY: an integer.
unsafe impl DeviceCopy for Scalar {}
// SAFETY: an integer.
unsafe impl NoUninit for Scalar {}
// SAFETY: zero is below the modulus.
unsafe impl Zeroable for Scalar {}
// SAFETY: `repr(transparent)`.
unsafe impl TransparentWrapper<Fr> for Scalar {}
// SAFETY: a number below the modulus is an `Fr`, of the same layout.
unsafe impl CheckedBitPattern for Scalar {
    type Bits = u64;

    fn is_valid_bit_pattern(bits: &u64) -> bool {
        *bits < 101
    }
}

fn elements() -> Vec<Fr> {
    (0..1000).map(Fr::new).collect()
}

#[test]
fn elements_with_invalid_bit_patterns_go_over_and_back() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let given = elements();
    let mut vec = DeviceVec::from_slice(&stream, Scalar::wrap_slice(&given))?;
    assert_eq!(Scalar::peel_vec(vec.to_vec_checked()?), given);
    assert_eq!(Scalar::peel_vec(vec.slice(1..3)?.to_vec_checked()?), given[1..3]);

    vec.push(Scalar(Fr::new(7)))?;
    vec.set(0, Scalar(Fr::new(9)))?;
    assert_eq!(vec.slice(..1)?.to_vec_checked()?, [Scalar(Fr::new(9))]);
    vec.resize(1003, Scalar(Fr::new(5)))?;
    let tail = vec.slice(1000..)?.to_vec_checked()?;
    assert_eq!(tail, [Scalar(Fr::new(7)), Scalar(Fr::new(5)), Scalar(Fr::new(5))]);

    assert_eq!(DeviceVec::<Scalar>::zeroed(&stream, 2)?.to_vec_checked()?, [Scalar(Fr::new(0)); 2]);
    let scalar = DeviceScalar::new(&stream, Scalar(Fr::new(3)))?;
    assert_eq!(scalar.into_vec().to_vec_checked()?, [Scalar(Fr::new(3))]);
    assert!(DeviceVec::<Scalar>::new(&stream)?.to_vec_checked()?.is_empty());
    Ok(())
}

#[test]
fn what_is_no_value_is_an_error_that_names_the_element() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let given = elements();
    let mut bits = DeviceVec::from_slice(&stream, Scalar::wrap_slice(&given))?.cast::<u64>()?;
    for (wrong, value) in [(0, 101), (999, u64::MAX), (500, 101)] {
        let right = bits.get(wrong)?;
        bits.set(wrong, value)?;
        let raw = bits.to_vec()?;
        // SAFETY: elements are read by `to_vec_checked` alone.
        let vec = unsafe { uploaded(&stream, &raw)? };
        let error = vec.to_vec_checked().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(&format!("at index {wrong} ")), "{error}");
        bits.set(wrong, right)?;
    }
    Ok(())
}

/// What a kernel could have written.
///
/// # Safety
///
/// Elements are read with a check.
unsafe fn uploaded(stream: &aquifer::Stream, bits: &[u64]) -> aquifer::Result<DeviceVec<Scalar>> {
    let vec = DeviceVec::from_slice(stream, bits)?;
    let (stream, block, length, resource) = vec.into_raw_parts()?;
    // SAFETY: the parts of a vector of the same layout.
    unsafe { DeviceVec::from_raw_parts(stream, block, length, resource) }
}

#[test]
fn downloads_into_uninitialised_memory_write_all_of_it() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let given = elements();
    let vec = DeviceVec::from_slice(&stream, Scalar::wrap_slice(&given))?;
    let mut host: Vec<Scalar> = Vec::with_capacity(given.len());
    vec.copy_to_uninit_slice(&mut host.spare_capacity_mut()[..given.len()])?;
    // SAFETY: written whole, with what was uploaded.
    unsafe { host.set_len(given.len()) };
    assert_eq!(Scalar::peel_slice(&host), given);
    let error = vec.copy_to_uninit_slice(&mut [std::mem::MaybeUninit::uninit(); 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LengthMismatch);

    let mut host: Vec<Scalar> = Vec::with_capacity(given.len());
    let space = &mut host.spare_capacity_mut()[..given.len()];
    stream.scope(|s| s.download_uninit(&vec, space))?;
    // SAFETY: as above.
    unsafe { host.set_len(given.len()) };
    assert_eq!(Scalar::peel_slice(&host), given);
    Ok(())
}

#[test]
fn an_owned_download_takes_the_bits() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let given = elements();
    let mut pinned = allocator_api2::vec::Vec::new_in(PinnedAlloc);
    pinned.extend(given.iter().map(|&value| Scalar(value)));
    let (_, vec) = stream.upload_new(pinned)?.wait()?;
    let (bits, vec) = stream.download(vec.cast::<u64>()?, vec![0; 1000])?.wait()?;
    assert_eq!(vec.len(), 1000);
    let back: &[Scalar] = aquifer::bytemuck::checked::try_cast_slice(&bits).expect("all below 101");
    assert_eq!(Scalar::peel_slice(back), given);
    Ok(())
}

/// A structure with four bytes of padding.
#[derive(Clone, Copy)]
#[repr(C)]
struct Params {
    count: u32,
    factor: f64,
}

// SAFETY: two numbers, without pointers.
unsafe impl DeviceCopy for Params {}

static SCALE: Kernel = Kernel::new(
    "scale",
    include_str!("../../docs/kernels/scale.ptx"),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let (data, params) = (args.in_out::<f64>()?, args.param::<Params>()?);
        data[..params.count as usize].iter_mut().for_each(|value| *value *= params.factor);
        Ok(())
    },
);

#[test]
fn parameters_with_padding_reach_the_kernel_and_its_host_form() -> Outcome {
    let device = support::device();
    let stream = device.new_stream()?;
    let mut data = DeviceVec::from_slice(&stream, &[1.0, 2.0, 3.0])?;
    let launch = stream.launch(&SCALE).in_out(&mut data)?;
    let launch = launch.param(Params { count: 2, factor: -0.5 })?;
    // SAFETY: the kernel touches the first 2 elements alone.
    unsafe { launch.launch(LaunchConfig::for_elements(2))? };
    assert_eq!(data.to_vec()?, [-0.5, -1.0, 3.0]);

    // Vectors of it are written by kernels alone.
    // SAFETY: never read.
    let vec = unsafe { DeviceVec::<Params>::uninit(&stream, 3)? };
    assert_eq!(vec.size_in_bytes(), 48);
    Ok(())
}

#[test]
fn a_param_of_another_size_is_refused_as_a_driver_would() -> Outcome {
    let stream = Device::simulated(SimConfig::default()).new_stream()?;
    let mut data = DeviceVec::from_slice(&stream, &[1.0])?;
    let launch = stream.launch(&SCALE).in_out(&mut data)?.param(1_u32)?;
    // SAFETY: it is refused.
    assert!(unsafe { launch.launch(LaunchConfig::for_elements(1)) }.is_err());
    Ok(())
}

#[cfg(feature = "zerocopy")]
#[test]
fn elements_of_zerocopy_need_no_bytemuck() -> Outcome {
    use aquifer::container::Zerocopy;

    #[derive(
        Clone, Copy, Debug, PartialEq, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes,
    )]
    #[repr(C)]
    struct Pair(u32, f32);

    let device = support::device();
    let stream = device.new_stream()?;
    let given = [Pair(1, 0.5), Pair(2, -1.0)];
    let mut vec = DeviceVec::from_slice(&stream, Zerocopy::wrap_slice(&given))?;
    assert_eq!(Zerocopy::peel_vec(vec.to_vec()?), given);
    vec.fill(Zerocopy(Pair(3, 2.0)))?;
    assert_eq!(vec.get(1)?.0, Pair(3, 2.0));
    assert_eq!(DeviceVec::<Zerocopy<Pair>>::zeroed(&stream, 1)?.get(0)?.0, Pair(0, 0.0));
    Ok(())
}
