//! The texts of the grammar's errors.

use super::error::{Problem, nearest, shown};
use super::names::{Given, LAYERS, LayerKind, OptionKind, Place};
use super::token::Token;
use super::value::list;
use std::ops::Range;

/// The word for the thing that belongs where a name stands.
fn wanted(adaptor: bool) -> &'static str {
    if adaptor { "adaptor" } else { "resource" }
}

fn names(adaptor: bool) -> String {
    let names = LAYERS.iter().filter(|kind| kind.is_adaptor() == adaptor).map(|kind| kind.name);
    format!("the {}s are {}", wanted(adaptor), list(names, "and"))
}

/// Something else stands where a name was expected.
pub(super) fn not_a_name(adaptor: bool, token: &Token<'_>, at: Range<usize>) -> Problem {
    let wanted = if adaptor { "an adaptor" } else { "a resource" };
    let what = format!("{}, where the name of {wanted} was expected", token.found());
    Problem::new(at, what, names(adaptor))
}

pub(super) fn unknown_name(adaptor: bool, word: &str, at: Range<usize>) -> Problem {
    let what = format!("{} is no {}", shown(word), wanted(adaptor));
    let advice = match nearest(word, LAYERS.iter().map(|kind| kind.name)) {
        Some(near) => format!("did you mean `{near}`? {}", names(adaptor)),
        None => names(adaptor),
    };
    Problem::new(at, what, advice)
}

/// An adaptor stands where a resource was expected, or the reverse.
pub(super) fn wrong_place(kind: &LayerKind, at: Range<usize>) -> Problem {
    let name = kind.name;
    match kind.place {
        Place::Adaptor => Problem::new(
            at,
            format!("the adaptor `{name}` stands where a resource was expected"),
            format!("write it after its upstream and a bar: ... | {name}"),
        ),
        Place::Around => Problem::new(
            at,
            format!("the resource `{name}` stands where an adaptor was expected"),
            format!("write it around what stands before the bar: {name}(...)"),
        ),
        Place::Source => Problem::new(
            at,
            format!("the resource `{name}` stands where an adaptor was expected"),
            format!("write it innermost: `{name}` is over no other resource"),
        ),
    }
}

/// A stack is given to a layer that is to be over one that is there.
pub(super) fn upstream_is_there(kind: &LayerKind, at: Range<usize>) -> Problem {
    let name = kind.name;
    let what = format!("`{name}` is given an upstream, and is to be over a stack that is there");
    Problem::new(at, what, format!("write {name}, and in parentheses its options alone"))
}

/// A stack is given to a layer that takes no upstream in parentheses.
pub(super) fn no_upstream(kind: &LayerKind, upstream: &LayerKind, at: Range<usize>) -> Problem {
    let (name, other) = (kind.name, upstream.name);
    let what = format!("`{name}` is given the upstream `{other}`, and takes none in parentheses");
    let advice = match kind.is_adaptor() {
        true => format!("write the adaptor after its upstream and a bar: {other}... | {name}"),
        false => format!("leave `{other}` out: `{name}` is over no other resource"),
    };
    Problem::new(at, what, advice)
}

pub(super) fn second_upstream(kind: &LayerKind, token: &Token<'_>, at: Range<usize>) -> Problem {
    if let Token::Word(word) = token
        && kind.option(word).is_some()
    {
        return no_place(kind, token, at);
    }
    let what = format!("`{}` has its upstream, and {token} has no name of an option", kind.name);
    Problem::new(at, what, options(kind))
}

pub(super) fn unknown_option(kind: &LayerKind, word: &str, at: Range<usize>) -> Problem {
    let what = format!("`{}` has no option {}", kind.name, shown(word));
    let known = kind.options.iter().flat_map(|option| [Some(option.name), option.short]).flatten();
    let advice = match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`? {}", options(kind)),
        None => options(kind),
    };
    Problem::new(at, what, advice)
}

/// A value without a name is given to a layer that takes none.
pub(super) fn no_place(kind: &LayerKind, token: &Token<'_>, at: Range<usize>) -> Problem {
    let (name, is_all) = (kind.name, kind.by_place().next().is_some());
    let (what, advice) = match token {
        Token::Word(word) if kind.option(word).is_some() => (
            format!("the option `{word}` of `{name}` has no value"),
            format!("write {word}= and a value"),
        ),
        Token::Word(_) | Token::Quoted(_) if is_all => {
            (format!("{token} is one value too many for `{name}`"), options(kind))
        }
        Token::Word(_) | Token::Quoted(_) => {
            (format!("{token} has no name of an option of `{name}`"), options(kind))
        }
        _ => {
            (format!("{}, where an option of `{name}` was expected", token.found()), options(kind))
        }
    };
    Problem::new(at, what, advice)
}

/// The options that `kind` takes.
fn options(kind: &LayerKind) -> String {
    let shown = |option: &OptionKind| {
        let name = option.name;
        let short = option.short.map(|short| format!(" or {short}")).unwrap_or_default();
        let unnamed =
            if option.given == Given::ByName { "" } else { ", the name of which may be left out" };
        format!("{name}{short}{unnamed}")
    };
    let options: Vec<String> = kind.options.iter().map(shown).collect();
    match options.is_empty() {
        true => format!("`{}` has no options", kind.name),
        false => format!("the options of `{}` are {}", kind.name, options.join("; ")),
    }
}

/// The text ends inside of the parenthesis that begins here.
pub(super) fn unclosed(open: Range<usize>) -> Problem {
    Problem::new(open, "the parenthesis that begins here does not end", "end it with a `)`")
}

pub(super) fn not_after_argument(token: &Token<'_>, at: Range<usize>) -> Problem {
    let what = format!("{}, where `,` or `)` was expected", token.found());
    Problem::new(
        at,
        what,
        "separate arguments by commas; write sizes without spaces, as 1GiB, and texts with spaces or marks in quotes",
    )
}

pub(super) fn lacks_value(option: &str, token: &Token<'_>, at: Range<usize>) -> Problem {
    let what = match token {
        Token::Quoted(_) => format!("the value of {option} is empty"),
        _ => format!("{}, where a value of {option} was expected", token.found()),
    };
    Problem::new(at, what, "write a value, in quotes where it has spaces or marks")
}
