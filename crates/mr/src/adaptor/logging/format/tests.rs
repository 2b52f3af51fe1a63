//! Rows and fields, letter by letter.

use super::*;

fn text(write: impl FnOnce(&mut TextBuffer)) -> String {
    let mut text = TextBuffer::new(0);
    write(&mut text);
    String::from_utf8(text.as_bytes().to_vec()).unwrap()
}

#[test]
fn fields_are_quoted_if_they_need_it() {
    assert_eq!(text(|to| push_field(to, "a b.rs:1")), "a b.rs:1");
    assert_eq!(text(|to| push_field(to, "a, \"b\".rs:1")), "\"a, \"\"b\"\".rs:1\"");
}

#[test]
fn the_time_of_day_is_utc() {
    // 2001-09-09 01:46:40.000001 UTC is a billion seconds and a microsecond after 1970.
    let mut rmm = RmmFormat::new(1_000_000_000_000_000_000);
    let record = Record {
        action: Action::Failure,
        thread: 7,
        location: 0,
        start: 0,
        end: 1000,
        address: 0,
        bytes: 1 << 40,
        stream: 18,
    };
    let row = text(|to| assert_eq!(rmm.add(&record, to), 1));
    assert_eq!(row, "7,01:46:40.000001,allocate failure,0x0,1099511627776,18\n");
    // In the same second, in the next one, and a thread that was late.
    for (end, time) in [
        (999_999_999, "01:46:40.999999"),
        (1_000_000_000, "01:46:41.000000"),
        (999_999_999, "01:46:40.999999"),
        (80_000_000_000_000, "00:00:00.000000"),
    ] {
        let row = text(|to| assert_eq!(rmm.add(&Record { end, ..record }, to), 1));
        assert!(row.starts_with(&format!("7,{time}")), "{row}");
    }
}
