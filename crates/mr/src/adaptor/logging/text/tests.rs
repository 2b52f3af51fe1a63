//! Numbers and texts, beside what `format!` writes.

use super::*;

fn row(write: impl FnOnce(&mut RowWriter<'_>)) -> String {
    let mut text = TextBuffer::new(0);
    text.row(write);
    String::from_utf8(text.as_bytes().to_vec()).unwrap()
}

#[test]
fn numbers_are_written_as_format_writes_them() {
    let powers = (0..20).map(|exponent| 10_u64.pow(exponent));
    let bits = (0..64).map(|bit| 1 << bit);
    let odd = (0..200_u64).map(|step| step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (step % 60));
    for near in powers.chain(bits).chain(odd) {
        for value in [near.wrapping_sub(1), near, near.wrapping_add(1)] {
            assert_eq!(row(|to| to.decimal(value)), format!("{value}"));
            assert_eq!(row(|to| to.hexadecimal(value)), format!("{value:x}"));
            assert_eq!(
                row(|to| to.digits::<6>(value % 1_000_000)),
                format!("{:06}", value % 1_000_000)
            );
            assert_eq!(row(|to| to.digits::<2>(value % 100)), format!("{:02}", value % 100));
            let (whole, rest) = (value / 1_000_000_000, value % 1_000_000_000);
            assert_eq!(row(|to| to.seconds(value)), format!("{whole}.{rest:09}"));
        }
    }
    for value in 0..1_000_000 {
        let digits = (decimal_digits(value * 97) + ZEROS).to_le_bytes();
        assert_eq!(digits, format!("{:08}", value * 97).as_bytes());
    }
}

#[test]
fn rows_and_long_text_stand_one_after_the_other() {
    let mut text = TextBuffer::new(16);
    let long = [b'x'; 5000];
    for _ in 0..100 {
        text.row(|to| to.text(&ShortText::<8>::new(b"ab")));
        text.push(&long);
    }
    assert_eq!(text.len(), 100 * 5002);
    assert!(text.as_bytes().chunks(5002).all(|part| part.starts_with(b"ab") && part[2..] == long));
    text.clear();
    assert_eq!(text.as_bytes(), b"");
}

#[test]
fn a_short_text_is_what_was_written() {
    let short = ShortText::<24>::of(|to| to.decimal(1 << 40));
    assert_eq!(row(|to| (0..2).for_each(|_| to.text(&short))), "10995116277761099511627776");
}

#[test]
fn a_number_again_is_written_as_before() {
    let mut last = CachedText::<24>::new();
    for number in [0, 0, 1 << 60, 1 << 60, 7, 7, 0] {
        let mut written = 0;
        for _ in 0..3 {
            let text = row(|to| {
                to.cached(&mut last, number, |to| {
                    written += 1;
                    to.decimal(number);
                });
            });
            assert_eq!(text, format!("{number}"));
        }
        assert!(written <= 1);
    }
}

#[test]
fn the_widest_row_has_room() {
    let widest = row(|to| {
        for _ in 0..3 {
            to.seconds(u64::MAX);
        }
        for _ in 0..7 {
            to.decimal(u64::MAX);
        }
        to.hexadecimal(u64::MAX);
        to.text(&ShortText::<32>::new(b"Alloc failure,0x-,,,,,,,,,,,"));
    });
    // A whole array may be stored past the end of a row.
    assert!(widest.len() > 240 && widest.len() + 64 < ROW);
}
