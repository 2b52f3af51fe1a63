//! How many driver calls an operation makes once the pool is warm.

use crate::peers::{trace, traces};
use crate::rows::{MIB, POOL, number, random};
use crate::subject::{Bench, Calls};
use crate::workloads::{LIVE, STREAMS, churn, cross, hot, replay};

/// Driver calls an operation (a pair of `hot` and `cross`).
pub(crate) fn driver_calls(bench: &Bench) {
    let pool = bench.pool(2);
    let subject = bench.erased(pool.clone());
    let pairs = bench.count(10_000, 100);
    let steps = bench.count(10_000, 50);
    let count = |workload: &str, operations: f64, run: &mut dyn FnMut()| {
        // Twice: the first run may leave blocks where the second one takes them from.
        (0..2).for_each(|_| run());
        let before = pool.statistics();
        let calls = Calls::begin(bench, &pool);
        run();
        let by_name = calls.made();
        let made = by_name.iter().map(|(_, count)| count).sum::<u64>() as f64;
        number(POOL, &format!("driver calls {workload}"), made / operations);
        if made > 0.0 {
            let now = pool.statistics();
            let (misses, steals) = (now.misses - before.misses, now.steals - before.steals);
            println!("# {workload}: {misses} misses, {steals} steals; calls: {by_name:?}");
        }
        made
    };
    let mut one_stream = 0.0;
    for (n, mib) in traces(bench, false) {
        let trace = trace(n, mib);
        let operations = trace.ops().len() as f64;
        one_stream += count(&random(n, mib), operations, &mut || {
            replay(&subject, &trace, 0);
        });
    }
    for (name, bytes) in [("hot 256B", 256), ("hot 1MiB", MIB)] {
        one_stream += count(name, f64::from(pairs + 1), &mut || {
            hot(&subject, bytes, pairs);
        });
    }
    let churned = 2.0 * f64::from(steps + LIVE as u32);
    one_stream += count("churn 1 threads", churned, &mut || {
        churn(&subject, 1, steps);
    });
    number(POOL, "driver calls in all of one stream warm", one_stream);
    count("cross 2 streams 1MiB", f64::from(pairs + 2), &mut || {
        cross(&subject, MIB, pairs, 2);
    });
    count("churn 16 threads", churned * STREAMS as f64, &mut || {
        churn(&subject, STREAMS, steps);
    });
}
