//! What a GPU takes the simulated device takes, and what it refuses that refuses too.

use crate::{kernels, support};
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceResource, DeviceVec, Error, ErrorKind, HostArgs, Kernel,
    LaunchConfig, PoolResource, Result, Stream,
    kernel::Launch,
    mr::{AsyncResource, ManagedResource},
    pinned::PinnedResource,
};
use bytemuck::{Pod, Zeroable};
use kernels::ADD_ONE;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_launch_takes_the_grids_that_cuda_takes() {
    const MOST: u32 = i32::MAX as u32;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1).unwrap();
    let mut launch = |grid, block, shared_bytes| {
        let launch = stream.launch(&ADD_ONE).in_out(&mut vec)?.scalar(0_u32)?;
        // SAFETY: it touches none of the elements.
        unsafe { launch.launch(LaunchConfig { grid, block, shared_bytes }) }
    };
    let (one, kib) = ((1, 1, 1), 1024);
    for (grid, block, shared) in [
        ((70_000, 1, 1), one, 0),
        ((1, 65_535, 1), one, 0),
        ((1, 1, 65_535), one, 0),
        (one, (1024, 1, 1), 0),
        (one, (1, 1024, 1), 0),
        (one, (4, 4, 64), 48 * kib),
    ] {
        launch(grid, block, shared).unwrap();
    }
    for (grid, block, shared) in [
        ((0, 1, 1), one, 0),
        ((1, 0, 1), one, 0),
        ((1, 1, 0), one, 0),
        ((MOST + 1, 1, 1), one, 0),
        ((1, 65_536, 1), one, 0),
        ((1, 70_000, 1), one, 0),
        ((1, 1, 65_536), one, 0),
        (one, (0, 1, 1), 0),
        (one, (1, 0, 1), 0),
        (one, (1, 1, 0), 0),
        (one, (2048, 1, 1), 0),
        (one, (1, 1025, 1), 0),
        (one, (1, 1, 65), 0),
        (one, (32, 33, 1), 0),
        (one, (u32::MAX, u32::MAX, u32::MAX), 0),
        (one, one, 48 * kib + 1),
        (one, one, 1 << 30),
    ] {
        let refused = launch(grid, block, shared).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Driver, "{grid:?} {block:?} {shared}: {refused}");
        assert_eq!(refused.driver().unwrap().code(), 1, "{grid:?} {block:?} {shared}");
    }
    stream.synchronize().unwrap();
}

fn idle(_: &LaunchConfig, _: HostArgs<'_>) -> Result<()> {
    Ok(())
}

/// Launches an entry of a text with no arguments; the call that refused it, its code and the text.
fn launched(
    stream: &Stream,
    text: &str,
    entry: &'static str,
    config: LaunchConfig,
) -> Option<(&'static str, u32, String)> {
    let kernel = Kernel::new(entry, String::leak(text.to_owned()), idle);
    // SAFETY: it touches nothing.
    let refused = unsafe { stream.launch(&kernel).launch(config) }.err()?;
    let driver = refused.driver().unwrap();
    Some((driver.call(), driver.code(), refused.to_string()))
}

/// The codes are those of driver 580 on an H100.
#[test]
fn a_text_that_a_driver_refuses_is_refused() {
    const HEADER: &str = ".version 6.4\n.target sm_50\n.address_size 64\n";
    const ENTRY: &str = ".visible .entry k() { ret; }";
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let one = LaunchConfig::for_elements(1);
    let whole = format!("{HEADER}{ENTRY}");
    for taken in [
        whole.clone(),
        format!("/* one */\r\n// two\n\t{whole}"),
        format!("{HEADER}.weak .entry k {{ ret; }}"),
        format!("{HEADER}.visible .entry k();\n{ENTRY}"),
        format!("{whole}\n.visible .entry other() {{ ret; }} // }}"),
    ] {
        assert_eq!(launched(&stream, &taken, "k", one), None, "{taken}");
    }
    const LOAD: &str = "cuModuleLoadDataEx";
    const FIND: &str = "cuModuleGetFunction";
    for (text, entry, call, code, why) in [
        ("", "k", LOAD, 200, "begins with .version"),
        ("this is no PTX", "k", LOAD, 200, "begins with .version"),
        ("__global__ void k() {}", "k", LOAD, 200, "begins with .version"),
        (&format!("\u{feff}{whole}"), "k", LOAD, 200, "begins with .version"),
        (&format!("# 1 \"k.cu\"\n{whole}"), "k", LOAD, 200, "begins with .version"),
        (".version 6.4", "k", LOAD, 218, "no .target"),
        (".version 6.4\n.address_size 64\n", "k", LOAD, 218, "no .target"),
        (whole.trim_end_matches('}'), "k", LOAD, 218, "ends inside"),
        (&format!("{whole} }}"), "k", LOAD, 218, "did not open"),
        (&format!("{whole} /* "), "k", LOAD, 218, "ends inside"),
        (&whole.replace("ret", "\0ret"), "k", LOAD, 1, "a zero byte"),
        (&whole, "", FIND, 1, "is empty"),
        (&whole, "k\0", FIND, 1, "a zero byte"),
        (&whole, "K", FIND, 500, "has the entries k"),
        (HEADER, "k", FIND, 500, "has no entry"),
        (&format!("{HEADER}.func k {{ ret; }}"), "k", FIND, 500, "has no entry"),
    ] {
        // Twice: what was found once is said again.
        for _ in 0..2 {
            let Some(refused) = launched(&stream, text, entry, one) else { panic!("{text:?}") };
            assert_eq!((refused.0, refused.1), (call, code), "{text:?} {entry:?}: {}", refused.2);
            if !support::on_gpu() {
                assert!(refused.2.contains(why), "{text:?} {entry:?}: {}", refused.2);
            }
        }
    }
    stream.synchronize().unwrap();
}

#[test]
fn a_launch_keeps_the_limits_of_its_entry() {
    const HEADER: &str = ".version 6.4\n.target sm_50\n.address_size 64\n";
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let launch = |text: &str, block, shared_bytes| {
        launched(&stream, text, "k", LaunchConfig { grid: (1, 1, 1), block, shared_bytes })
    };
    for (limit, block, why) in [
        (".maxntid 64, 1, 1", (64, 1, 1), None),
        (".maxntid 64, 1, 1", (8, 8, 1), None),
        (".maxntid 8, 8", (1, 64, 1), None),
        (".maxntid 64", (65, 1, 1), Some("64 in all, by .maxntid")),
        (".maxntid 8, 8, 1", (65, 1, 1), Some("64 in all, by .maxntid")),
        (".reqntid 64", (64, 1, 1), None),
        (".reqntid 64", (8, 8, 1), Some("64 x 1 x 1, by .reqntid")),
        (".reqntid 64", (32, 1, 1), Some("64 x 1 x 1, by .reqntid")),
        (".reqntid 8, 8, 1", (8, 8, 1), None),
        (".reqntid 8, 8, 1", (64, 1, 1), Some("8 x 8 x 1, by .reqntid")),
    ] {
        let text = format!("{HEADER}.visible .entry k() {limit} {{ ret; }}");
        refused_for(launch(&text, block, 0), why, &format!("{limit} {block:?}"));
    }
    let with_shared = |bytes: u32, body: &str| {
        format!("{HEADER}.shared .align 4 .b8 s[{bytes}];\n.visible .entry k() {body}")
    };
    let used = "{ .reg .u32 r; mov.u32 r, s; st.shared.u32 [r], r; ret; }";
    for (bytes, body, dynamic, why) in [
        (47 << 10, used, 1024, None),
        (47 << 10, used, 1025, Some("1025 bytes of shared memory for a block, and 48128")),
        (47 << 10, "{ ret; }", 1025, None),
        (48 << 10, used, 0, None),
        (48 << 10, used, 1, Some("49152 of the entry's own, where 49152 can be")),
        // More than that is an opt-in, which a driver makes by itself for the static part.
        (64 << 10, used, 0, None),
        (64 << 10, used, 1024, None),
    ] {
        let text = with_shared(bytes, body);
        refused_for(launch(&text, (1, 1, 1), dynamic), why, &format!("{bytes} + {dynamic} {body}"));
    }
    let (call, code, why) = launch(&with_shared(1 << 20, used), (1, 1, 1), 0).unwrap();
    assert_eq!((call, code), ("cuModuleLoadDataEx", 218), "{why}");
    assert!(support::on_gpu() || why.contains("1048576 bytes of shared memory"), "{why}");
    stream.synchronize().unwrap();
}

#[track_caller]
fn refused_for(refused: Option<(&'static str, u32, String)>, why: Option<&str>, what: &str) {
    let Some(why) = why else { return assert_eq!(refused, None, "{what}") };
    let Some((call, code, text)) = refused else { panic!("{what} was launched") };
    assert_eq!((call, code), ("cuLaunchKernel", 1), "{what}: {text}");
    assert!(support::on_gpu() || text.contains(why), "{what}: {text}");
}

/// A driver cannot tell, and reads past the end of the list.
#[test]
fn arguments_are_compared_with_the_parameters_of_the_entry() {
    let (device, _) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 4).unwrap();
    let config = LaunchConfig::for_elements(4);
    // SAFETY: refused, or it adds one to four elements.
    let go = |launch: Launch<'_>| unsafe { launch.launch(config) };
    let none = go(stream.launch(&ADD_ONE)).unwrap_err();
    assert_eq!(
        none.to_string(),
        format!(
            "launching add_one on {stream}: cuLaunchKernel returned 1, CUDA_ERROR_INVALID_VALUE: the \
             entry add_one takes 2 parameters, of 8 and 4 bytes; the launch gives no arguments \
             (give the launch the arguments of the entry, in its order)"
        )
    );
    let given = |launch: Launch<'_>| go(launch).unwrap_err().to_string();
    let launch = stream.launch(&ADD_ONE).in_out(&mut vec).unwrap();
    assert!(given(launch).contains("; the launch gives 1 argument, of 8 bytes"));
    let launch = stream.launch(&ADD_ONE).in_out(&mut vec).unwrap().scalar(4_u64).unwrap();
    assert!(given(launch).contains("gives 2 arguments, of 8 and 8 bytes"));
    let launch = stream.launch(&ADD_ONE).scalar(4_u32).unwrap().in_out(&mut vec).unwrap();
    assert!(given(launch).contains("gives 2 arguments, of 4 and 8 bytes"));
    let launch = stream.launch(&ADD_ONE).in_out(&mut vec).unwrap();
    assert!(
        given(launch.scalar(4_u32).unwrap().scalar(0_u8).unwrap())
            .contains("3 arguments, of 8, 4 and 1 byte")
    );
    go(stream.launch(&ADD_ONE).in_out(&mut vec).unwrap().scalar(4_u32).unwrap()).unwrap();
    assert_eq!(vec.to_vec().unwrap(), [1; 4]);
    // A parameter that the reader does not know is compared with nothing.
    let text = ".version 8.3\n.target sm_90\n.address_size 64\n\
        .visible .entry k(.param .u32 p[2][3], .param .u64 q) { ret; }";
    let unknown = Kernel::new("k", text, idle);
    go(stream.launch(&unknown).scalar(1_u8).unwrap()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_refused_launch_costs_its_capture_and_a_refused_text_does_not() {
    let device = support::device();
    let [stream, other] = [(); 2].map(|()| device.new_stream().unwrap());
    let pool = PoolResource::builder(CudaResource::new(&device)).build().unwrap();
    let wide = LaunchConfig { block: (2048, 1, 1), ..LaunchConfig::for_elements(1) };
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 1).unwrap();
    let captured = stream.capture(&pool, |_| {
        let launch = stream.launch(&ADD_ONE).in_out(&mut vec)?.scalar(1_u32)?;
        // SAFETY: refused.
        let refused = unsafe { launch.launch(wide) }.unwrap_err();
        assert_eq!(refused.driver().unwrap().code(), 1);
        Ok::<_, Error>(())
    });
    assert_eq!(captured.unwrap_err().kind(), ErrorKind::Capture);
    let captured = other.capture(&pool, |_| {
        let refused = launched(&other, "no PTX", "k", LaunchConfig::for_elements(1)).unwrap();
        assert_eq!(refused.1, 200);
        Ok::<_, Error>(())
    });
    captured.unwrap();
    device.synchronize().unwrap();
}

macro_rules! aligned {
    ($($name:ident, $kernel:ident: $bytes:literal;)*) => {
        $(
            #[derive(Clone, Copy, Debug, PartialEq)]
            #[repr(C, align($bytes))]
            struct $name([u32; $bytes / 4]);
            // SAFETY: an array of integers that fills it, without padding.
            unsafe impl Zeroable for $name {}
            // SAFETY: as above.
            unsafe impl Pod for $name {}

            static $kernel: Kernel = Kernel::new(
                "add_one",
                ADD_ONE.ptx().unwrap(),
                |_: &LaunchConfig, mut args: HostArgs<'_>| -> Result<()> {
                    for element in args.in_out::<$name>()? {
                        element.0.iter_mut().for_each(|value| *value += 1);
                    }
                    args.scalar::<u32>().map(drop)
                },
            );
        )*
    };
}
aligned! {
    Half, ADD_TO_HALF: 512;
    Page, ADD_TO_PAGE: 4096;
    Large, ADD_TO_LARGE: 8192;
}

fn adds_one<T: Pod + PartialEq + std::fmt::Debug>(
    resource: &Arc<dyn DeviceResource>,
    device: &Device,
    kernel: &'static Kernel,
    make: impl Fn(u32) -> T,
) {
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::zeroed_in(&stream, 4, resource.clone()).unwrap();
    vec.copy_from_slice(&[make(1), make(2), make(3), make(4)]).unwrap();
    let mut add = |from: usize, to: usize| {
        let mut part = vec.slice_mut(from..to).unwrap();
        let words = (part.size_in_bytes() / 4) as u32;
        let launch = stream.launch(kernel).in_out(&mut part).unwrap().scalar(words).unwrap();
        // SAFETY: it touches the words that it is given.
        unsafe { launch.launch(LaunchConfig::for_elements(words as usize)) }.unwrap();
    };
    add(0, 4);
    add(1, 2);
    add(2, 2);
    let name = format!("{resource:?}");
    assert_eq!(vec.to_vec().unwrap(), [make(2), make(4), make(4), make(5)], "{name}");
}

#[test]
fn elements_may_be_aligned_further_than_the_driver_aligns() {
    let device = support::device();
    let plain = CudaResource::new(&device);
    let resources: [Arc<dyn DeviceResource>; 5] = [
        Arc::new(PoolResource::builder(plain.clone()).build().unwrap()),
        Arc::new(plain),
        Arc::new(AsyncResource::new(&device).unwrap()),
        Arc::new(ManagedResource::new(&device).unwrap()),
        Arc::new(PinnedResource::new(&device).unwrap()),
    ];
    for resource in &resources {
        adds_one(resource, &device, &ADD_TO_HALF, |value| Half([value; 128]));
        adds_one(resource, &device, &ADD_TO_PAGE, |value| Page([value; 1024]));
        adds_one(resource, &device, &ADD_TO_LARGE, |value| Large([value; 2048]));
    }
}

/// A value of several words is filled in so many rows.
#[test]
fn a_large_fill_of_rows_takes_no_time() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    // SAFETY: written whole by the fill.
    let mut vec = unsafe { DeviceVec::<f64>::uninit(&stream, 1_000_000) }.unwrap();
    let started = Instant::now();
    vec.fill(1.5).unwrap();
    let enqueued = started.elapsed();
    let values = vec.to_vec().unwrap();
    assert!(values.iter().all(|value| *value == 1.5));
    vec.slice_mut(10..999_000).unwrap().fill(2.5).unwrap();
    assert_eq!(vec.get(9).unwrap(), 1.5);
    assert_eq!(vec.get(10).unwrap(), 2.5);
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(10), "{enqueued:?} to enqueue, {taken:?} in all");
}
