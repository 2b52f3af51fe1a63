//! The guard of tests: reports that were not read fail them. And the helper that runs one over seeds.

use crate::kernels::{add_one, idle_entry};
use aquifer::sim::Report;
use aquifer::sim::{SimConfig, Violation};
use aquifer::{
    CheckedDevice, Device, DeviceVec, Error, ErrorKind, HostArgs, Kernel, LaunchConfig, Result,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};

fn checked() -> CheckedDevice {
    CheckedDevice::simulated(SimConfig::default().seed(23))
}

/// Reads what was never written, and does not ask for the result.
fn unwritten(device: &Device) {
    let stream = device.new_stream().unwrap();
    // SAFETY: wrong on purpose: the device has to report it.
    let mut vec = unsafe { DeviceVec::<u32>::uninit(&stream, 4) }.unwrap();
    add_one(&stream, &mut vec).unwrap();
}

/// What a panic says; `None` if there was none.
fn panic_of(body: impl FnOnce()) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(body)).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string())).unwrap())
}

#[test]
fn a_report_that_was_not_read_fails_the_test_with_its_text() {
    let device = checked();
    unwritten(&device);
    unwritten(&device);
    let said = panic_of(|| drop(device)).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert_eq!(lines[0], "the simulated device found:");
    assert!(lines[1].contains("reads bytes that were never written"), "{said}");
    assert!(lines[1].ends_with("(seed 23)") && lines[2].ends_with("(seed 23)"), "{said}");
}

#[test]
fn what_the_device_has_still_to_do_is_waited_for() {
    static FAIL: Kernel =
        Kernel::new("fail", idle_entry!("fail"), |_: &LaunchConfig, _: HostArgs<'_>| {
            Err(Error::new(ErrorKind::InvalidArgument, "it fails on purpose"))
        });
    let device = checked();
    let stream = device.new_stream().unwrap();
    // SAFETY: it touches nothing.
    unsafe { stream.launch(&FAIL).launch(LaunchConfig::for_elements(1)) }.unwrap();
    assert_eq!(device.simulator().unwrap().reports().len(), 0, "it has not run");
    let said = panic_of(|| drop(device)).unwrap();
    assert!(said.contains("ran a kernel that failed: it fails on purpose"), "{said}");
}

#[test]
fn a_test_that_read_its_reports_or_has_none_passes() {
    drop(checked());
    let device = checked();
    unwritten(&device);
    let reports = device.simulator().unwrap().take_reports();
    assert_eq!(reports[0].kind(), Violation::UninitializedRead);
    drop(device);
    // A context that is lost is no report.
    let device = checked();
    device.simulator().unwrap().lose_context();
    drop(device);
    let device = checked();
    device.new_stream().unwrap();
    device.finish().unwrap();
}

#[test]
fn finish_returns_what_the_drop_would_panic_with() {
    let device = checked();
    unwritten(&device);
    let error = device.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Simulation);
    assert_eq!(Report::of(&error).unwrap().kind(), Violation::UninitializedRead);
    let device = checked();
    device.simulator().unwrap().lose_context();
    assert_eq!(device.finish().unwrap_err().kind(), ErrorKind::ContextLost);
}

#[test]
fn a_panic_of_the_test_stays_its_own() {
    let said = panic_of(|| {
        let device = checked();
        unwritten(&device);
        panic!("the test's own");
    });
    assert_eq!(said.unwrap(), "the test's own");
}

#[test]
fn each_seed_has_a_device_of_its_own() {
    let mut seeds = Vec::new();
    CheckedDevice::for_each_seed(
        SimConfig::default().capacity(1 << 20),
        [3, 1, 4],
        |device| -> Result<()> {
            let info = device.memory_info()?;
            assert_eq!((info.free, info.total), (1 << 20, 1 << 20), "nothing of another seed's");
            seeds.push(device.simulator().unwrap().seed());
            Ok(())
        },
    );
    assert_eq!(seeds, [3, 1, 4]);
}

#[test]
fn a_test_that_no_seed_would_run_fails() {
    let said = panic_of(|| {
        CheckedDevice::for_each_seed(SimConfig::default(), 0..0, |_| -> Result<()> {
            unreachable!("no seed")
        });
    });
    assert!(said.unwrap().starts_with("no seed was given"));
}

#[test]
fn the_first_seed_that_fails_is_named() {
    type Test = fn(&Device, u64) -> Result<(), Error>;
    let fails: [(Test, &str); 3] = [
        (|_, seed| panic!("on purpose at {seed}"), "on purpose at 17"),
        (
            |_, _| Err(Error::new(ErrorKind::Io, "on purpose")),
            "seed 17 failed; AQUIFER_SIM_SEED=17 runs it alone: the test returned Io: on purpose",
        ),
        (
            |device, _| {
                unwritten(device);
                Ok(())
            },
            "seed 17 failed; AQUIFER_SIM_SEED=17 runs it alone: the simulated device found:\n",
        ),
    ];
    for (fail, wanted) in fails {
        let mut ran = Vec::new();
        let said = panic_of(|| {
            CheckedDevice::for_each_seed(SimConfig::default(), 0.., |device| {
                let seed = device.simulator().unwrap().seed();
                ran.push(seed);
                if seed == 17 { fail(device, seed) } else { Ok(()) }
            });
        });
        let said = said.unwrap();
        assert!(said.starts_with(wanted), "{said}");
        assert_eq!(ran, (0..=17).collect::<Vec<_>>());
    }
}

/// Not a test of its own: what the tests below look at, in a process of its own.
#[test]
fn child() {
    match std::env::var("AQUIFER_TEST_CHECKED").as_deref() {
        Ok("seeds") => {
            CheckedDevice::for_each_seed(SimConfig::default(), 10..20, |device| -> Result<()> {
                let seed = device.simulator().unwrap().seed();
                println!("ran {seed}");
                assert_ne!(seed, 17, "on purpose");
                Ok(())
            })
        }
        Ok("detected") => {
            let device = CheckedDevice::detect_or_simulate().unwrap();
            let simulator = device.simulator().unwrap();
            println!("seed {} of {}", simulator.seed(), device.memory_info().unwrap().total);
            unwritten(&device);
        }
        Ok("refused") => println!("said {}", CheckedDevice::detect_or_simulate().unwrap_err()),
        _ => {}
    }
}

fn in_a_child(case: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "checked_device::child", "--nocapture"]);
    command
        .env_remove("AQUIFER_SIM_SEED")
        .env("AQUIFER_TEST_CHECKED", case)
        .envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (status.success(), said)
}

#[test]
fn a_seed_of_the_environment_is_run_alone() {
    let (passed, said) = in_a_child("seeds", &[]);
    assert!(
        !passed && said.contains("seed 17 failed; AQUIFER_SIM_SEED=17 runs it alone"),
        "{said}"
    );
    assert_eq!(said.matches("ran ").count(), 8, "{said}");
    let (passed, said) = in_a_child("seeds", &[("AQUIFER_SIM_SEED", "17")]);
    assert!(!passed && said.contains("seed 17 failed"), "{said}");
    assert_eq!(said.matches("ran ").count(), 1, "{said}");
    let (passed, said) = in_a_child("seeds", &[("AQUIFER_SIM_SEED", "99")]);
    assert!(passed && said.matches("ran ").count() == 1 && said.contains("ran 99"), "{said}");
    let (passed, said) = in_a_child("seeds", &[("AQUIFER_SIM_SEED", "x")]);
    assert!(!passed && said.contains("AQUIFER_SIM_SEED is \"x\""), "{said}");
    let line = said.lines().find(|line| line.contains("panicked at")).unwrap();
    assert!(line.contains("checked_device.rs:"), "the line is the caller's: {said}");
    // Empty is not set.
    let (_, said) = in_a_child("seeds", &[("AQUIFER_SIM_SEED", "")]);
    assert_eq!(said.matches("ran ").count(), 8, "{said}");
}

#[test]
fn the_environment_configures_the_detected_device() {
    let chosen = [
        ("AQUIFER_BACKEND", "sim"),
        ("AQUIFER_SIM_SEED", "41"),
        ("AQUIFER_SIM_CAPACITY", "1048576"),
    ];
    let (passed, said) = in_a_child("detected", &chosen);
    assert!(said.contains("seed 41 of 1048576"), "{said}");
    assert!(!passed && said.contains("reads bytes that were never written"), "{said}");
    assert!(said.contains("(seed 41)"), "{said}");
    let wrong = [("AQUIFER_BACKEND", "sim"), ("AQUIFER_SIM_SCHEDULE", "fast")];
    let (passed, said) = in_a_child("refused", &wrong);
    let wanted = "said AQUIFER_SIM_SCHEDULE is \"fast\", which is none of its values (set it to \
                  `on-demand` or `background`, or unset it)";
    assert!(passed && said.contains(wanted), "{said}");
}
