//! Texts of stacks.

use crate::processes;
use crate::support::simulated;
use crate::table::Table;
use aquifer::mr::StackText;
use aquifer::sim::SimConfig;

/// Texts that do not read, by a title.
const WRONG: [(&str, &str); 35] = [
    ("an empty text", ""),
    ("a resource that is none", "pol(cuda, max=1GiB)"),
    ("an adaptor that is none", "pool(cuda) | limit(1GiB)"),
    ("a word that is near to nothing", "everything"),
    ("an adaptor in the place of a resource", "statistics(pool(cuda))"),
    ("a resource over another after a bar", "cuda | pool"),
    ("a resource over no other after a bar", "pool(cuda) | managed"),
    ("an upstream of a resource that has none", "cuda(managed)"),
    ("an upstream of an adaptor", "limiting(pool(cuda), 1GiB)"),
    ("an upstream in an adaptor's parentheses", "cuda | limiting(pool(cuda), 1GiB)"),
    ("two upstreams", "pool(cuda, managed)"),
    ("too many resources around another", "pool(pool(pool(pool(pool(cuda)))))"),
    ("an option that is none", "pool(cuda, maxx=1GiB)"),
    ("an option of a resource without any", "cuda(max=1GiB)"),
    ("an option that is near to none", "pool(cuda, color=red)"),
    ("an option twice", "pool(cuda, max=1GiB, maximum_size=2GiB)"),
    ("an option that must be given", "cuda | limiting"),
    ("an option whose value is missing", "pool(cuda, max=)"),
    ("an option without a value", "managed(oversubscribe)"),
    ("a value without its option", "pool(1GiB)"),
    ("a value too many", "cuda | limiting(1GiB, 2GiB)"),
    ("an empty value", "cuda | logging(\"\")"),
    ("a comma before nothing", "pool(cuda,)"),
    ("a space in a size", "pool(cuda, max=1 GiB)"),
    ("a parenthesis that does not end", "pool(cuda | tracking"),
    ("a parenthesis too many", "pool(cuda)) | tracking"),
    ("a quote that does not end", "cuda | logging(\"my log.csv)"),
    ("an escape that is none", "cuda | logging(\"C:\\temp\")"),
    ("a size with an exponent", "pool(cuda, initial=1e99GiB)"),
    ("a size below zero", "pool(cuda, initial=-1GiB)"),
    ("a size with a wrong unit", "pool(cuda, initial=1gb)"),
    ("a size that is too large", "pool(cuda, initial=16777216TiB)"),
    ("a size that is no whole number", "pool(cuda, initial=0.1GiB)"),
    ("more than the memory", "pool(cuda, max=120%)"),
    ("a part of the memory where none is meant", "pool(cuda, alignment=5%)"),
];

pub(crate) fn rows(table: &mut Table) {
    for (title, text) in WRONG {
        table.failed(title, text.parse::<StackText>());
    }
    for (title, text) in [
        ("a number of a text", "pool(magazine_entries=eight)"),
        ("a number that is too large", "pool(magazine_entries=99999999999999999999)"),
        ("a switch", "managed(oversubscribe=yes)"),
        ("one of some names", "pool(miss_policy=greedy)"),
        ("a byte", "cuda | checked(poison=256)"),
        ("a part that is no number", "pool(max=half%)"),
        ("a part with seven digits", "pool(max=33.3333333%)"),
    ] {
        table.failed(&format!("a wrong value: {title}"), text.parse::<StackText>());
    }
    table.failed(
        "too many adaptors",
        format!("cuda{}", " | traced".repeat(32)).parse::<StackText>(),
    );
    let long = format!("cuda | logging({})", "a".repeat(5000));
    table.failed("a value that is too long", long.parse::<StackText>());
    let blank = " ".repeat(1 << 20);
    table.failed("a text that is too long", format!("{blank}cuda").parse::<StackText>());

    let (device, _) = simulated(SimConfig::default());
    let build = |text: &str| text.parse::<StackText>().unwrap().build(&device);
    table.failed("a stack whose pool is refused", build("pool(cuda, max=1000) | statistics"));
    table.failed("a stack without room", build("pool(cuda, initial=1TiB) | statistics"));
    table.failed(
        "a stack whose log is refused",
        build("cuda | logging(/nonexistent/folder/log.csv)"),
    );
    let wrong = [(StackText::VARIABLE, "pool(cuda, max=80%) | statstics")];
    processes::rows_of_child(table, "stack", &wrong, "AQUIFER_STACK with a wrong text");
    processes::rows_of_child(table, "bytes", &[], "AQUIFER_STACK that is no text");
}
