use super::*;
use crate::device::detect::Undetected;
use crate::sim::{Schedule, SimConfig};
use std::ffi::OsString;

/// The environment that has these variables alone.
fn environment(set: &[(&'static str, &'static str)]) -> impl Fn(&str) -> Option<OsString> {
    move |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
}

#[test]
fn the_environment_chooses_or_is_refused() {
    let device = Device::choose(&environment(&[("AQUIFER_BACKEND", "sim")])).unwrap();
    assert_eq!(device.kind(), BackendKind::Simulated);
    for wrong in ["CUDA", "gpu"] {
        let refused = Device::choose(&environment(&[("AQUIFER_BACKEND", wrong)])).unwrap_err();
        assert!(!refused.may_simulate);
        let error = refused.error;
        assert_eq!(error.kind(), ErrorKind::Environment);
        assert!(error.to_string().contains("AQUIFER_BACKEND"));
    }
}

#[test]
fn the_environment_configures_the_simulated_device() {
    let set = [
        ("AQUIFER_BACKEND", "sim"),
        ("AQUIFER_SIM_SEED", "18446744073709551615"),
        ("AQUIFER_SIM_CAPACITY", "4096"),
        ("AQUIFER_SIM_SCHEDULE", "background"),
        ("AQUIFER_SIM_POISON", "off"),
        ("AQUIFER_SIM_POOL_CHECKS", "off"),
    ];
    let config = SimConfig::from_variables(&environment(&set)).unwrap();
    let said = SimConfig::default().seed(u64::MAX).capacity(4096).schedule(Schedule::Background);
    let said = said.without_poison().without_pool_checks();
    assert_eq!(format!("{config:?}"), format!("{said:?}"));
    let device = Device::choose(&environment(&set)).unwrap();
    assert_eq!(device.simulator().unwrap().seed(), u64::MAX);
    assert_eq!(device.memory_info().unwrap().total, 4096);
    let plain = SimConfig::from_variables(&environment(&[])).unwrap();
    assert_eq!(format!("{plain:?}"), format!("{:?}", SimConfig::default()));
    let same = [
        ("AQUIFER_SIM_SCHEDULE", "on-demand"),
        ("AQUIFER_SIM_POISON", "on"),
        ("AQUIFER_SIM_POOL_CHECKS", "on"),
    ];
    let same = SimConfig::from_variables(&environment(&same)).unwrap();
    assert_eq!(format!("{same:?}"), format!("{plain:?}"));
}

#[cfg(unix)]
#[test]
fn a_backend_that_is_no_text_is_shown_byte_by_byte() {
    use std::os::unix::ffi::OsStringExt;

    let error = Device::choose(&|name| {
        (name == "AQUIFER_BACKEND").then(|| OsString::from_vec(b"sim\xff".into()))
    });
    let said = "AQUIFER_BACKEND is \"sim\\xFF\", which names no backend (set it to ";
    let error = error.unwrap_err().error.to_string();
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn a_variable_that_means_nothing_is_refused_by_its_name() {
    for (name, wrong) in [
        ("AQUIFER_SIM_SEED", "seven"),
        ("AQUIFER_SIM_SEED", "-1"),
        ("AQUIFER_SIM_SEED", "18446744073709551616"),
        ("AQUIFER_SIM_CAPACITY", "4GiB"),
        ("AQUIFER_SIM_SCHEDULE", "Background"),
        ("AQUIFER_SIM_POISON", "0"),
        ("AQUIFER_SIM_POOL_CHECKS", "yes"),
    ] {
        let error = Device::choose(&environment(&[("AQUIFER_BACKEND", "sim"), (name, wrong)]));
        let error = error.unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::Environment);
        let said = format!("{name} is {wrong:?}, which is none of its values (set it to ");
        assert!(error.to_string().starts_with(&said), "{error}");
    }
}

#[test]
fn without_a_gpu_both_ways_on_are_named() {
    // Where there is one, nothing is missing.
    let Err(Undetected { error, may_simulate }) = Device::choose(&environment(&[])) else { return };
    assert!(may_simulate, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("GPU 0 was looked for: "), "{text}");
    let gpu = match error.kind() {
        ErrorKind::NoDevice => {
            "see that a GPU is visible here (CUDA_VISIBLE_DEVICES, a container's --gpus)"
        }
        _ if cfg!(feature = "cuda") => "install the NVIDIA driver",
        _ => "build with the feature `cuda`",
    };
    let ways = format!(
        "({gpu}; or, for a simulated device, call Device::detect_or_simulate, or set AQUIFER_BACKEND=sim)"
    );
    assert!(text.contains(&ways), "{text}");

    let cuda = Device::choose(&environment(&[("AQUIFER_BACKEND", "cuda")])).unwrap_err();
    assert!(!cuda.may_simulate);
    let text = cuda.error.to_string();
    assert!(text.starts_with("AQUIFER_BACKEND=cuda asks for a GPU: "), "{text}");
    assert!(
        text.contains(&format!("({gpu}; or, for a simulated device, set AQUIFER_BACKEND=sim)")),
        "{text}"
    );
}

#[test]
fn percents_are_of_the_memory_and_rounded_down() {
    let device = Device::simulated(SimConfig::default().capacity(1 << 30));
    let total = 1 << 30;
    assert_eq!(device.percent_of_memory(100.0).unwrap(), total);
    assert_eq!(device.percent_of_memory(50.0).unwrap(), total / 2);
    assert_eq!(device.percent_of_memory(12.5).unwrap(), total / 8);
    assert_eq!(device.percent_of_memory(0.0).unwrap(), 0);
    let third = device.percent_of_memory(100.0 / 3.0).unwrap();
    assert!(third.is_multiple_of(2 << 20) && total / 3 - third < 2 << 20, "{third}");
    for wrong in [-1.0, 100.001, f64::NAN, f64::INFINITY] {
        let refused = device.percent_of_memory(wrong).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong}");
    }
    let block = device.driver().mem_alloc(total / 2).unwrap();
    assert_eq!(device.percent_of_free_memory(100.0).unwrap(), total / 2);
    assert_eq!(device.percent_of_free_memory(50.0).unwrap(), total / 4);
    // SAFETY: allocated above, and not used.
    unsafe { device.driver().mem_free(block) }.unwrap();
}
