//! A source with mutants in it, each of which waits to be chosen when the program starts.

use super::places::{Form, Mutation};
use anyhow::{Result, bail};
use std::cmp::Reverse;
use std::ops::Range;

/// Names the mutant of a program, by its number from 1.
pub(crate) const VARIABLE: &str = "AQUIFER_MUTANT";

/// What the root of each mutated crate has besides.
pub(crate) const ASKS: &str = r#"
/// Whether the program was started with this mutant.
pub(crate) fn mutant(number: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen == u32::MAX {
        let named = std::env::var("AQUIFER_MUTANT").ok();
        chosen = named.and_then(|number| number.parse().ok()).unwrap_or(0);
        CHOSEN.store(chosen, Ordering::Relaxed);
    }
    chosen == number
}
"#;

/// Where a mutant came to be in the rewritten source.
#[derive(Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) number: u32,
    /// Its own text, which an error of the compiler may name.
    pub(crate) own: Range<usize>,
    /// The whole of the choice, with what the source had.
    pub(crate) whole: Range<usize>,
}

/// `text` with mutants by their numbers.
pub(crate) fn rewrite(
    text: &str,
    mut mutants: Vec<(u32, &Mutation)>,
) -> Result<(String, Vec<Written>)> {
    mutants.sort_by_key(|(_, mutation)| (mutation.range.start, Reverse(mutation.range.end)));
    let mut writer = Writer { text, out: String::new(), written: Vec::new() };
    writer.write(0..text.len(), &mutants)?;
    Ok((writer.out, writer.written))
}

struct Writer<'t> {
    text: &'t str,
    out: String,
    written: Vec<Written>,
}

impl Writer<'_> {
    fn write(&mut self, part: Range<usize>, mut mutants: &[(u32, &Mutation)]) -> Result<()> {
        let mut at = part.start;
        while let Some((_, first)) = mutants.first() {
            let range = first.range.clone();
            if range.start < at || range.end > part.end {
                bail!("`{}` of `{}` overlaps another mutant", first.words, first.function);
            }
            let here = mutants.iter().take_while(|(_, mutation)| mutation.range == range).count();
            let (here, after) = mutants.split_at(here);
            let inside =
                after.iter().take_while(|(_, mutation)| mutation.range.start < range.end).count();
            let (inside, after) = after.split_at(inside);
            self.out.push_str(&self.text[at..range.start]);
            let expression = first.form == Form::Expression;
            let (start, first_written) = (self.out.len(), self.written.len());
            self.out.push_str(if expression { "(" } else { "" });
            for (number, mutation) in here {
                self.out.push_str(&format!("if crate::mutant({number}) {{ "));
                let own = self.out.len();
                self.out.push_str(&mutation.instead);
                let own = own..self.out.len();
                self.out.push_str(" } else ");
                self.written.push(Written { number: *number, own, whole: start..start });
            }
            let last_written = self.written.len();
            self.out.push_str("{ ");
            self.write(range.clone(), inside)?;
            self.out.push_str(if expression { " })" } else { " }" });
            for written in &mut self.written[first_written..last_written] {
                written.whole.end = self.out.len();
            }
            at = range.end;
            mutants = after;
        }
        self.out.push_str(&self.text[at..part.end]);
        Ok(())
    }
}

/// The mutants that the compiler refuses, by the bytes that an error of it names: the one whose own text
/// has them, or else all of the innermost choice around them.
pub(crate) fn blamed(written: &[Written], error: &Range<usize>) -> Vec<u32> {
    let has = |range: &Range<usize>| range.start <= error.start && error.end <= range.end;
    if let Some(own) =
        written.iter().filter(|written| has(&written.own)).min_by_key(|written| written.own.len())
    {
        return vec![own.number];
    }
    let around = written.iter().filter(|written| has(&written.whole));
    let Some(innermost) = around.min_by_key(|written| written.whole.len()) else {
        return Vec::new();
    };
    let same = written.iter().filter(|other| other.whole == innermost.whole);
    same.map(|written| written.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::places::find;

    fn rewritten(text: &str, wanted: &[&str]) -> (String, Vec<Written>) {
        let found = find(text).unwrap().mutations;
        let chosen = found.iter().filter(|m| wanted.contains(&m.words.as_str()));
        rewrite(text, (1..).zip(chosen).collect()).unwrap()
    }

    #[test]
    fn nests_choices_and_chains_those_of_one_place() {
        let text = "fn f() -> bool { a + 1 < b }";
        let (out, _) =
            rewritten(text, &["< becomes <= #1", "1 becomes 0 #1", "body becomes true #1"]);
        assert_eq!(
            out,
            "fn f() -> bool {if crate::mutant(1) { return true; } else {  } (if crate::mutant(2) { \
             (a + 1) <= (b) } else { a + (if crate::mutant(3) { 0 } else { 1 }) < b }) }"
        );
        syn::parse_file(&out).unwrap();
        let (out, _) = rewritten("fn f() -> u8 { g(); 1 }", &["call of g deleted #1"]);
        assert_eq!(out, "fn f() -> u8 { if crate::mutant(1) {  } else { g(); } 1 }");
    }

    #[test]
    fn an_error_is_of_the_mutant_that_it_names() {
        let text = "fn f() -> bool { a + 1 < b }";
        let (out, written) = rewritten(text, &["< becomes <= #1", "1 becomes 0 #1"]);
        let at = |part: &str| out.find(part).map(|at| at..at + part.len()).unwrap();
        assert_eq!(blamed(&written, &at("<=")), [1]);
        assert_eq!(blamed(&written, &at("0")), [2]);
        assert_eq!(blamed(&written, &at("< b")), [1]);
        assert!(blamed(&written, &at("fn")).is_empty());
    }
}
