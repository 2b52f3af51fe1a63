//! When a kernel's module is loaded, and how often.

use crate::child::{Installed, StandIn, alone};
use aquifer::{Device, HostArgs, Kernel, LaunchConfig, Result, Stream};

const TEXT: &str = ".version 6.4\n.target sm_50\n.address_size 64\n\
    .visible .entry one() { ret; }\n.visible .entry two() { ret; }";

fn nothing(_: &LaunchConfig, _: HostArgs<'_>) -> Result<()> {
    Ok(())
}

fn launch(stream: &Stream, kernel: &Kernel) {
    // SAFETY: the kernel touches nothing.
    unsafe { stream.launch(kernel).launch(LaunchConfig::for_elements(1)).unwrap() };
}

/// Modules that were loaded, kernels that were launched, modules that were unloaded.
fn counts(driver: &StandIn) -> [usize; 3] {
    let names = driver.names();
    ["cuModuleLoadDataEx", "cuLaunchKernel", "cuModuleUnload"]
        .map(|wanted| names.iter().filter(|name| *name == wanted).count())
}

#[test]
#[expect(clippy::borrow_interior_mutable_const, reason = "some programs do it")]
fn a_kernel_that_is_made_for_each_launch_is_loaded_once() {
    let name = "kernels::a_kernel_that_is_made_for_each_launch_is_loaded_once";
    alone(name, Installed::StandIn, &[], |driver| {
        #[expect(clippy::declare_interior_mutable_const, reason = "some programs have it")]
        const CONSTANT: Kernel = Kernel::new("one", TEXT, nothing);
        static STATIC: Kernel = Kernel::new("one", TEXT, nothing);
        let stream = Device::open(0).unwrap().new_stream().unwrap();
        driver.take();
        (0..10).for_each(|_| launch(&stream, &CONSTANT));
        assert_eq!(counts(driver), [1, 10, 0]);
        // Made here, of a text of its own with the same letters.
        (0..10).for_each(|_| {
            let text = String::from(TEXT).leak();
            launch(&stream, &Kernel::new("one", text, nothing));
        });
        launch(&stream, &STATIC);
        assert_eq!(counts(driver), [0, 11, 0]);
        // Another entry, another text, another device.
        launch(&stream, &Kernel::new("two", TEXT, nothing));
        launch(&stream, &Kernel::new("one", format!("{TEXT} ").leak(), nothing));
        assert_eq!(counts(driver), [2, 2, 0]);
        let second = Device::open(1).unwrap().new_stream().unwrap();
        (0..2).for_each(|_| launch(&second, &CONSTANT));
        assert_eq!(counts(driver), [1, 2, 0]);
    });
}
