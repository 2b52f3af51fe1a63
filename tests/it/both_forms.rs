//! Both forms of a kernel do the same: each run is made on the simulated device, and on GPU 0 where there is
//! one. The documentation of `Kernel` shows how; here are the kernels of the suite and of the examples.

use crate::kernels::{self, ADD_ONE, DOUBLE};
use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    CheckedDevice, Device, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, Result, Stream,
};
use std::fmt::Debug;

/// Around the 256 threads of a block, and none at all.
const LENGTHS: [usize; 7] = [0, 1, 255, 256, 257, 1000, 70_000];

/// Makes a run on each device, and compares what it gives.
fn on_both<R: PartialEq + Debug>(name: &str, run: impl Fn(&Device) -> Result<R>) {
    let device = CheckedDevice::simulated(SimConfig::default());
    let by_host_form = run(&device).unwrap();
    device.finish().unwrap();
    match Device::open(0) {
        Ok(gpu) => assert_eq!(run(&gpu).unwrap(), by_host_form, "{name}: PTX, then the host form"),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice), "{error}");
            support::skipped(name, "no GPU");
        }
    }
}

fn numbers(length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| index.wrapping_mul(2_654_435_761)).collect()
}

/// A kernel of `data` and its length, on numbers.
fn in_place(stream: &Stream, kernel: &Kernel, length: usize) -> Result<Vec<u32>> {
    let mut data = DeviceVec::from_slice(stream, &numbers(length))?;
    let launch = stream.launch(kernel).in_out(&mut data)?.scalar(length as u32)?;
    // SAFETY: the kernel touches `length` elements of `data` alone.
    unsafe { launch.launch(LaunchConfig::for_elements(length))? };
    data.to_vec()
}

#[test]
fn kernels_of_one_vector_do_the_same() {
    static OF_THE_EXAMPLE: Kernel = Kernel::new(
        "double",
        include_str!("../../docs/kernels/double.ptx"),
        |_: &LaunchConfig, mut args: HostArgs<'_>| {
            let data = args.in_out::<u32>()?;
            let n = args.scalar::<u32>()? as usize;
            data[..n].iter_mut().for_each(|value| *value = value.wrapping_shl(1));
            Ok(())
        },
    );
    for (name, kernel) in [("add_one", &ADD_ONE), ("double", &DOUBLE), ("example", &OF_THE_EXAMPLE)]
    {
        on_both(name, |device| {
            let stream = device.new_stream()?;
            let lengths = LENGTHS.into_iter();
            lengths.map(|length| in_place(&stream, kernel, length)).collect::<Result<Vec<_>>>()
        });
    }
}

#[test]
fn a_kernel_of_two_vectors_does_the_same() {
    on_both("copy_words", |device| {
        let stream = device.new_stream()?;
        let copied = LENGTHS.map(|length| {
            let from = DeviceVec::from_slice(&stream, &numbers(length))?;
            let mut to = DeviceVec::<u32>::zeroed(&stream, length)?;
            kernels::copy(&stream, &from, &mut to)?;
            to.to_vec()
        });
        copied.into_iter().collect::<Result<Vec<_>>>()
    });
}

#[test]
fn a_kernel_of_blocks_with_shared_memory_does_the_same() {
    static HISTOGRAM: Kernel = Kernel::new(
        "histogram",
        include_str!("../../docs/kernels/histogram.ptx"),
        |_: &LaunchConfig, mut args: HostArgs<'_>| {
            let data = args.input::<u8>()?;
            let length = args.scalar::<u64>()? as usize;
            let bins = args.in_out::<u32>()?;
            data[..length].iter().for_each(|byte| bins[usize::from(*byte)] += 1);
            Ok(())
        },
    );
    on_both("histogram", |device| {
        let stream = device.new_stream()?;
        let counted = LENGTHS.map(|length| {
            let bytes: Vec<u8> =
                numbers(length).iter().map(|number| (number >> 24) as u8).collect();
            let data = DeviceVec::from_slice(&stream, &bytes)?;
            let mut bins = DeviceVec::<u32>::zeroed(&stream, 256)?;
            let launch = stream.launch(&HISTOGRAM).input(&data)?.scalar(length as u64)?;
            let launch = launch.in_out(&mut bins)?;
            let config = LaunchConfig { grid: (3, 1, 1), block: (256, 1, 1), shared_bytes: 0 };
            // SAFETY: it reads `length` bytes of `data` and adds to the 256 bins.
            unsafe { launch.launch(config)? };
            bins.to_vec()
        });
        counted.into_iter().collect::<Result<Vec<_>>>()
    });
}

#[test]
fn structures_are_passed_by_value() {
    /// The elements, and four terms.
    type Terms = [u64; 5];
    static SUM: Kernel = Kernel::new(
        "sum_of_terms",
        r#"
        .version 6.4
        .target sm_50
        .address_size 64
        .visible .entry sum_of_terms(.param .u64 out, .param .align 8 .b8 terms[40], .param .u8 last) {
            .reg .u32 %r<2>; .reg .u64 %rd<4>;
            ld.param.u64 %rd1, [out];
            cvta.to.global.u64 %rd1, %rd1;
            ld.param.u64 %rd2, [terms+8];
            ld.param.u64 %rd3, [terms+32];
            add.u64 %rd2, %rd2, %rd3;
            ld.param.u8 %r1, [last];
            cvt.u64.u32 %rd3, %r1;
            add.u64 %rd2, %rd2, %rd3;
            st.global.u64 [%rd1], %rd2;
            ret;
        }"#,
        |_: &LaunchConfig, mut args: HostArgs<'_>| {
            let out = args.output::<u64>()?;
            let terms = args.scalar::<Terms>()?;
            out[0] = terms[1] + terms[4] + u64::from(args.scalar::<u8>()?);
            Ok(())
        },
    );
    on_both("a structure", |device| {
        let stream = device.new_stream()?;
        let mut out = DeviceVec::<u64>::zeroed(&stream, 1)?;
        let terms: Terms = [1, 20, 300, 4000, 50_000];
        let launch = stream.launch(&SUM).output(&mut out)?.scalar(terms)?.scalar(7_u8)?;
        // SAFETY: the kernel writes `out` alone.
        unsafe { launch.launch(LaunchConfig::for_elements(1))? };
        let sum = out.to_vec()?;
        assert_eq!(sum, [50_027]);
        Ok(sum)
    });
}
