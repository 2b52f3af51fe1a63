//! Every error of the crate with the text that a person sees: `table.txt`, to be read as a whole.
//!
//! ```text
//! cargo test --features debug-log --test errors    # compares, and prints what differs
//! AQUIFER_BLESS=1 cargo test --features debug-log --test errors    # writes the table anew
//! ```
//!
//! A new place in the source that makes an error needs a row, or a line in [`sites::UNREACHED`].

#![cfg(target_os = "linux")]

mod adaptors;
mod containers;
mod data_handlers;
mod devices;
mod drivers;
mod graphs;
mod host_functions;
mod host_memory;
mod managers;
mod processes;
mod resources;
mod several;
mod sharing;
mod sites;
mod sleep;
mod stacks;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod table;

use table::Table;

type Rows = fn(&mut Table);

const CHAPTERS: [(&str, Rows); 16] = [
    ("Devices and the environment", devices::rows),
    ("Layouts, vectors, launches", containers::rows),
    ("Streams, captures, transfers", streams::rows),
    ("Functions on the host", host_functions::rows),
    ("Resources", resources::rows),
    ("Pools that sleep", sleep::rows),
    ("Graphs that share memory", graphs::rows),
    ("Adaptors", adaptors::rows),
    ("Texts of stacks", stacks::rows),
    ("Page-locked memory", host_memory::rows),
    ("Memory managers, foreign streams", managers::rows),
    ("Memory of other processes", sharing::rows),
    ("Several devices", several::rows),
    ("Data handlers", data_handlers::rows),
    ("Numbers of the driver", drivers::rows),
    ("Other processes", processes::rows),
];

#[test]
fn every_error_reads_as_the_table_says() {
    if support::on_gpu() {
        support::skipped("errors", "the table is of a machine without a driver");
        return;
    }
    if processes::is_child() {
        return;
    }
    let mut table = Table::default();
    for (title, rows) in CHAPTERS {
        table.begin(title);
        rows(&mut table);
    }
    table.check_style();
    table.compare("tests/errors/table.txt");
    sites::check(&table);
}
