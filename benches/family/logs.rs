//! What a log in RMM's form takes on top of the pool. Bursts fit in the queue: that is the hot path
//! alone. Without a pause the thread that writes has to keep up, and what it takes counts.

use crate::adaptors::on_top;
use crate::rows::nanoseconds;
use crate::subject::{Bench, must};
use aquifer::mr::{LogFormat, LoggingAdaptor};
use std::time::Duration;

const PEER: &str = "aquifer logging";

pub(crate) fn logging(bench: &Bench) {
    let pool = bench.pool(4);
    let path = std::env::temp_dir().join(format!("aquifer-family-{}.csv", std::process::id()));
    let builder = LoggingAdaptor::builder(pool.clone()).path(&path).format(LogFormat::Rmm);
    let logged = must(builder.build());
    let bare = bench.erased(pool.clone());
    let adapted = bench.erased(logged.clone());
    let settle = || {
        must(logged.flush());
        // Time for the writer to fall asleep.
        std::thread::sleep(Duration::from_millis(2));
    };
    let (rounds, burst) = (bench.count(51, 3), bench.count(10_000, 50));
    nanoseconds(PEER, "on top in bursts", on_top(rounds, burst, &bare, &adapted, settle));
    {
        let (bare, adapted) = (bench.subject(pool), bench.subject(logged.clone()));
        let time = on_top(rounds, burst, &bare, &adapted, settle);
        nanoseconds(PEER, "on top in bursts inlined", time);
    }
    let time = on_top(bench.count(3, 1), bench.count(1_000_000, 100), &bare, &adapted, settle);
    nanoseconds(PEER, "on top sustained", time);
    drop((adapted, logged));
    // It is of no use to anyone.
    let _ = std::fs::remove_file(&path);
}
