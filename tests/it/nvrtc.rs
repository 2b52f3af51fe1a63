//! Kernels from CUDA C++. Where NVRTC is not installed, that is the error, and the rest is skipped.

use crate::support;
use aquifer::sim::SimConfig;
use aquifer::{
    Device, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig, Result,
    kernel::{CompileOptions, compile_cuda},
};

const SOURCE: &str = r#"
#ifndef BY
#define BY 2
#endif
extern "C" __global__ void scale(unsigned *data, unsigned n) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n) data[index] *= BY;
}
extern "C" __global__ void nothing() {}
"#;

fn nothing(_: &LaunchConfig, _: HostArgs<'_>) -> Result<()> {
    Ok(())
}

fn times<const BY: u32>(_: &LaunchConfig, mut args: HostArgs<'_>) -> Result<()> {
    let data = args.in_out::<u32>()?;
    let n = args.scalar::<u32>()? as usize;
    data[..n].iter_mut().for_each(|value| *value = value.wrapping_mul(BY));
    Ok(())
}

/// What was compiled; `None` where there is no compiler, after the line that says so.
fn compiled(name: &str, compiled: Result<Kernel>) -> Option<Result<Kernel>> {
    match compiled {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            says_what_to_install(&error);
            support::skipped(name, &error.to_string());
            None
        }
        compiled => Some(compiled),
    }
}

fn says_what_to_install(error: &Error) {
    assert!(error.to_string().contains("libnvrtc, was not found"), "{error}");
    assert!(error.advice().unwrap().starts_with("install NVRTC"), "{error}");
}

fn scaled(device: &Device, kernel: &Kernel) -> Result<Vec<u32>> {
    let stream = device.new_stream()?;
    let mut data = DeviceVec::from_slice(&stream, &(0..1000).collect::<Vec<u32>>())?;
    let launch = stream.launch(kernel).in_out(&mut data)?.scalar(999_u32)?;
    // SAFETY: the kernel touches the first 999 elements alone.
    unsafe { launch.launch(LaunchConfig::for_elements(999))? };
    data.to_vec()
}

#[test]
fn both_forms_of_a_source_do_the_same() {
    const NAME: &str = "both_forms_of_a_source_do_the_same";
    let simulated = Device::simulated(SimConfig::default());
    let three = CompileOptions::for_device(&simulated).define("BY", "3");
    let made = compile_cuda("scale", SOURCE, &three, times::<3>);
    let Some(kernel) = compiled(NAME, made) else { return };
    let kernel = kernel.unwrap();
    assert!(kernel.ptx().unwrap().contains(".entry scale"));
    let expected: Vec<u32> = (0..999).map(|value| 3 * value).chain([999]).collect();
    assert_eq!(scaled(&simulated, &kernel).unwrap(), expected);
    simulated.simulator().unwrap().check().unwrap();
    match Device::open(0) {
        Ok(gpu) => {
            let options = CompileOptions::for_device(&gpu).define("BY", "3");
            let kernel = compile_cuda("scale", SOURCE, &options, nothing).unwrap();
            assert_eq!(scaled(&gpu, &kernel).unwrap(), expected);
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NoDriver | ErrorKind::NoDevice), "{error}");
            support::skipped(NAME, "no GPU");
        }
    }
}

#[test]
fn a_launch_is_compared_with_the_entry_of_the_source() {
    const NAME: &str = "a_launch_is_compared_with_the_entry_of_the_source";
    let options = CompileOptions::default();
    let made = compile_cuda("nothing", SOURCE, &options, nothing);
    let Some(kernel) = compiled(NAME, made) else { return };
    let error = scaled(&Device::simulated(SimConfig::default()), &kernel.unwrap()).unwrap_err();
    assert!(error.to_string().contains("takes no parameters"), "{error}");
}

#[test]
fn what_the_compiler_does_not_take_is_an_error_with_its_text() {
    const NAME: &str = "what_the_compiler_does_not_take_is_an_error_with_its_text";
    let default = CompileOptions::default();
    // The first needs no library.
    let cases = [
        ("scale", "void\0", default.clone(), "zero byte"),
        (
            "scale",
            "extern \"C\" __global__ void scale() { undeclared(); }",
            default.clone(),
            "undeclared",
        ),
        ("scale", "#include \"missing.h\"", default.clone(), "missing.h"),
        ("scale", SOURCE, default.clone().option("--no-such-option"), "INVALID_OPTION"),
        ("scale", SOURCE, default.clone().arch("compute_1"), "INVALID_OPTION"),
        ("skale", SOURCE, default.clone(), "has the entries scale, nothing"),
        ("scale", "__global__ void scale() {}", default.clone(), "has the entries _Z5scalev"),
    ];
    for (entry, source, options, text) in cases {
        let made = compile_cuda(entry, source, &options, nothing);
        let Some(made) = compiled(NAME, made) else { return };
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn headers_are_found_in_the_folders_that_are_named() {
    const NAME: &str = "headers_are_found_in_the_folders_that_are_named";
    let folder = std::env::temp_dir().join(format!("aquifer-nvrtc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("by.h"), "#define BY 5\n").unwrap();
    let source = format!("#include \"by.h\"\n{SOURCE}");
    let options = CompileOptions::default().include_path(&folder);
    let made = compile_cuda("scale", &source, &options, times::<5>);
    if let Some(kernel) = compiled(NAME, made) {
        // Compiled once: the header is not looked for again.
        std::fs::remove_file(folder.join("by.h")).unwrap();
        let ptx = kernel.unwrap().ptx().unwrap().to_owned();
        let again = compile_cuda("nothing", &source, &options, nothing).unwrap();
        assert_eq!(again.ptx(), Some(&*ptx));
        assert!(compile_cuda("nothing", &format!("{source}\n"), &options, nothing).is_err());
    }
    std::fs::remove_dir_all(folder).unwrap();
}
