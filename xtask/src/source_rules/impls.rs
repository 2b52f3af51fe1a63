//! The `impl` blocks of a file, and what they define.

use super::source::{Kind, Source, Token};
use std::ops::Range;

/// An `impl` block outside of tests.
pub(super) struct Impl<'a> {
    /// The path of the type that it is for, without generics.
    pub(super) of: Vec<&'a str>,
    pub(super) is_inherent: bool,
    /// How many modules of the file it lies in.
    pub(super) depth: usize,
    /// The indices of the tokens between its braces.
    pub(super) body: Range<usize>,
}

/// The blocks of a file for types that have a name. Those of `macro_rules!` have none.
pub(super) fn impls(source: &Source) -> Vec<Impl<'_>> {
    let tokens = &source.tokens;
    let starts = (0..tokens.len()).filter(|&at| is_item(tokens, at) && !tokens[at].in_tests);
    starts.filter_map(|at| read(source, at)).collect()
}

/// The functions and constants that stand directly in a block.
pub(super) fn defined<'a>(source: &'a Source, block: &Impl<'a>) -> Vec<&'a str> {
    let (mut nested, mut names) = (0_usize, Vec::new());
    for at in block.body.clone() {
        match &source.tokens[at].kind {
            Kind::Open(_) => nested += 1,
            Kind::Close(_) => nested -= 1,
            // `const fn` gives `fn`, too, which nothing calls.
            Kind::Ident(word) if nested == 0 && (word == "fn" || word == "const") => {
                names.extend(ident(source, at + 1));
            }
            _ => {}
        }
    }
    names
}

pub(super) fn ident(source: &Source, at: usize) -> Option<&str> {
    match &source.tokens.get(at)?.kind {
        Kind::Ident(word) => Some(word),
        _ => None,
    }
}

/// Whether an `impl` block starts here. The word stands in types, too.
fn is_item(tokens: &[Token], at: usize) -> bool {
    tokens[at].is("impl")
        && at.checked_sub(1).is_none_or(|before| {
            let before = &tokens[before];
            matches!(before.kind, Kind::Punct(';') | Kind::Open('{') | Kind::Close('}' | ']'))
                || before.is("unsafe")
        })
}

fn read(source: &Source, start: usize) -> Option<Impl<'_>> {
    let tokens = &source.tokens;
    let (mut angles, mut brackets) = (0_usize, 0_usize);
    let (mut of, mut is_inherent, mut before_where) = (None, true, true);
    for at in start + 1..tokens.len() {
        let outside = angles == 0 && brackets == 0;
        match &tokens[at].kind {
            Kind::Open('{') if outside => {
                let body = at + 1..at + 1 + source.group(at).len();
                let of = path(source, of?)?;
                return Some(Impl { of, is_inherent, depth: tokens[start].depth, body });
            }
            Kind::Punct('<') => angles += 1,
            // `->` closes nothing.
            Kind::Punct('>') if !tokens[at - 1].is_punct('-') => angles = angles.checked_sub(1)?,
            Kind::Open(_) => brackets += 1,
            Kind::Close(_) => brackets = brackets.checked_sub(1)?,
            // Of a lifetime.
            Kind::Ident(_) if tokens[at - 1].is_punct('\'') => {}
            Kind::Ident(word) if outside && before_where => match word.as_str() {
                "where" => before_where = false,
                "for" => (of, is_inherent) = (None, false),
                "mut" | "const" => {}
                _ => of = of.or(Some(at)),
            },
            _ => {}
        }
    }
    None
}

/// The path that starts at `at`, up to its generics. None for what has no name: `dyn Trait`.
fn path(source: &Source, mut at: usize) -> Option<Vec<&str>> {
    let colon = |at: usize| source.tokens.get(at).is_some_and(|token| token.is_punct(':'));
    let mut segments = vec![ident(source, at)?];
    while colon(at + 1) && colon(at + 2) {
        at += 3;
        segments.extend(ident(source, at));
    }
    (!matches!(segments[0], "dyn" | "fn")).then_some(segments)
}
