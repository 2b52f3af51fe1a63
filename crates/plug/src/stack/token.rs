//! The text as words and marks.

use super::error::{Problem, shown};
use super::value::ends_word;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Characters that are neither white space nor a mark.
    Word(&'a str),
    /// A text in quotes, without them.
    Quoted(Cow<'a, str>),
    Mark(char),
    End,
}

impl Token<'_> {
    /// The words of an error for it, where something else was expected.
    pub(super) fn found(&self) -> String {
        match self {
            Self::End => "the text ends here".into(),
            token => format!("{token} stands here"),
        }
    }
}

/// The name of the token in errors.
impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(&shown(word)),
            Self::Quoted(text) => write!(f, "the text {}", shown(text)),
            Self::Mark(mark) => write!(f, "`{mark}`"),
            Self::End => f.write_str("the end of the text"),
        }
    }
}

/// Reads tokens one after the other.
#[derive(Clone)]
pub(super) struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and where it stands, without taking it.
    pub(super) fn peek(&self) -> Result<(Token<'a>, Range<usize>), Problem> {
        self.clone().next()
    }

    /// Takes the next token.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, Range<usize>), Problem> {
        let rest = &self.text[self.at..];
        let start = self.at + (rest.len() - rest.trim_start().len());
        let rest = &self.text[start..];
        let (token, length) = match rest.chars().next() {
            None => (Token::End, 0),
            Some('"') => quoted(rest, start)?,
            Some(mark) if ends_word(mark) => (Token::Mark(mark), mark.len_utf8()),
            Some(_) => {
                let length = rest.find(ends_word).unwrap_or(rest.len());
                (Token::Word(&rest[..length]), length)
            }
        };
        self.at = start + length;
        Ok((token, start..self.at))
    }

    /// Takes the next token if it is this mark.
    pub(super) fn take(&mut self, mark: char) -> Result<bool, Problem> {
        let mut after = self.clone();
        let is_mark = after.next()?.0 == Token::Mark(mark);
        if is_mark {
            *self = after;
        }
        Ok(is_mark)
    }
}

/// The text in quotes that `rest` begins with, and the bytes that it takes.
fn quoted(rest: &str, start: usize) -> Result<(Token<'_>, usize), Problem> {
    let inside = &rest[1..];
    let mut text = String::new();
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((Token::Quoted(text.into()), at + 2)),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\'))) => text.push(c),
                Some((end, c)) => {
                    let at = start + 1 + at..start + 1 + end + c.len_utf8();
                    let what = "a backslash in quotes stands before a quote or a backslash alone";
                    return Err(Problem::new(at, what, "write two backslashes for one"));
                }
                None => break,
            },
            c => text.push(c),
        }
    }
    let what = "the quote that begins here does not end";
    Err(Problem::new(start..start + 1, what, "end it with a second quote"))
}
