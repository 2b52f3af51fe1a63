//! Rust files as the rules see them: tokens with their lines, without comments.

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;

/// A Rust file of the repository.
pub(crate) struct Source {
    /// From the repository's root, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) lines: usize,
    pub(crate) tokens: Vec<Token>,
}

/// A token and where it stands. Comments are gone; a doc comment is an attribute with a literal.
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: usize,
    /// It lies in a module marked `#[cfg(test)]`.
    pub(crate) in_tests: bool,
    /// How many modules of this file it lies in.
    pub(crate) depth: usize,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Kind {
    Ident(String),
    Punct(char),
    /// As written, with quotes.
    Literal(String),
    Open(char),
    Close(char),
}

impl Token {
    pub(crate) fn is(&self, ident: &str) -> bool {
        matches!(&self.kind, Kind::Ident(name) if name == ident)
    }

    pub(crate) fn is_punct(&self, punct: char) -> bool {
        self.kind == Kind::Punct(punct)
    }
}

/// A path of identifiers, `use` trees unfolded: `use std::{fmt, sync::Arc}` is two.
pub(crate) struct Named<'a> {
    pub(crate) segments: Vec<&'a str>,
    /// The index of the token that the path, or the `use` tree that it is of, begins with.
    pub(crate) start: usize,
    /// The index of the last segment's token.
    pub(crate) end: usize,
    /// The token of the last segment.
    pub(crate) last: &'a Token,
}

/// Every Rust file under `folders` (those that exist), sorted by path.
pub(crate) fn sources(root: &Path, folders: &[&str]) -> Result<Vec<Source>> {
    let mut files = Vec::new();
    for folder in folders.iter().filter(|folder| root.join(folder).is_dir()) {
        collect(root, folder, &mut files)?;
    }
    files.sort();
    let read = |path: String| {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Source::parse(&path, &text)
    };
    files.into_iter().map(read).collect()
}

fn collect(root: &Path, folder: &str, files: &mut Vec<String>) -> Result<()> {
    for entry in root.join(folder).read_dir().with_context(|| folder.to_string())? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else if path.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl Source {
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self> {
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
            let at = error.span().start();
            anyhow!("{path}:{}: no Rust tokens: {error}", at.line)
        })?;
        let mut tokens = Vec::new();
        flatten(stream, false, 0, &mut tokens);
        Ok(Self { path: path.into(), lines: text.lines().count(), tokens })
    }

    /// Every path that the file names, in code, in macros and in `use`.
    pub(crate) fn names(&self) -> Vec<Named<'_>> {
        let mut found = Vec::new();
        for at in 0..self.tokens.len() {
            if matches!(self.tokens[at].kind, Kind::Ident(_)) && !self.continues(at) {
                let before = found.len();
                self.unfold(at, &mut Vec::new(), &mut found);
                found[before..].iter_mut().for_each(|name| name.start = at);
            }
        }
        found
    }

    /// Whether the token at `at` goes on from a path before it, or is a field or method.
    fn continues(&self, at: usize) -> bool {
        let before = |steps: usize| at.checked_sub(steps).map(|at| &self.tokens[at]);
        if before(1).is_some_and(|token| token.is_punct('.')) {
            // `..name` is a range, not a field.
            return !before(2).is_some_and(|token| token.is_punct('.'));
        }
        let colon = |steps| before(steps).is_some_and(|token: &Token| token.is_punct(':'));
        colon(1)
            && colon(2)
            && before(3).is_some_and(|token| match &token.kind {
                // A keyword ends no path: `use ::std::sync` starts one.
                Kind::Ident(name) => !["use", "in", "as", "return", "else", "mut", "dyn", "impl"]
                    .contains(&name.as_str()),
                kind => *kind == Kind::Punct('>'),
            })
    }

    /// Reads the path or `use` tree at `at`; returns the index behind it.
    fn unfold<'a>(
        &'a self,
        mut at: usize,
        prefix: &mut Vec<&'a str>,
        found: &mut Vec<Named<'a>>,
    ) -> usize {
        let length = prefix.len();
        while let Some(token) = self.tokens.get(at) {
            match &token.kind {
                Kind::Ident(name) => prefix.push(name),
                Kind::Punct('*') if !prefix.is_empty() => prefix.push("*"),
                Kind::Open('{') if !prefix.is_empty() => {
                    at = self.unfold_group(at + 1, prefix, found);
                    prefix.truncate(length);
                    return at;
                }
                _ => break,
            }
            let colons = |at: usize| self.tokens.get(at).is_some_and(|token| token.is_punct(':'));
            if colons(at + 1) && colons(at + 2) && self.goes_on(at + 3) {
                at += 3;
                continue;
            }
            found.push(Named { segments: prefix.clone(), start: at, end: at, last: token });
            at += 1;
            break;
        }
        prefix.truncate(length);
        at
    }

    fn goes_on(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| {
            matches!(token.kind, Kind::Ident(_) | Kind::Punct('*') | Kind::Open('{'))
        })
    }

    /// Reads the members of a `use` group; returns the index behind its brace.
    fn unfold_group<'a>(
        &'a self,
        mut at: usize,
        prefix: &mut Vec<&'a str>,
        found: &mut Vec<Named<'a>>,
    ) -> usize {
        while let Some(token) = self.tokens.get(at) {
            at = match token.kind {
                Kind::Close('}') => return at + 1,
                Kind::Ident(_) | Kind::Punct('*') | Kind::Open('{') => {
                    self.unfold(at, prefix, found).max(at + 1)
                }
                _ => at + 1,
            };
        }
        at
    }

    /// The inside of every attribute, as tokens: `cfg ( test )`.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &[Token]> {
        self.tokens.iter().enumerate().filter_map(|(at, token)| {
            if !token.is_punct('#') {
                return None;
            }
            let bang = self.tokens.get(at + 1)?.is_punct('!');
            let open = at + 1 + usize::from(bang);
            (self.tokens.get(open)?.kind == Kind::Open('[')).then(|| self.group(open))
        })
    }

    /// What lies between the bracket at `open` and the one that closes it.
    pub(super) fn group(&self, open: usize) -> &[Token] {
        let inside = &self.tokens[open + 1..];
        let mut nested = 0_usize;
        for (at, token) in inside.iter().enumerate() {
            match token.kind {
                Kind::Open(_) => nested += 1,
                Kind::Close(_) if nested == 0 => return &inside[..at],
                Kind::Close(_) => nested -= 1,
                _ => {}
            }
        }
        inside
    }
}

fn flatten(stream: TokenStream, in_tests: bool, depth: usize, tokens: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut after_cfg_test = false;
    for (at, tree) in trees.iter().enumerate() {
        let span = tree.span();
        let mut push = |kind, line| tokens.push(Token { kind, line, in_tests, depth });
        match tree {
            TokenTree::Ident(ident) => push(Kind::Ident(ident.to_string()), span.start().line),
            TokenTree::Punct(punct) => push(Kind::Punct(punct.as_char()), span.start().line),
            TokenTree::Literal(literal) => {
                push(Kind::Literal(literal.to_string()), span.start().line);
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ('(', ')'),
                    Delimiter::Brace => ('{', '}'),
                    Delimiter::Bracket => ('[', ']'),
                    // Only macros at work make these; a file has none.
                    Delimiter::None => (' ', ' '),
                };
                let module = open == '{' && is_module(&trees[..at]);
                push(Kind::Open(open), span.start().line);
                let inner_tests = in_tests || (module && after_cfg_test);
                flatten(group.stream(), inner_tests, depth + usize::from(module), tokens);
                tokens.push(Token {
                    kind: Kind::Close(close),
                    line: span.end().line,
                    in_tests,
                    depth,
                });
                if open == '[' && is_attribute(&trees[..at]) {
                    after_cfg_test |= is_cfg_test(group.stream());
                } else if open == '{' {
                    after_cfg_test = false;
                }
            }
        }
        if matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ';') {
            after_cfg_test = false;
        }
    }
}

/// `mod name` stands last.
fn is_module(before: &[TokenTree]) -> bool {
    matches!(before, [.., TokenTree::Ident(word), TokenTree::Ident(_)] if word == "mod")
}

/// An outer attribute's `#` stands last.
fn is_attribute(before: &[TokenTree]) -> bool {
    matches!(before.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '#')
}

/// `cfg(test)`, or `cfg(all(..))` with `test` among its members.
fn is_cfg_test(stream: TokenStream) -> bool {
    fn has_test(stream: TokenStream) -> bool {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        trees.split(|tree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',')).any(
            |member| match member {
                [TokenTree::Ident(word)] => word == "test",
                [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
                    has_test(group.stream())
                }
                _ => false,
            },
        )
    }
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    matches!(&trees[..], [TokenTree::Ident(word), TokenTree::Group(group)]
        if word == "cfg" && has_test(group.stream()))
}
