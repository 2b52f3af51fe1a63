//! What a host form was lent goes back to its owner when the form has ended, also where the context is
//! lost while it runs.

use crate::kernels::idle_entry;
use crate::support;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::sim::{Schedule, SimConfig, Simulator};
use aquifer::{
    Device, DeviceVec, ErrorKind, Event, HostArgs, Kernel, LaunchConfig, MappedAlloc, Result,
    Stream,
    pinned::{PinnedPool, PinnedResource},
};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Pinned = AllocVec<u32, PinnedResource>;

fn pinned(device: &Device, values: &[u32]) -> Pinned {
    let mut vec = AllocVec::new_in(PinnedResource::new(device).unwrap());
    vec.extend_from_slice(values);
    vec
}

/// How far a host form is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    #[default]
    Before,
    /// It may go on: the test has given it all that it waits for.
    Free,
    Inside,
    Ended,
}

/// Where one host form and its test meet.
struct Meeting {
    at: Mutex<At>,
    moved: Condvar,
}

static MEETINGS: [Meeting; 32] =
    [const { Meeting { at: Mutex::new(At::Before), moved: Condvar::new() } }; 32];

impl Meeting {
    fn number() -> u32 {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) as u32
    }

    fn of(number: u32) -> &'static Self {
        &MEETINGS[number as usize]
    }

    fn at(&self) -> At {
        *self.at.lock().unwrap()
    }

    fn go(&self, to: At) {
        *self.at.lock().unwrap() = to;
        self.moved.notify_all();
    }

    fn reach(&self, to: At) {
        drop(self.moved.wait_while(self.at.lock().unwrap(), |at| *at < to).unwrap());
    }

    /// The form stays inside long enough for a call that does not wait for it to return.
    fn stay(&self) {
        self.go(At::Inside);
        std::thread::sleep(Duration::from_millis(100));
        self.go(At::Ended);
    }
}

/// Reads its second argument for a while.
static READ: Kernel = Kernel::new(
    "read",
    idle_entry!("read", number: u32, lent: u64),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let meeting = Meeting::of(args.scalar::<u32>()?);
        let _read: &[u32] = args.input()?;
        meeting.stay();
        Ok(())
    },
);

static STAY: Kernel = Kernel::new(
    "stay",
    idle_entry!("stay", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        Meeting::of(args.scalar::<u32>()?).stay();
        Ok(())
    },
);

fn launch(kernel: &Kernel, stream: &Stream, scalar: u32) {
    let launch = stream.launch(kernel).scalar(scalar).unwrap();
    // SAFETY: its host form touches no memory.
    unsafe { launch.launch(LaunchConfig::for_elements(1)) }.unwrap();
}

/// A form that is inside, on a device that runs by itself.
fn inside(stream: &Stream) -> &'static Meeting {
    let number = Meeting::number();
    launch(&STAY, stream, number);
    Meeting::of(number).reach(At::Inside);
    Meeting::of(number)
}

fn background() -> (Device, Simulator) {
    support::simulated(SimConfig::default().schedule(Schedule::Background))
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_scope_lends_until_the_form_has_ended() {
    for drives in [false, true] {
        let (device, simulator) =
            if drives { support::simulated(SimConfig::default()) } else { background() };
        let (stream, number) = (device.new_stream().unwrap(), Meeting::number());
        let meeting = Meeting::of(number);
        let host = pinned(&device, &[7; 100]);
        let failed = std::thread::scope(|threads| {
            let failed = stream.scope(|s| {
                let lent = s.map(&host)?;
                let launch = stream.launch(&READ).scalar(number)?.mapped_input(&lent)?;
                // SAFETY: it reads what it is given.
                unsafe { launch.launch(LaunchConfig::for_elements(100)) }?;
                if drives {
                    threads.spawn(|| device.synchronize());
                }
                meeting.reach(At::Inside);
                simulator.lose_context();
                Ok(())
            });
            assert_eq!(meeting.at(), At::Ended, "the memory is its owner's again");
            failed
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::ContextLost);
    }
}

#[test]
fn a_wait_on_a_lost_context_ends_after_the_form() {
    type Wait = fn(&Device, &Stream, &Event) -> Result<()>;
    let waits: [(&str, Wait); 4] = [
        ("the device", |device, _, _| device.synchronize()),
        ("its stream", |_, stream, _| stream.synchronize()),
        ("another stream", |device, _, _| device.default_stream().synchronize()),
        ("an event", |_, _, event| event.synchronize()),
    ];
    for (what, wait) in waits {
        let (device, simulator) = background();
        let stream = device.new_stream().unwrap();
        let meeting = inside(&stream);
        let event = stream.record().unwrap();
        simulator.lose_context();
        assert_eq!(wait(&device, &stream, &event).unwrap_err().kind(), ErrorKind::ContextLost);
        assert_eq!(meeting.at(), At::Ended, "{what}");
    }
}

#[test]
fn a_wait_of_another_device_ends_after_the_form() {
    let ((device, simulator), (other, _)) = (background(), background());
    let (stream, waiter) = (device.new_stream().unwrap(), other.new_stream().unwrap());
    let meeting = inside(&stream);
    let event = stream.record().unwrap();
    waiter.wait(&event).unwrap();
    simulator.lose_context();
    waiter.synchronize().unwrap();
    assert_eq!(meeting.at(), At::Ended);
    assert_eq!(event.is_complete().unwrap_err().kind(), ErrorKind::ContextLost);
}

#[test]
fn a_lost_context_has_not_passed_what_it_still_runs() {
    let (device, simulator) = background();
    let stream = device.new_stream().unwrap();
    let vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    let meeting = inside(&stream);
    let event = stream.record().unwrap();
    let mut upload = stream.upload(pinned(&device, &[7; 100]), vec).unwrap();
    simulator.lose_context();
    let (complete, polled) = (event.is_complete(), poll(&mut upload));
    assert_eq!(meeting.at(), At::Inside, "nothing waited");
    assert!(!complete.unwrap() && polled.is_pending());
    meeting.reach(At::Ended);
    device.synchronize().unwrap_err();
    assert_eq!(event.is_complete().unwrap_err().kind(), ErrorKind::ContextLost);
    let Poll::Ready(Err(failed)) = poll(&mut upload) else { panic!("{upload:?}") };
    assert_eq!(&failed.buffers.unwrap().0[..], [7; 100]);
}

/// A wait that fails where the context lives: what was lent is still to be read.
#[test]
fn a_failed_wait_gives_back_what_the_device_is_past() {
    const UNKNOWN: u32 = 999;
    let (device, simulator) = support::simulated(SimConfig::default());
    let stream = device.new_stream().unwrap();
    let mut vec = DeviceVec::<u32>::zeroed(&stream, 100).unwrap();
    let mut host = pinned(&device, &[7; 100]);

    simulator.fail_call("cuStreamSynchronize", 1, UNKNOWN).unwrap();
    assert_eq!(vec.copy_from_slice(&host).unwrap_err().kind(), ErrorKind::Driver);
    host.fill(8);
    stream.synchronize().unwrap();

    let number = Meeting::number();
    simulator.fail_call("cuStreamSynchronize", 1, UNKNOWN).unwrap();
    let failed = stream.scope(|s| {
        let lent = s.map(&host)?;
        let launch = stream.launch(&READ).scalar(number)?.mapped_input(&lent)?;
        // SAFETY: it reads what it is given.
        unsafe { launch.launch(LaunchConfig::for_elements(100)) }
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Driver);
    assert_eq!(Meeting::of(number).at(), At::Ended);

    for call in ["cuEventSynchronize", "cuEventQuery"] {
        let mut upload = stream.upload(host, vec).unwrap();
        simulator.fail_call(call, 1, UNKNOWN).unwrap();
        let failed = match call {
            "cuEventQuery" => match poll(&mut upload) {
                Poll::Ready(done) => done.unwrap_err(),
                Poll::Pending => panic!("another test took the failure"),
            },
            _ => upload.wait().unwrap_err(),
        };
        (host, vec) = *failed.buffers.unwrap();
        host.fill(9);
        stream.synchronize().unwrap();
    }
    simulator.check().unwrap();
}

/// What a form takes with it, by the meeting's number.
static TAKEN: Mutex<Vec<(u32, Taken)>> = Mutex::new(Vec::new());

type Taken = (Device, Stream, Option<Pooled>);

/// Memory whose device address no call asks for twice.
type Pooled = AllocVec<u32, PinnedPool>;

fn pooled(device: &Device) -> Pooled {
    let pool = PinnedPool::new(PinnedResource::new(device).unwrap()).unwrap();
    let mut vec = AllocVec::new_in(pool);
    vec.extend([7; 100]);
    MappedAlloc::device_address(&vec).unwrap();
    vec
}

fn give(number: u32, taken: Taken) {
    TAKEN.lock().unwrap().push((number, taken));
    Meeting::of(number).go(At::Free);
}

fn take(number: u32) -> Taken {
    Meeting::of(number).reach(At::Free);
    let mut taken = TAKEN.lock().unwrap();
    let index = taken.iter().position(|taken| taken.0 == number).unwrap();
    taken.swap_remove(index).1
}

/// Loses its own context, and calls it all the same.
static LOSE: Kernel = Kernel::new(
    "lose",
    idle_entry!("lose", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let number = args.scalar::<u32>()?;
        let (device, stream, host) = take(number);
        let event = stream.record();
        device.simulator().unwrap().lose_context();
        // It lends memory, and nobody can take it.
        let nothing = stream.scope(|s| s.map(host.as_deref().unwrap_or_default()).map(drop));
        let refused = [event.map(drop), stream.synchronize(), device.synchronize(), nothing];
        let refused = refused.map(|refused| refused.is_err());
        drop((device, stream, host));
        if refused == [true; 4] {
            Meeting::of(number).stay();
        }
        Ok(())
    },
);

#[test]
fn a_form_that_loses_its_own_context_is_waited_for_and_waits_for_nobody() {
    for end in [false, true] {
        let (device, _) = background();
        let (stream, number) = (device.new_stream().unwrap(), Meeting::number());
        launch(&LOSE, &stream, number);
        launch(&STAY, &stream, Meeting::number());
        // Pooled memory would keep the device.
        let host = (!end).then(|| pooled(&device));
        give(number, (device.clone(), stream.clone(), host));
        Meeting::of(number).reach(At::Inside);
        if end {
            // The last handle.
            drop((device, stream));
        } else {
            assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::ContextLost);
        }
        assert_eq!(Meeting::of(number).at(), At::Ended);
    }
}

/// Drops the last handle on its own device.
static DROP: Kernel = Kernel::new(
    "drop",
    idle_entry!("drop", number: u32),
    |_: &LaunchConfig, mut args: HostArgs<'_>| {
        let number = args.scalar::<u32>()?;
        drop(take(number));
        Meeting::of(number).stay();
        Ok(())
    },
);

#[test]
fn a_form_that_drops_its_device_is_waited_for_by_others() {
    let ((device, _), (other, _)) = (background(), background());
    let (stream, waiter) = (device.new_stream().unwrap(), other.new_stream().unwrap());
    let number = Meeting::number();
    launch(&DROP, &stream, number);
    waiter.wait_for(&stream).unwrap();
    give(number, (device, stream, None));
    Meeting::of(number).reach(At::Inside);
    waiter.synchronize().unwrap();
    assert_eq!(Meeting::of(number).at(), At::Ended);
}
