//! Numbers and places in sentences.

use crate::event::{AFTER, BEFORE};
use std::fmt::Display;

/// A number and what it counts: `1 stream`, `2 streams`, `0 tries`.
pub fn count(number: impl TryInto<u128> + Display, noun: &str) -> String {
    let words = format!("{number} ");
    if number.try_into().is_ok_and(|number| number == 1) {
        return words + noun;
    }
    match noun.strip_suffix('y') {
        Some(stem) => words + stem + "ies",
        None => words + noun + "s",
    }
}

/// A line of a log: `line 12`, `record 12`, `before the first record`.
pub fn line(line_word: &str, line: u64) -> String {
    match line {
        BEFORE => format!("before the first {line_word}"),
        AFTER => format!("after the last {line_word}"),
        _ => format!("{line_word} {line}"),
    }
}

/// A place in a log: `memory.csv:12` for a line of a text, `memory.pickle: record 12` for a record.
pub fn place(log: &str, line_word: &str, line: u64) -> String {
    match line_word {
        "line" => format!("{log}:{line}"),
        _ => format!("{log}: {}", self::line(line_word, line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        for (number, noun, words) in [
            (0, "stream", "0 streams"),
            (1, "stream", "1 stream"),
            (2, "stream", "2 streams"),
            (1, "try", "1 try"),
            (21, "try", "21 tries"),
        ] {
            assert_eq!(count(number, noun), words);
        }
        assert_eq!(count(u64::MAX, "byte"), "18446744073709551615 bytes");
    }

    #[test]
    fn places() {
        assert_eq!(place("a.csv", "line", 3), "a.csv:3");
        assert_eq!(place("a.pickle", "record", 3), "a.pickle: record 3");
        assert_eq!(place("a.pickle", "record", BEFORE), "a.pickle: before the first record");
        assert_eq!(place("a.pickle", "record", AFTER), "a.pickle: after the last record");
    }
}
