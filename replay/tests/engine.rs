//! Logs are replayed as they were written, and what comes of it is known beforehand.

use aquifer_replay::bisect::bisect;
use aquifer_replay::engine::{Replayed, is_served, replay};
use aquifer_replay::plan::Plan;
use aquifer_replay::read::read;
use aquifer_replay::report::CapacityIs;
use aquifer_replay::stack::{Backend, Options, Resource};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

fn plan(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name);
    Plan::new(&read(&path, None, None).unwrap())
}

/// On a GPU with `AQUIFER_BACKEND=cuda`.
fn on(resource: Resource) -> Options {
    let gpu = std::env::var("AQUIFER_BACKEND").is_ok_and(|backend| backend == "cuda");
    let backend = if gpu { Backend::Cuda(0) } else { Backend::Simulated };
    Options { resource, backend, capacity: Some(1 << 30) }
}

fn replayed(plan: &Plan, options: &Options) -> Replayed {
    replay(plan, options, &|_| {}).unwrap()
}

#[test]
fn plain_memory_reserves_what_is_live() {
    let plan = plan("two_streams.rmm.csv");
    for resource in [Resource::Cuda, Resource::Async, Resource::Managed] {
        let Replayed { report, observation } = replayed(&plan, &on(resource));
        assert_eq!((report.operations, report.served, report.failures.len()), (7, 4, 0));
        // 4 allocations and 3 frees; the leak is freed after the count.
        assert_eq!((report.upstream_calls, report.crossings), (7, 1));
        assert_eq!((report.peak_live, report.peak_reserved), (3500, 3500));
        assert_eq!((report.leaks, report.leaked_bytes, report.failures_of_log), (1, 3000, 1));
        assert_eq!(observation.live, [1000, 3000, 2000, 2500, 500, 3500, 3000]);
        assert_eq!(observation.reserved, observation.live);
        assert_eq!(report.fragmentation.max, 0.0);
        assert_eq!(report.largest_free_at_end, None);
    }
}

#[test]
fn a_pool_reserves_once() {
    let plan = plan("two_streams.rmm.csv");
    let Replayed { report, observation } = replayed(&plan, &on(Resource::Pool));
    assert_eq!((report.served, report.peak_live, report.leaks), (4, 3500, 1));
    assert_eq!((report.upstream_calls, report.peak_reserved), (1, 2 << 20));
    assert_eq!(observation.segments.len(), 1);
    let segment = observation.segments[0];
    assert_eq!((segment.from, segment.to, segment.bytes), (0, usize::MAX, 2 << 20));
    let inside = |address| (segment.address..segment.address + segment.bytes).contains(&address);
    assert!(observation.placed.iter().all(|placed| inside(placed.address)));
    let spans: Vec<_> = observation.placed.iter().map(|p| (p.from, p.to, p.stream)).collect();
    assert_eq!(spans, [(0, 2, 0), (1, 4, 1), (3, 6, 2), (5, usize::MAX, 0)]);
    let expected = 1.0 - 3500.0 / f64::from(2 << 20);
    assert!((report.fragmentation.at_peak - expected).abs() < 1e-12);
    assert!(report.fragmentation.max > report.fragmentation.at_peak);
    assert!(report.largest_free_at_end.unwrap() > 2_000_000);
}

#[test]
fn threads_replay_in_the_logs_order() {
    let plan = plan("threads.rmm.csv");
    for resource in [Resource::Cuda, Resource::Pool] {
        let Replayed { report, observation } = replayed(&plan, &on(resource));
        assert_eq!((report.threads, report.streams, report.served, report.leaks), (3, 3, 4, 0));
        assert_eq!(report.crossings, 3);
        assert_eq!(report.peak_live, 3 << 20);
        let [k, m] = [1 << 10, 1 << 20];
        let half = 512 * k;
        assert_eq!(
            observation.live,
            [m, 3 * m, 2 * m, 2 * m + half, 2 * m + half + 4 * k, half + 4 * k, half, 0]
        );
    }
}

#[test]
fn a_failure_has_its_line_and_the_rest_goes_on() {
    let plan = plan("too_large.rmm.csv");
    for resource in
        [Resource::Pool, Resource::Virtual, Resource::Cuda, Resource::Async, Resource::Managed]
    {
        let Replayed { report, observation } = replayed(&plan, &on(resource));
        let [failed] = &report.failures[..] else { panic!("{:?}", report.failures) };
        assert_eq!((failed.line, failed.bytes), (3, 2_000_000_000));
        assert!(failed.error.contains("2000000000 bytes"), "{}", failed.error);
        assert_eq!((report.operations, report.served, report.leaks), (4, 1, 0));
        assert_eq!((report.peak_live, report.peak_live_of_log), (4 << 20, 2_004_194_304));
        assert_eq!(observation.live, [4 << 20, 4 << 20, 4 << 20, 0]);
        assert_eq!(failed.step, 1);
        assert!(report.to_string().contains("line 3: "), "{report}");
        // Advice is for programs that allocate.
        assert!(!failed.error.ends_with(')'), "{}", failed.error);
    }
}

#[test]
fn progress_reaches_the_end() {
    let plan = plan("threads.rmm.csv");
    let last = AtomicUsize::new(0);
    replay(&plan, &on(Resource::Pool), &|steps| last.store(steps, Ordering::Relaxed)).unwrap();
    assert_eq!(last.into_inner(), plan.steps.len());
}

/// What a simulated device serves is bisected; every smaller capacity is tried, too.
#[test]
fn bisection_finds_the_least_that_serves() {
    let plan = plan("two_streams.rmm.csv");
    for (resource, step) in [(Resource::Pool, 256), (Resource::Cuda, 256), (Resource::Pool, 1024)] {
        let options = Options { resource, ..Options::default() };
        let mut told = Vec::new();
        let found = bisect(&plan, &options, step, |capacity, served| {
            told.push((capacity, served));
        })
        .unwrap();
        let least = (1..)
            .map(|steps| steps * step)
            .find(|capacity| {
                is_served(&plan, &Options { capacity: Some(*capacity), ..options.clone() }).unwrap()
            })
            .unwrap();
        assert_eq!(found.capacity, least, "{resource:?} by {step}: {told:?}");
        assert!(found.capacity >= plan.peak_live);
        assert_eq!(found.ratio, least as f64 / 3500.0);
        assert_eq!(found.tries, told.len());
    }
}

#[test]
fn a_bisection_refuses_what_it_cannot_do() {
    let plan = plan("two_streams.rmm.csv");
    let error = bisect(&plan, &Options::default(), 100, |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("no multiple of 256"), "{error}");
    let gpu = Options { backend: Backend::Cuda(0), ..Options::default() };
    assert!(bisect(&plan, &gpu, 256, |_, _| {}).is_err());
}

/// Without a capacity, a device has what is taken of it; and so much serves the log again.
#[test]
fn a_device_is_as_large_as_the_log_needs() {
    let all = [
        Resource::Pool,
        Resource::Cuda,
        Resource::Async,
        Resource::Managed,
        Resource::Binning,
        Resource::Arena,
    ];
    for name in ["threads.rmm.csv", "two_streams.rmm.csv", "rmm-26.10.csv", "torch-2.11.pickle"] {
        let plan = plan(name);
        for resource in all {
            let options = Options { resource, ..Options::default() };
            let report = replayed(&plan, &options).report;
            let capacity = report.capacity.unwrap();
            assert_eq!(report.failures, [], "{name} {resource:?}");
            assert_eq!(report.capacity_is, CapacityIs::Needed);
            assert_eq!(capacity, report.peak_reserved, "{name} {resource:?}");
            assert!(capacity >= report.peak_live);
            if resource == Resource::Arena {
                let peak = report.peak_live.next_multiple_of(1 << 20);
                let doubles = (0..24).map(|doublings| peak << doublings);
                assert!(doubles.into_iter().any(|double| double == capacity), "{capacity}");
            }
            // A pool with a maximum grows without a margin, and may need more.
            if matches!(resource, Resource::Pool | Resource::Binning) {
                continue;
            }
            let again = replayed(&plan, &Options { capacity: Some(capacity), ..options }).report;
            assert_eq!(again.failures, [], "{name} {resource:?} with {capacity}");
            assert_eq!(again.capacity_is, CapacityIs::Given);
        }
    }
}

/// An arena as large as the log needs is the first double of its peak that serves, not just any.
#[test]
fn an_arena_is_the_first_double_that_serves() {
    let plan = plan("rmm-26.10.csv");
    let options = Options { resource: Resource::Arena, ..Options::default() };
    let capacity = replayed(&plan, &options).report.capacity.unwrap();
    let mut smaller = capacity / 2;
    while smaller >= plan.peak_live {
        let options = Options { capacity: Some(smaller), ..options.clone() };
        assert!(!is_served(&plan, &options).unwrap(), "{smaller} of {capacity}");
        smaller /= 2;
    }
}
