//! What an adaptor takes on top of the pool: runs of both in turn, since machines drift.

use crate::rows::{median, nanoseconds};
use crate::subject::{Bench, Plain, must};
use crate::workloads::{Pool, STREAMS, churn, hot, median3};
use aquifer::{
    DeviceResource,
    mr::{AlignedAdaptor, CheckedAdaptor, LimitingAdaptor, StatisticsAdaptor, TrackingAdaptor},
};

/// Nanoseconds that each operation takes more, a pair being two: the median of what the rounds say.
/// Below 0 where the machine drifted more than the adaptor takes.
pub(crate) fn on_top(
    rounds: u32,
    pairs: u32,
    bare: &impl Pool,
    adapted: &impl Pool,
    settle: impl Fn(),
) -> f64 {
    let round = |_| {
        settle();
        let without = hot(bare, 256, pairs);
        (hot(adapted, 256, pairs) - without) / 2.0
    };
    median((0..rounds).map(round).collect())
}

/// One adaptor, or one state of it.
struct Row<'a> {
    peer: &'a str,
    when: &'a str,
}

/// Behind a pointer and through the concrete type, against the bare pool of the same kind.
fn rows<A>(bench: &Bench, pool: &Plain, row: Row<'_>, adapted: &A)
where
    A: DeviceResource + Clone + 'static,
{
    let (rounds, pairs) = (bench.count(51, 3), bench.count(20_000, 50));
    let Row { peer, when } = row;
    let time =
        on_top(rounds, pairs, &bench.erased(pool.clone()), &bench.erased(adapted.clone()), || {});
    nanoseconds(peer, &format!("on top {when}"), time);
    let (bare, inlined) = (bench.subject(pool.clone()), bench.subject(adapted.clone()));
    let time = on_top(rounds, pairs, &bare, &inlined, || {});
    nanoseconds(peer, &format!("on top {when} inlined"), time);
}

/// Sixteen threads through the adaptor: the whole program's nanoseconds an operation, with the pool.
fn sixteen<A: DeviceResource + Clone + 'static>(bench: &Bench, peer: &str, adapted: &A) {
    let subject = bench.erased(adapted.clone());
    let steps = bench.count(20_000, 20);
    let workload = "churn 16 threads adapted";
    nanoseconds(peer, workload, median3(|| churn(&subject, STREAMS, steps)));
}

pub(crate) fn adaptors(bench: &Bench) {
    let pool = bench.pool(4);
    sixteen(bench, "aquifer pool", &pool);
    let one = |peer| Row { peer, when: "1 thread" };

    let peer = "aquifer statistics";
    let statistics = StatisticsAdaptor::new(pool.clone());
    rows(bench, &pool, one(peer), &statistics);
    // From its first call on, every call takes the mutex.
    std::thread::scope(|scope| {
        let subject = bench.subject(statistics.clone());
        scope.spawn(move || hot(&subject, 256, 1));
    });
    let row = Row { peer, when: "1 thread after a second" };
    rows(bench, &pool, row, &statistics);
    sixteen(bench, peer, &statistics);

    let peer = "aquifer limiting";
    let limiting = LimitingAdaptor::new(pool.clone(), 1 << 46);
    rows(bench, &pool, one(peer), &limiting);
    sixteen(bench, peer, &limiting);

    let peer = "aquifer tracking";
    let tracking = TrackingAdaptor::new(pool.clone());
    rows(bench, &pool, one(peer), &tracking);
    sixteen(bench, peer, &tracking);

    let aligned = must(AlignedAdaptor::new(pool.clone(), 4096, 0));
    rows(bench, &pool, one("aquifer aligned"), &aligned);

    let peer = "aquifer checked";
    let checked = CheckedAdaptor::builder(pool.clone()).poison(None).build();
    rows(bench, &pool, one(peer), &checked);
    sixteen(bench, peer, &checked);

    let peer = "aquifer tracking with backtraces";
    let traced = TrackingAdaptor::builder(pool.clone()).capture_backtraces(true).build();
    let (bare, adapted) = (bench.erased(pool), bench.erased(traced));
    let time = on_top(bench.count(5, 1), bench.count(500, 5), &bare, &adapted, || {});
    nanoseconds(peer, "on top 1 thread", time);
}
