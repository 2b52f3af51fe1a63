//! Devices, streams and events: who is who, what waits for what, and what the environment says.

use crate::{kernels, log, support};
use aquifer::sim::{Schedule, SimConfig};
use aquifer::{
    CudaResource, Device, DeviceLayout, DeviceResource, DeviceVec, ErrorKind, Event, Stream,
    device::BackendKind,
};
use kernels::{add_one, copy, kind};
use std::collections::HashSet;
use std::process::{Command, Output};
use std::sync::Arc;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Device>();
    is_send_and_sync::<Stream>();
    is_send_and_sync::<Event>();
    is_send_and_sync::<aquifer::sim::Simulator>();
    is_send_and_sync::<aquifer::Error>();
};

#[test]
fn clones_are_the_same_and_simulated_devices_are_never_equal() {
    let device = support::device();
    assert_eq!(device.clone(), *device);
    let (one, _) = support::simulated(SimConfig::default().name("twin").seed(1));
    let (two, _) = support::simulated(SimConfig::default().name("twin").seed(1));
    assert_ne!(one, two, "of one configuration, and two devices all the same");
    assert_ne!(one, *device);
    assert_eq!((one.name(), one.ordinal(), one.kind()), ("twin", 0, BackendKind::Simulated));
    assert!(one.to_string().starts_with("twin "));
    assert_eq!((one.to_string(), two.to_string()), ("twin 0".into(), "twin 0".into()));
    let stream = two.new_stream().unwrap();
    let error =
        CudaResource::new(&one).allocate(&stream, DeviceLayout::new(4).unwrap()).unwrap_err();
    let [belongs, not] = ["belongs to another twin 0 (context ", ", not to twin 0 (context "]
        .map(|part| error.to_string().split_once(part).unwrap().1.to_owned());
    assert_ne!(belongs.split_once(')').unwrap().0, not.split_once(')').unwrap().0, "{error}");
    assert_eq!(device.simulator().is_some(), device.kind() == BackendKind::Simulated);
    if support::on_gpu() {
        assert_eq!(Device::open(0).unwrap(), *device, "opened twice, one device");
        assert!(Device::count().unwrap() >= 1);
    }
    let wild = Device::open(usize::MAX).unwrap_err();
    assert!(matches!(wild.kind(), ErrorKind::NoDevice | ErrorKind::NoDriver), "{wild}");
}

#[test]
fn numbers_of_streams_are_never_used_again() {
    let device = support::device();
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let stream = device.new_stream().unwrap();
        assert_eq!(stream.clone(), stream);
        assert_eq!(stream.clone().id(), stream.id());
        assert_eq!(stream.device(), &*device);
        assert!(seen.insert(stream.id()), "the driver may use a handle again, this number not");
    }
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    assert_ne!(a, b);
    assert!(a.to_string().contains(&a.id().to_string()), "{a}");
    let legacy = device.default_stream();
    assert_eq!(legacy, device.default_stream());
    assert_ne!(legacy, a);
}

#[test]
fn streams_are_made_and_dropped_on_many_threads_at_once() {
    let device = support::device();
    let ids: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let make = |_| {
                        let stream = device.new_stream().unwrap();
                        let mut vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
                        add_one(&device.default_stream(), &mut vec).unwrap();
                        assert_eq!(vec.to_vec().unwrap(), [1; 10]);
                        stream.id()
                    };
                    (0..25).map(make).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 100);
}

#[test]
fn handles_are_dropped_in_any_order() {
    for order in 0..6 {
        let device = support::device();
        let stream = device.new_stream().unwrap();
        let mut vec = DeviceVec::from_slice(&stream, &[1_u32, 2]).unwrap();
        let event = stream.record().unwrap();
        let handle = Device::clone(&device);
        let other = handle.new_stream().unwrap();
        add_one(&other, &mut vec).unwrap();
        match order {
            0 => drop((device, handle, stream, other, event, vec)),
            1 => drop((vec, event, other, stream, handle, device)),
            2 => drop((stream, other, handle, device, vec, event)),
            3 => drop((event, stream, vec, device, other, handle)),
            4 => {
                drop((device, handle, stream, other));
                assert_eq!(vec.to_vec().unwrap(), [2, 3], "a vector holds all that it needs");
                event.synchronize().unwrap();
            }
            _ => {
                drop((device, handle, vec, event));
                drop(stream);
                other.synchronize().unwrap();
            }
        }
    }
}

#[test]
fn everything_of_a_simulated_device_goes_with_its_last_handle() {
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u32>::zeroed(&stream, 10).unwrap();
    let event = stream.record().unwrap();
    drop((device, stream, event));
    assert_eq!(simulator.live_blocks(), 1);
    drop(vec);
    assert_eq!(simulator.live_blocks(), 0);
    let created = simulator.call_count("cuEventCreate");
    assert_eq!(simulator.call_count("cuEventDestroy"), created);
    assert_eq!(simulator.call_count("cuStreamDestroy"), 1);
    assert_eq!(simulator.call_count("cuMemFree"), 1, "the default pool went, too");
    simulator.check().unwrap();
}

#[test]
fn a_stream_that_waits_for_an_event_comes_after_what_it_covers() {
    for seed in 0..8 {
        let device = support::seeded(seed);
        let [a, b, c] = [(); 3].map(|()| device.new_stream().unwrap());
        let mut vec = DeviceVec::from_slice(&a, &[1_u32; 1000]).unwrap();
        add_one(&a, &mut vec).unwrap();
        let event = a.record().unwrap();
        assert_eq!(event.device(), &*device);
        b.wait(&event).unwrap();
        drop(event);
        c.wait_for(&b).unwrap();
        c.wait_for(&c).unwrap();
        // The chain of waits orders c after a: what the simulator would report is not there.
        let mut seen = DeviceVec::<u32>::zeroed(&c, 1000).unwrap();
        copy(&c, &vec, &mut seen).unwrap();
        assert_eq!(seen.to_vec().unwrap(), [2; 1000]);
    }
}

#[test]
fn an_event_is_complete_when_the_device_has_passed_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    add_one(&stream, &mut vec).unwrap();
    let event = stream.record().unwrap();
    let asked = (0..10_000_000).find(|_| event.is_complete().unwrap());
    assert!(asked.is_some(), "asking makes progress");
    event.synchronize().unwrap();
    assert!(event.is_complete().unwrap());
    let events: Vec<Event> = (0..2000).map(|_| stream.record().unwrap()).collect();
    drop(events);
    assert!(stream.record().unwrap().synchronize().is_ok());
}

#[test]
fn streams_wait_for_events_of_another_simulated_device() {
    for schedule in [Schedule::OnDemand, Schedule::Background] {
        let (one, _) = support::simulated(SimConfig::default().schedule(schedule));
        let (two, _) = support::simulated(SimConfig::default().seed(7));
        let (a, b) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        let mut source = DeviceVec::<u32>::zeroed(&a, 100).unwrap();
        for _ in 0..10 {
            add_one(&a, &mut source).unwrap();
        }
        b.wait_for(&a).unwrap();
        let event = b.record().unwrap();
        event.synchronize().unwrap();
        let target = DeviceVec::<u32>::zeroed(&b, 100);
        let mut target = target.unwrap();
        target.copy_from(&source).unwrap();
        assert_eq!(target.to_vec().unwrap(), [10; 100]);
        for device in [one, two] {
            device.simulator().unwrap().check().unwrap();
        }
    }
}

#[test]
fn a_gpu_does_not_wait_for_the_simulated_device() {
    let device = support::device();
    let (simulated, _) = support::simulated(SimConfig::default());
    let (here, there) = (device.new_stream().unwrap(), simulated.new_stream().unwrap());
    let (ours, theirs) = (here.wait_for(&there), there.wait_for(&here));
    if support::on_gpu() {
        assert_eq!((kind(ours), kind(theirs)), (ErrorKind::WrongDevice, ErrorKind::WrongDevice));
    } else {
        ours.and(theirs).unwrap();
        support::skipped("a_gpu_does_not_wait_for_the_simulated_device", "no GPU");
    }
}

#[test]
fn memory_info_sees_what_is_taken_and_given_back() {
    let device = support::device();
    let before = device.memory_info().unwrap();
    assert!(0 < before.free && before.free <= before.total);
    let stream = device.new_stream().unwrap();
    let resource = Arc::new(CudaResource::new(&device));
    let vec = DeviceVec::<u8>::zeroed_in(&stream, 32 << 20, resource).unwrap();
    stream.synchronize().unwrap();
    if device.simulator().is_some() {
        assert_eq!(device.memory_info().unwrap().free, before.free - (32 << 20));
        drop(vec);
        device.synchronize().unwrap();
        assert_eq!(device.memory_info().unwrap(), before);
    }
}

#[test]
fn the_threads_own_stream_is_another_on_each_thread() {
    let device = support::device();
    let mine = device.per_thread_stream().unwrap();
    assert_eq!(mine.device(), &*device);
    let event = device.new_stream().unwrap().record().unwrap();
    mine.wait(&event).unwrap();
    mine.synchronize().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| device.per_thread_stream().unwrap().synchronize().unwrap());
    });
    assert!(format!("{mine:?}").contains("PerThreadStream"));
}

/// Starts this very program again to run [`child`] alone, with or without `AQUIFER_BACKEND`.
fn in_a_child(backend: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "device::child", "--nocapture"]).env("AQUIFER_TEST_CHILD", "1");
    match backend {
        Some(value) => command.env("AQUIFER_BACKEND", value),
        None => command.env_remove("AQUIFER_BACKEND"),
    };
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{text}");
    // Without the time that it took.
    text.split("test result").next().unwrap_or_default().to_owned()
}

/// Not a test of its own: what the tests below look at, in a process of its own.
#[test]
fn child() {
    if std::env::var_os("AQUIFER_TEST_CHILD").is_none() {
        return;
    }
    let log = log::Log::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(Device::detect_or_simulate)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    match Device::detect_or_simulate() {
        Ok(device) => {
            assert!(found.iter().all(|other| other.as_ref().is_ok_and(|other| *other == device)));
            let stream = device.new_stream().unwrap();
            let vec = DeviceVec::from_slice(&stream, &[1_u8, 2]).unwrap();
            assert_eq!(vec.to_vec().unwrap(), [1, 2]);
            println!("found: {}", device.kind());
            println!(
                "detected: {:?}",
                Device::detect().map(|device| device.kind()).map_err(|error| error.kind())
            );
        }
        Err(error) => {
            assert!(found.iter().all(|other| other.is_err()));
            println!("kind: {:?}\nerror: {error}", error.kind());
        }
    }
    println!("warnings: {}", log.count(Level::WARN, "no GPU"));
    println!("lines: {}", log.lines().len());
}

#[test]
fn the_environment_asks_for_the_simulated_device_and_gets_it_without_a_word() {
    let said = in_a_child(Some("sim"));
    assert!(
        said.contains("found: simulated") && said.contains("detected: Ok(Simulated)"),
        "{said}"
    );
    assert!(said.contains("lines: 0"), "{said}");
}

#[test]
fn the_environment_asks_for_a_gpu_and_gets_it_or_an_error() {
    let said = in_a_child(Some("cuda"));
    match Device::open(0) {
        Ok(_) => assert!(said.contains("found: CUDA"), "{said}"),
        Err(error) => assert!(
            said.contains(&format!(
                "kind: {:?}\nerror: AQUIFER_BACKEND=cuda asks for a GPU: ",
                error.kind()
            )),
            "{said}"
        ),
    }
    assert!(said.contains("lines: 0"), "never the simulated device instead: {said}");
}

#[test]
fn the_environment_says_nothing_that_means_anything() {
    // An empty one counts as not set.
    assert_eq!(in_a_child(Some("")), in_a_child(None));
    for wrong in ["CUDA", "gpu", "sim ", "0"] {
        let said = in_a_child(Some(wrong));
        assert!(said.contains("kind: Environment"), "{said}");
        assert!(said.contains(&format!("AQUIFER_BACKEND is {wrong:?}")), "{said}");
    }
}

#[test]
fn without_a_wish_and_a_gpu_the_simulated_device_warns_once() {
    let said = in_a_child(None);
    if Device::open(0).is_ok() {
        assert!(said.contains("found: CUDA") && said.contains("lines: 0"), "{said}");
    } else {
        assert!(said.contains("found: simulated"), "{said}");
        assert!(
            said.contains("detected: Err(NoDriver)") || said.contains("detected: Err(NoDevice)"),
            "{said}"
        );
        assert!(said.contains("warnings: 1") && said.contains("lines: 1"), "{said}");
    }
}
