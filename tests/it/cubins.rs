//! Kernels from cubins: what is refused, where a driver would refuse it or read past the end, and that both
//! forms do the same.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceVec, ErrorKind, HostArgs, Kernel, LaunchConfig, Result};
use std::borrow::Cow;

/// Of `docs/kernels/add_one.cu`, for compute capability 9.0.
static CUBIN: &[u8] = include_bytes!("../../docs/kernels/add_one.sm_90.cubin");

static ADD_ONE: Kernel = Kernel::from_cubin(
    "add_one",
    Cow::Borrowed(CUBIN),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let data = args.in_out::<u32>()?;
        let n = args.scalar::<u32>()? as usize;
        data[..n].iter_mut().for_each(|value| *value += 1);
        Ok(())
    },
);

fn add_one(device: &Device, kernel: &Kernel) -> Result<Vec<u32>> {
    let stream = device.new_stream()?;
    let mut data = DeviceVec::from_slice(&stream, &(0..1000).collect::<Vec<u32>>())?;
    let launch = stream.launch(kernel).in_out(&mut data)?.scalar(999_u32)?;
    // SAFETY: the kernel touches the first 999 elements alone.
    unsafe { launch.launch(LaunchConfig::for_elements(999))? };
    data.to_vec()
}

fn nothing(_: &LaunchConfig, _: HostArgs<'_>) -> Result<()> {
    Ok(())
}

/// The driver's number, or 0, of a launch of an entry without arguments, and the text of the error.
fn refused(entry: &'static str, image: impl Into<Vec<u8>>) -> (u32, String) {
    let device = Device::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let kernel = Kernel::from_cubin(entry, Cow::Owned(image.into()), nothing);
    // SAFETY: the host form touches nothing.
    let launched = unsafe { stream.launch(&kernel).launch(LaunchConfig::for_elements(1)) };
    match launched {
        Ok(()) => (0, String::new()),
        Err(error) => (error.driver().unwrap().code(), error.to_string()),
    }
}

#[test]
fn both_forms_of_a_cubin_do_the_same() {
    let expected: Vec<u32> = (1..1000).chain([999]).collect();
    let device = Device::simulated(SimConfig::default());
    assert_eq!(add_one(&device, &ADD_ONE).unwrap(), expected);
    device.simulator().unwrap().check().unwrap();
    assert_eq!((ADD_ONE.ptx(), ADD_ONE.entry()), (None, "add_one"));
    assert!(format!("{ADD_ONE:?}").contains("Cubin(6440 bytes)"));
    match Device::open(0) {
        Ok(gpu) if gpu.properties().compute_capability.0 == 9 => {
            assert_eq!(add_one(&gpu, &ADD_ONE).unwrap(), expected);
            // Of another address, and read when the program runs.
            let owned = Kernel::from_cubin("add_one", Cow::Owned(CUBIN.to_vec()), nothing);
            assert_eq!(add_one(&gpu, &owned).unwrap(), expected);
            let cut = Kernel::from_cubin("add_one", Cow::Owned(CUBIN[..6000].to_vec()), nothing);
            let error = add_one(&gpu, &cut).unwrap_err();
            assert_eq!(error.driver().unwrap().code(), 200, "{error}");
            let absent = Kernel::from_cubin("add_two", Cow::Borrowed(CUBIN), nothing);
            let error = add_one(&gpu, &absent).unwrap_err();
            assert_eq!(error.driver().unwrap().code(), 500, "{error}");
        }
        Ok(gpu) => {
            let why = format!("the cubin is for compute capability 9, not {gpu}'s");
            support::skipped("both_forms_of_a_cubin_do_the_same", &why);
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice), "{error}");
            support::skipped("both_forms_of_a_cubin_do_the_same", "no GPU");
        }
    }
}

#[test]
fn a_launch_is_compared_with_the_entry_of_the_cubin() {
    let device = Device::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let data = DeviceVec::<u64>::zeroed(&stream, 128).unwrap();
    let limited = Kernel::from_cubin("limited", Cow::Borrowed(CUBIN), nothing);
    let run = |pair: Option<[u16; 3]>, threads: u32| {
        let launch = stream.launch(&limited);
        let launch = match pair {
            Some(pair) => launch.scalar(pair).unwrap().scalar(7_u8).unwrap(),
            None => launch.scalar(7_u8).unwrap(),
        };
        let launch = launch.input(&data).unwrap();
        let config = LaunchConfig { block: (threads, 1, 1), ..LaunchConfig::for_elements(1) };
        // SAFETY: the host form touches nothing.
        unsafe { launch.launch(config) }.map_err(|error| error.to_string())
    };
    run(Some([1; 3]), 128).unwrap();
    let wrong = run(None, 128).unwrap_err();
    assert!(wrong.contains("takes 3 parameters, of 6, 1 and 8 bytes"), "{wrong}");
    let wrong = run(Some([1; 3]), 129).unwrap_err();
    assert!(wrong.contains("the entry allows 128 in all"), "{wrong}");
}

#[test]
fn images_that_are_no_cubin_and_entries_that_are_not_there_are_refused() {
    assert_eq!(refused("nothing", CUBIN).0, 0);
    let (code, text) = refused("add_two", CUBIN);
    assert_eq!(code, 500);
    assert!(text.contains("the cubin has the entries nothing, limited, add_one"), "{text}");
    for image in [&b""[..], b".version 6.4\n.target sm_50", b"\x7fEL"] {
        assert_eq!(refused("add_one", image).0, 200, "{image:?}");
    }
    // This program is an ELF file, too, of another machine.
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(refused("main", &program[..4096]).0, 200);
}

#[test]
fn a_cubin_that_is_cut_is_refused_before_a_driver_reads_past_its_end() {
    for length in (0..CUBIN.len()).step_by(7) {
        assert_eq!(refused("nothing", &CUBIN[..length]).0, 200, "{length} bytes of it");
    }
}

#[test]
fn sections_without_bytes_may_lie_anywhere() {
    let word = |image: &[u8], at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    // Of an ELF header: where the section headers begin, 64 bytes each, and their number.
    let (begin, count) = (word(CUBIN, 0x28) as usize, usize::from(CUBIN[0x3c]));
    let is_info = |at: &usize| CUBIN[at + 4..at + 8] == 0x7000_0000_u32.to_le_bytes();
    let info = (0..count).map(|number| begin + 64 * number).find(is_info).unwrap();
    for (kind, is_refused) in
        [(8, false), (0x7000_0007, false), (0x7000_000a, false), (0x7000_0000, true)]
    {
        let mut image = CUBIN.to_vec();
        image[info + 4..info + 8].copy_from_slice(&u32::to_le_bytes(kind));
        image[info + 0x18..info + 0x20].copy_from_slice(&u64::MAX.to_le_bytes());
        let code = refused("nothing", image).0;
        assert_eq!(code, if is_refused { 200 } else { 0 }, "{kind:#x}");
    }
}

#[test]
fn a_cubin_with_any_byte_changed_is_read_without_a_panic() {
    for at in (0..CUBIN.len()).step_by(3) {
        let mut image = CUBIN.to_vec();
        image[at] = !image[at];
        let (code, text) = refused("limited", image);
        assert!(matches!(code, 0 | 1 | 200 | 500), "byte {at}: {text}");
    }
}

#[test]
fn a_fatbin_is_as_long_as_it_says() {
    let mut fatbin = 0xba55_ed50_u32.to_le_bytes().to_vec();
    fatbin.extend(1_u16.to_le_bytes());
    fatbin.extend(16_u16.to_le_bytes());
    fatbin.extend(8_u64.to_le_bytes());
    fatbin.extend([0; 8]);
    assert_eq!(refused("any", fatbin.clone()).0, 0);
    for length in 4..fatbin.len() {
        assert_eq!(refused("any", &fatbin[..length]).0, 200);
    }
}
