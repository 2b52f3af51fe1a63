//! Rows of other processes: the environment, and a child of a fork.

use crate::support::simulated;
use crate::table::Table;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::ipc::IpcExport;
use aquifer::sim::SimConfig;
use aquifer::{
    CudaResource, Device, DeviceVec, Error, PinnedAlloc, PoolResource,
    mr::{
        ArenaResource, LoggingAdaptor, ManagedResource, StackText, SystemResource,
        current_device_resource,
    },
    nbep7::{memory_manager, set_memory_manager},
    pinned::{PinnedResource, Registered},
};
use std::process::Command;

const CHILD: &str = "AQUIFER_TEST_ERRORS_CHILD";

pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

pub(crate) fn rows(table: &mut Table) {
    rows_of_child(table, "fork", &[], "");
    let errors = main_of_child("main");
    table.add("what main prints", &errors, "", None);
    let (device, _) = simulated(SimConfig::default());
    let failed = Registered::new(&device, Vec::<f32>::new()).map(drop).unwrap_err();
    table.add("what unwrap prints of an error with a buffer", &format!("{failed:?}"), "", None);
}

/// Adds what the function `name` of a child gives, which has these variables.
pub(crate) fn rows_of_child(
    table: &mut Table,
    name: &str,
    variables: &[(&str, &str)],
    prefix: &str,
) {
    let mut command = command(name);
    command.env_remove("AQUIFER_BACKEND").env_remove("AQUIFER_LOG_FILE").env_remove("RMM_LOG_FILE");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    let mut rows = 0;
    for row in out.split('\u{1e}').skip(1) {
        let mut fields = row.split('\u{1f}');
        let mut next = || fields.next().unwrap();
        let (title, shown, parts, advice) = (next(), next(), next(), next());
        let title = format!("{prefix}{title}");
        table.add(&title, shown, parts, Some(advice).filter(|advice| !advice.is_empty()));
        rows += 1;
    }
    assert!(rows > 0, "no rows of {name}: {out}");
}

fn command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    command
}

/// The standard error of a process whose `main` returns an error.
fn main_of_child(name: &str) -> String {
    let output = command(name).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().find(|line| line.starts_with("Error: ")).expect(&text).to_owned()
}

pub(crate) fn print(title: &str, error: impl Into<Error>) {
    let error = error.into();
    let advice = error.advice().unwrap_or_default();
    println!("\u{1e}{title}\u{1f}{error:?}\u{1f}{error:#?}\u{1f}{advice}\u{1f}");
}

pub(crate) fn print_failed<T>(title: &str, result: Result<T, impl Into<Error>>) {
    match result {
        Ok(_) => panic!("`{title}` is no error"),
        Err(error) => print(title, error),
    }
}

/// Not a test of its own: what the rows above look at, in a process of its own.
#[test]
fn child() -> Result<(), Error> {
    let Ok(name) = std::env::var(CHILD) else { return Ok(()) };
    match name.as_str() {
        "detect" => print_failed("", Device::detect()),
        "detect all" => print_failed("", Device::detect_all_or_simulate()),
        "ordinary memory" => {
            let mut vec = allocator_api2::vec::Vec::<u8, _>::new_in(aquifer::PinnedAlloc);
            vec.try_reserve(isize::MAX as usize - 4096).unwrap_err();
            print("", aquifer::pinned::last_error().unwrap());
        }
        "log" => {
            let upstream = CudaResource::new(&simulated(SimConfig::default()).0);
            print_failed("", LoggingAdaptor::builder(upstream).build());
        }
        "stack" => print_failed("", StackText::from_env()),
        "bytes" => {
            use std::os::unix::ffi::OsStrExt;
            let value = std::ffi::OsStr::from_bytes(b"pool\xff");
            // SAFETY: no other thread of this process uses the environment.
            unsafe { std::env::set_var(StackText::VARIABLE, value) };
            print_failed("", StackText::from_env());
        }
        "fork" => fork(),
        "main" => {
            let (device, _) = simulated(SimConfig::default().capacity(1 << 20));
            let stream = device.new_stream()?;
            DeviceVec::<u8>::zeroed_in(
                &stream,
                2 << 20,
                std::sync::Arc::new(CudaResource::new(&device)),
            )?;
        }
        manager if manager.starts_with("manager") => crate::managers::child(manager),
        other => panic!("{other}"),
    }
    Ok(())
}

/// What is never made.
type NoManager = aquifer::nbep7::HostOnly<aquifer::nbep7::ResourceMemoryManager>;

fn fork() {
    let (device, _) = simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(CudaResource::new(&device)).unwrap();
    let managed = ManagedResource::new(&device).unwrap();
    let system = SystemResource::new(&device).unwrap();
    let log =
        LoggingAdaptor::builder(pool.clone()).writer(Box::new(std::io::sink())).build().unwrap();
    let vec = DeviceVec::<u8>::zeroed(&stream, 4).unwrap();
    let text: StackText = "pool(async) | statistics".parse().unwrap();
    let stack = text.build(&device).unwrap();
    // SAFETY: the child calls the crate and prints, on the one thread that it has.
    if unsafe { libc::fork() } != 0 {
        // SAFETY: waits for the child made above.
        unsafe { libc::wait(std::ptr::null_mut()) };
        std::mem::forget((stream, pool, managed, system, log, vec, stack));
        return;
    }
    let layout = crate::support::layout(64);
    use aquifer::DeviceResource;
    print_failed("a fork's child detects a device", Device::detect());
    let new = Device::simulated(SimConfig::default());
    print_failed("a fork's child makes a stream on a new device", new.new_stream());
    print_failed("a fork's child copies", vec.to_vec());
    print_failed("a fork's child waits", stream.synchronize());
    print_failed("a fork's child makes a stream", device.new_stream());
    print_failed("a fork's child allocates from a pool", pool.allocate(&stream, layout));
    print_failed("a fork's child trims a pool", pool.wait_and_trim(0));
    print_failed("a fork's child asks for the memory manager", memory_manager(&device));
    let make = |_: &Device| -> Result<NoManager, Error> { panic!("it is not asked") };
    print_failed("a fork's child sets a memory manager", set_memory_manager(make));
    print_failed("a fork's child allocates managed memory", managed.allocate(&stream, layout));
    print_failed("a fork's child allocates ordinary memory", system.allocate(&stream, layout));
    print_failed("a fork's child builds an arena", ArenaResource::new(CudaResource::new(&device)));
    print_failed("a fork's child asks for the resource", current_device_resource(&device));
    print_failed("a fork's child shares memory", vec.ipc_handle());
    print_failed("a fork's child builds pinned memory", PinnedResource::new(&device));
    print_failed("a fork's child locks memory", Registered::new(&device, vec![0_u8; 8]));
    print_failed("a fork's child flushes a log", log.flush());
    print_failed("a fork's child builds a stack", text.build(&device));
    print_failed("a fork's child trims a stack", stack.wait_and_trim(0));
    let capture = stream.capture(&pool, |_| Ok(()));
    print_failed("a fork's child captures", capture.map(|_| ()));
    let mut pinned = AllocVec::<u8, PinnedAlloc>::new_in(PinnedAlloc);
    assert!(pinned.try_reserve(10).is_err());
    print("a fork's child allocates page-locked memory", aquifer::pinned::last_error().unwrap());
    use std::io::Write;
    std::io::stdout().flush().unwrap();
    // SAFETY: ends the child without the destructors of the parent's objects.
    unsafe { libc::_exit(0) }
}
