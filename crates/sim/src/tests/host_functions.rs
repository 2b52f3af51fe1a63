//! Functions of the program: their place in stream order, what waits for them, and what is dropped.

use super::*;
use crate::Schedule;
use aquifer_driver::{HostFunction, StreamOutcome, is_in_host_function};
use aquifer_sync::trusted::channel::{Receiver, Sender, unbounded};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// Tells how it was called, once it may.
#[derive(Debug)]
struct Tells {
    to: Sender<(StreamOutcome, bool)>,
    may_end: Option<Receiver<()>>,
    note: Option<(u64, u64)>,
}

impl HostFunction for Tells {
    fn call(&self, outcome: StreamOutcome) {
        let _ = self.to.send((outcome, is_in_host_function()));
        if let Some(note) = self.note {
            NOTES.lock().push(note);
        }
        if let Some(may_end) = &self.may_end {
            let _ = may_end.recv_timeout(LONG);
        }
    }
}

impl Fixture {
    fn tell(
        &self,
        stream: RawStream,
        may_end: Option<Receiver<()>>,
    ) -> Receiver<(StreamOutcome, bool)> {
        let (to, told) = unbounded();
        let function = Arc::new(Tells { to, may_end, note: None });
        self.driver.launch_host_function(function, stream).unwrap();
        told
    }

    fn note_by_function(&self, number: u64, stream: RawStream) {
        let note = Some((self.run, number));
        let function = Arc::new(Tells { to: unbounded().0, may_end: None, note });
        self.driver.launch_host_function(function, stream).unwrap();
    }
}

/// The order in which kernels and functions of two streams ran.
fn run(seed: u64) -> Vec<u64> {
    let fixture = Fixture::new(SimConfig::default().seed(seed));
    let streams = [fixture.stream(), fixture.stream()];
    for step in 0..4 {
        for (index, &stream) in streams.iter().enumerate() {
            fixture.note(index as u64 * 10 + step * 2, stream);
            fixture.note_by_function(index as u64 * 10 + step * 2 + 1, stream);
        }
    }
    streams.iter().for_each(|&stream| fixture.sync(stream).unwrap());
    fixture.clean();
    notes(fixture.run)
}

#[test]
fn a_seed_is_an_order_with_functions_too() {
    for seed in 0..10 {
        let order = run(seed);
        assert_eq!(run(seed), order);
        for stream in [0, 10] {
            let own = order.iter().filter(|&&number| number / 10 * 10 == stream);
            assert!(own.copied().eq(stream..stream + 8), "{order:?}");
        }
    }
}

#[test]
fn a_wait_for_a_stream_waits_for_its_last_function() {
    let schedules = [Schedule::OnDemand, Schedule::Background];
    for (schedule, is_last) in schedules.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let fixture = Fixture::new(SimConfig::default().schedule(schedule));
        let stream = fixture.stream();
        let (end, may_end) = unbounded();
        let told = fixture.tell(stream, Some(may_end));
        let behind = (!is_last).then(|| {
            let event = fixture.event();
            fixture.driver.event_record(event, stream).unwrap();
            event
        });
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| fixture.sync(stream));
            assert_eq!(told.recv_timeout(LONG), Ok((StreamOutcome::Done, true)));
            // Longer than the scheduler's patience.
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waits.is_finished());
            assert!(behind.is_none_or(|event| !fixture.driver.event_query(event).unwrap()));
            end.send(()).unwrap();
            waits.join().unwrap().unwrap();
        });
        assert!(behind.is_none_or(|event| fixture.driver.event_query(event).unwrap()));
        fixture.clean();
    }
}

#[test]
fn what_a_function_tells_is_behind_the_work_before_it() {
    let fixture = Fixture::new(SimConfig::default().schedule(Schedule::Background));
    let (one, two) = (fixture.stream(), fixture.stream());
    let block = fixture.alloc(64);
    fixture.fill(block, 64, 1, one);
    let told = fixture.tell(one, None);
    assert_eq!(told.recv_timeout(LONG), Ok((StreamOutcome::Done, true)));
    // No stream waits: the host knows.
    fixture.fill(block, 64, 2, two);
    fixture.sync(two).unwrap();
    fixture.clean();

    // The twin, which nobody told.
    fixture.fill(block, 64, 3, one);
    let told = fixture.tell(two, None);
    assert_eq!(told.recv_timeout(LONG), Ok((StreamOutcome::Done, true)));
    fixture.fill(block, 64, 4, two);
    fixture.saw(Violation::UnorderedAccess);
}

#[test]
fn other_streams_go_on_beside_a_function_that_waits() {
    let fixture = fixture();
    let (held, other) = (fixture.stream(), fixture.stream());
    let (end, may_end) = unbounded();
    let told = fixture.tell(held, Some(may_end));
    let after = fixture.tell(held, None);
    for number in 0..20 {
        fixture.note(number, other);
        fixture.sync(other).unwrap();
    }
    assert_eq!(notes(fixture.run), (0..20).collect::<Vec<u64>>());
    end.send(()).unwrap();
    fixture.sync(held).unwrap();
    assert_eq!(told.try_recv(), Ok((StreamOutcome::Done, true)));
    assert_eq!(after.try_recv(), Ok((StreamOutcome::Done, true)));
    fixture.clean();
}

#[test]
fn a_lost_context_tells_each_function_once() {
    let fixture = fixture();
    let stream = fixture.stream();
    let (end, may_end) = unbounded();
    let running = fixture.tell(stream, Some(may_end));
    let queued = [fixture.tell(stream, None), fixture.tell(stream, None)];
    std::thread::scope(|scope| {
        scope.spawn(|| fixture.sync(stream).unwrap_err());
        assert_eq!(running.recv_timeout(LONG), Ok((StreamOutcome::Done, true)));
        fixture.sim.lose_context();
        end.send(()).unwrap();
    });
    for told in queued {
        assert_eq!(told.recv_timeout(LONG), Ok((StreamOutcome::Failed, true)));
        assert!(told.recv_timeout(LONG).is_err(), "dropped, and called once");
    }
    assert!(running.recv_timeout(LONG).is_err());
}

#[test]
fn a_device_that_goes_runs_what_it_was_given() {
    let fixture = fixture();
    let stream = fixture.stream();
    let told = fixture.tell(stream, None);
    drop(fixture);
    assert_eq!(told.recv_timeout(LONG), Ok((StreamOutcome::Done, true)));
}

#[test]
fn a_capture_has_no_functions() {
    let fixture = fixture();
    let stream = fixture.stream();
    fixture.driver.stream_begin_capture(stream).unwrap();
    let (to, told) = unbounded();
    let function = Arc::new(Tells { to, may_end: None, note: None });
    let refused = fixture.driver.launch_host_function(function, stream).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Capture);
    assert!(told.recv_timeout(LONG).is_err(), "dropped, and not called");
    let _ = fixture.driver.stream_abandon_capture(stream);
}
