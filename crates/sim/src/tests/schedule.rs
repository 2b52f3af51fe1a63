//! The scheduler runs legal orders only, reaches all of them, and repeats the order of a seed.

use super::*;
use crate::Schedule;
use std::collections::BTreeSet;

/// Three streams with four operations each. The first of the third waits for the second of the first.
/// Returns the order in which they ran.
fn run(seed: u64) -> Vec<u64> {
    let fixture = Fixture::new(SimConfig::default().seed(seed));
    let streams = [fixture.stream(), fixture.stream(), fixture.stream()];
    for step in 0..4 {
        for (index, &stream) in streams.iter().enumerate().take(2) {
            fixture.note(index as u64 * 10 + step, stream);
        }
        if step == 1 {
            fixture.order(streams[0], streams[2]);
        }
    }
    for step in 0..4 {
        fixture.note(20 + step, streams[2]);
    }
    fixture.sync(streams[0]).unwrap();
    fixture.clean();
    notes(fixture.run)
}

#[test]
fn a_seed_is_an_order() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn seeds_differ_and_every_order_is_legal() {
    let orders: BTreeSet<Vec<u64>> = (0..200).map(run).collect();
    assert!(orders.len() > 100, "{} orders of 200", orders.len());
    for order in &orders {
        let at = |number| order.iter().position(|&other| other == number).unwrap();
        assert_eq!(order.len(), 12);
        for stream in [0, 10, 20] {
            assert!((0..3).all(|step| at(stream + step) < at(stream + step + 1)), "{order:?}");
        }
        assert!(at(1) < at(20), "the wait was passed over: {order:?}");
    }
}

#[test]
fn all_interleavings_occur() {
    let run = |seed| {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (first, second) = (fixture.stream(), fixture.stream());
        for step in 0..2 {
            fixture.note(step, first);
            fixture.note(10 + step, second);
        }
        fixture.clean();
        notes(fixture.run)
    };
    let orders: BTreeSet<Vec<u64>> = (0..200).map(run).collect();
    assert_eq!(orders.len(), 6, "4! / (2! 2!)");
}

#[test]
fn a_synchronisation_may_leave_others_behind() {
    let behind = |seed| {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (first, second) = (fixture.stream(), fixture.stream());
        for step in 0..3 {
            fixture.note(step, first);
            fixture.note(10 + step, second);
        }
        fixture.sync(first).unwrap();
        let ran = notes(fixture.run);
        assert!([0, 1, 2].iter().all(|step| ran.contains(step)));
        6 - ran.len()
    };
    let left: BTreeSet<usize> = (0..100).map(behind).collect();
    assert_eq!(left, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn races_give_wrong_data_in_some_order() {
    let run = |seed| {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (first, second, block) = (fixture.stream(), fixture.stream(), fixture.alloc(1));
        fixture.fill(block, 1, 1, first);
        fixture.fill(block, 1, 2, second);
        assert_eq!(fixture.saw(Violation::UnorderedAccess).seed(), seed);
        fixture.download(block, 1, first)[0]
    };
    assert_eq!((0..50).map(run).collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
}

#[test]
fn queries_make_progress() {
    for seed in 0..50 {
        let fixture = Fixture::new(SimConfig::default().seed(seed));
        let (stream, event) = (fixture.stream(), fixture.event());
        for step in 0..10 {
            fixture.note(step, stream);
        }
        fixture.driver.event_record(event, stream).unwrap();
        let mut queries = 0;
        while !fixture.driver.event_query(event).unwrap() {
            queries += 1;
        }
        assert!(queries < 60, "{queries}");
        assert_eq!(notes(fixture.run).len(), 10);
    }
}

#[test]
fn an_event_can_be_recorded_again() {
    let fixture = fixture();
    let (first, second, event) = (fixture.stream(), fixture.stream(), fixture.event());
    fixture.driver.event_record(event, first).unwrap();
    fixture.driver.stream_wait_event(second, event).unwrap();
    fixture.note(0, second);
    fixture.note(1, first);
    fixture.order(second, first);
    fixture.driver.event_record(event, first).unwrap();
    fixture.driver.event_synchronize(event).unwrap();
    assert_eq!(notes(fixture.run).len(), 2);
    fixture.clean();
}

#[test]
fn default_streams_are_streams() {
    let fixture = fixture();
    let legacy = fixture.driver.legacy_stream();
    let mine = fixture.driver.per_thread_stream().unwrap();
    assert_eq!(fixture.driver.per_thread_stream().unwrap(), mine);
    let other = std::thread::scope(|scope| {
        scope.spawn(|| fixture.driver.per_thread_stream().unwrap()).join().unwrap()
    });
    assert!(other != mine && mine != legacy);
    for (number, stream) in [legacy, mine, other].into_iter().enumerate() {
        fixture.note(number as u64, stream);
    }
    fixture.clean();
    assert_eq!(notes(fixture.run).len(), 3);
    assert_eq!(fixture.sim.call_count("cuStreamCreate"), 0);
}

#[test]
fn a_device_in_the_background_runs_by_itself() {
    let fixture = Fixture::new(SimConfig::default().schedule(Schedule::Background).seed(3));
    let streams = [fixture.stream(), fixture.stream()];
    for step in 0..50 {
        fixture.note(step, streams[step as usize % 2]);
    }
    while notes(fixture.run).len() < 50 {
        std::thread::yield_now();
    }
    let ran = notes(fixture.run);
    for parity in 0..2 {
        let own: Vec<u64> = ran.iter().copied().filter(|step| step % 2 == parity).collect();
        assert!(own.is_sorted(), "{own:?}");
    }
    let block = fixture.alloc(64);
    fixture.fill(block, 64, 4, streams[0]);
    assert_eq!(fixture.download(block, 64, streams[0]), [4; 64]);
    let event = fixture.event();
    fixture.driver.event_record(event, streams[1]).unwrap();
    while !fixture.driver.event_query(event).unwrap() {
        std::thread::yield_now();
    }
    fixture.clean();
    let context = Arc::downgrade(&fixture.sim.context);
    drop(fixture);
    assert!(context.upgrade().is_none(), "the thread has ended");
}

#[test]
fn devices_with_different_schedules_wait_for_each_other() {
    let waiting = Fixture::new(SimConfig::default());
    let working = Fixture::new(SimConfig::default().schedule(Schedule::Background));
    let (here, there) = (waiting.stream(), working.stream());
    for round in 0..20 {
        for (from, to, source, target) in
            [(&waiting, &working, here, there), (&working, &waiting, there, here)]
        {
            from.note(round, source);
            let event = from.event();
            from.driver.event_record(event, source).unwrap();
            to.driver.stream_wait_event(target, event).unwrap();
        }
    }
    waiting.sync(here).unwrap();
    working.sync(there).unwrap();
    assert_eq!((notes(waiting.run).len(), notes(working.run).len()), (20, 20));
}

#[test]
fn a_dropped_device_runs_its_queues() {
    let fixture = fixture();
    let (run, stream) = (fixture.run, fixture.stream());
    fixture.note(1, stream);
    let sim = fixture.sim.clone();
    drop(fixture);
    assert_eq!(notes(run), [1]);
    assert_eq!((sim.live_blocks(), sim.call_count("cuLaunchKernel")), (0, 1));
}

static CALLER: Mutex<Option<(Arc<dyn Driver>, RawStream)>> = Mutex::new(None);

/// Calls the device that runs it, which has to be refused and not wait for itself.
static CALL_BACK: Kernel = Kernel::new("call_back", TEXT, |_, _| {
    let (driver, stream) = CALLER.lock().take().ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "the test has put no device there")
    })?;
    match driver.stream_synchronize(stream) {
        Err(error) if error.code() == 800 => Ok(()),
        other => Err(Error::new(ErrorKind::InvalidArgument, format!("{other:?}"))),
    }
});

#[test]
fn a_host_form_may_not_call_the_device() {
    let fixture = fixture();
    let stream = fixture.stream();
    *CALLER.lock() = Some((Arc::clone(&fixture.driver), stream));
    fixture.launch(&CALL_BACK, &[], stream);
    fixture.sync(stream).unwrap();
    fixture.clean();
}
