//! The errors of the text of a stack, with their places.

use crate::error::{Error, ErrorKind};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// Characters of a line that an error shows at most.
const SHOWN: usize = 72;

/// The characters of these before the place.
const SHOWN_BEFORE: usize = 40;

/// Characters of a word that an error repeats at most.
const SHOWN_OF_WORD: usize = 32;

/// The place where the text of a stack is wrong, and the problem. It is the source of the [`Error`] of
/// [`StackText`](crate::mr::StackText).
///
/// [`Display`](fmt::Display) has the column, the problem, the line of the text, and a caret below the place.
/// The [`Error`] shows the same, and what to do about it.
///
/// ```
/// use aquifer::mr::{StackText, StackTextError};
/// use std::error::Error;
///
/// let error = "pool(cuda, maxx=1GiB)".parse::<StackText>().unwrap_err();
/// let wrong = error.source().and_then(|source| source.downcast_ref::<StackTextError>());
/// assert_eq!(wrong.map(StackTextError::column), Some(12));
/// assert_eq!(wrong.map(StackTextError::problem), Some("`pool` has no option \"maxx\""));
/// let lines = "
///     pool(cuda, maxx=1GiB)
///                ^^^^";
/// assert!(error.to_string().contains(lines));
/// assert!(error.advice().unwrap().contains("`max`"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StackTextError {
    column: usize,
    problem: String,
    excerpt: Excerpt,
}

#[derive(Clone, PartialEq, Eq)]
struct Excerpt {
    line: String,
    /// Characters before the carets.
    indent: usize,
    carets: usize,
}

impl StackTextError {
    /// The column of the first character that is wrong, counted in characters of the whole text, lines
    /// included, from 1. It is one more than the text has if something is missing at its end.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The problem, without the place and the text.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for StackTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, problem, excerpt: Excerpt { line, indent, carets } } = self;
        write!(f, "column {column} of a stack's text: {problem}\n    {line}\n    ")?;
        write!(f, "{:indent$}{:^<carets$}", "", "")
    }
}

/// Writes the text of [`Display`](fmt::Display).
impl fmt::Debug for StackTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StackTextError {}

/// A problem at a range of bytes of a text, while the text is read.
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    pub(super) what: String,
    pub(super) advice: Cow<'static, str>,
}

impl Problem {
    pub(super) fn new(
        at: Range<usize>,
        what: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { at, what: what.into(), advice: advice.into() }
    }

    /// The error of the kind, for `text`.
    pub(super) fn into_error(self, text: &str, kind: ErrorKind) -> Error {
        let Self { at, what, advice } = self;
        let wrong = locate(text, at, what);
        // The advice has a line of its own, below the carets.
        Error::new(kind, format!("{wrong}\n   ")).with_advice(advice).with_cause(wrong)
    }
}

/// The place of a range of bytes, of which the start is the end of a character.
pub(super) fn locate(text: &str, at: Range<usize>, problem: String) -> StackTextError {
    let (before, after) = text.split_at_checked(at.start).unwrap_or((text, ""));
    let length = text.get(at).map_or(0, |wrong| wrong.chars().count());
    let column = before.chars().count() + 1;
    let before: Vec<char> = before.chars().rev().take_while(|c| *c != '\n').collect();
    let indent = before.len().min(SHOWN_BEFORE);
    let cut_before = if before.len() > indent { "..." } else { "" };
    let rest = SHOWN - indent;
    let line = after.split('\n').next().unwrap_or_default();
    let cut_after = if line.chars().nth(rest).is_some() { "..." } else { "" };
    let shown = before[..indent].iter().rev().copied().chain(line.chars().take(rest));
    // What a terminal would act on, and tabs, which the carets could not follow.
    let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let carets = length.min(line.chars().count()).clamp(1, rest.max(1));
    let line = format!("{cut_before}{shown}{cut_after}");
    let excerpt = Excerpt { line, indent: indent + cut_before.len(), carets };
    StackTextError { column, problem, excerpt }
}

/// A word of a user as errors repeat it, which is in quotes, shortened, and without control characters.
pub(super) fn shown(word: &str) -> String {
    match word.char_indices().nth(SHOWN_OF_WORD) {
        Some((end, _)) => format!("{:?}...", &word[..end]),
        None => format!("{word:?}"),
    }
}

/// The word of `known` that `word` may have been meant for.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.chars().nth(SHOWN_OF_WORD).is_some() {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let distance = |name: &str| strsim::damerau_levenshtein(&word, &name.to_lowercase());
    let near = |name: &&str| {
        let is_short_form = word.len() > 2 && name.starts_with(&word);
        is_short_form || distance(name) <= name.len().min(word.len()).div_ceil(3)
    };
    known.filter(near).min_by_key(|name| distance(name))
}
