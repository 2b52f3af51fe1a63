//! Reads from a PTX text what a launch needs. That is the entry, the sizes of its parameters, and its
//! limits.
//!
//! This is no compiler. A driver may still refuse a text that this module takes, but every driver
//! refuses a text that this module refuses. The module leaves out what it does not understand of an
//! entry, and a launch is not compared with that. The time is linear in the text.

mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use tokens::{Token, Tokens};

/// What a launch needs of an entry, of a text or of a cubin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtxEntry {
    /// The bytes of each parameter. `None` if one is declared in a way that this module does not know.
    pub parameters: Option<Vec<usize>>,
    /// Bytes of static shared memory that the entry's own body names. More may come by the functions
    /// that it calls.
    pub static_shared: u64,
    /// The threads of a block at most, by `.maxntid`.
    pub most_threads: Option<u64>,
    /// The threads of a block in x, y and z, by `.reqntid`.
    pub exact_threads: Option<[u64; 3]>,
}

impl PtxEntry {
    /// An entry of which nothing is known.
    pub const fn unknown() -> Self {
        Self { parameters: None, static_shared: 0, most_threads: None, exact_threads: None }
    }
}

/// Why a text has no such entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtxError {
    /// The text does not begin as PTX does, but with this. A driver takes it for another format.
    NotPtx(String),
    /// No compiler of PTX takes the text.
    Malformed(&'static str),
    /// The text has these entries, in its own order, at most as many as make a sentence.
    NoEntry(Vec<String>),
}

/// Characters that a message shows of a text that is none.
const SHOWN: usize = 24;

/// The number of names that make a sentence.
pub(super) const KNOWN: usize = 8;

/// The entries of an image, for a reader who looked for another.
pub(super) fn write_known(
    f: &mut fmt::Formatter<'_>,
    image: &str,
    known: &[String],
) -> fmt::Result {
    match known.len() {
        0 => write!(f, "{image} has no entry"),
        1..KNOWN => write!(f, "{image} has the entries {}", known.join(", ")),
        _ => write!(f, "{image} has {}, ... for entries", known.join(", ")),
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPtx(start) if start.is_empty() => {
                f.write_str("a PTX text begins with .version, and this one is empty")
            }
            Self::NotPtx(start) if start.starts_with('\u{feff}') => f.write_str(
                "a PTX text begins with .version, and this one with a byte order mark: save it without",
            ),
            Self::NotPtx(start) => {
                write!(f, "a PTX text begins with .version, and this one with {start:?}")
            }
            Self::Malformed(why) => write!(f, "the PTX text {why}"),
            Self::NoEntry(known) => write_known(f, "the PTX text", known),
        }
    }
}

/// Reads the entry of a text.
pub fn read(text: &str, entry: &str) -> Result<PtxEntry, PtxError> {
    let mut reader = Reader::new(text);
    reader.header()?;
    let (mut known, mut declared, mut defined) = (Vec::new(), None, None);
    while let Some(token) = reader.next()? {
        match token {
            Token::Directive("entry") if reader.depth == 0 => {
                let Some(Token::Word(name)) = reader.peek() else { continue };
                reader.next()?;
                if name == entry {
                    let (found, has_body) = reader.entry()?;
                    *(if has_body { &mut defined } else { &mut declared }) = Some(found);
                } else if !known.contains(&name) && known.len() < KNOWN {
                    known.push(name);
                }
            }
            Token::Directive("shared") if reader.depth == 0 => reader.shared_variables()?,
            _ => {}
        }
    }
    if reader.depth > 0 {
        return Err(ENDS_INSIDE);
    }
    let no_entry = || PtxError::NoEntry(known.into_iter().map(String::from).collect());
    defined.or(declared).ok_or_else(no_entry)
}

const ENDS_INSIDE: PtxError = PtxError::Malformed("ends inside of a block or a list");
const ENDS_IN_COMMENT: PtxError = PtxError::Malformed("ends inside of a comment");
const NO_NUMBER: PtxError = PtxError::Malformed("has no number after .version");

struct Reader<'t> {
    tokens: Tokens<'t>,
    /// Braces that are open.
    depth: usize,
    /// The last two tokens, the last one first.
    last: [Option<Token<'t>>; 2],
    /// Static shared variables that were declared, and their bytes.
    shared: BTreeMap<&'t str, u64>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        let tokens = Tokens::new(text);
        Self { tokens, depth: 0, last: [None; 2], shared: BTreeMap::new() }
    }

    /// Reads the next token, and counts braces.
    fn next(&mut self) -> Result<Option<Token<'t>>, PtxError> {
        let Some(token) = self.tokens.next() else { return Ok(None) };
        match token {
            Token::Symbol(b'{') => self.depth += 1,
            Token::Symbol(b'}') => {
                let unopened = PtxError::Malformed("closes a block that it did not open");
                self.depth = self.depth.checked_sub(1).ok_or(unopened)?;
            }
            Token::Unended => return Err(ENDS_IN_COMMENT),
            _ => {}
        }
        self.last = [Some(token), self.last[0]];
        Ok(Some(token))
    }

    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.clone().next()
    }

    /// Passes the next token if it is this symbol.
    fn pass(&mut self, symbol: u8) -> Result<bool, PtxError> {
        let is_next = self.peek() == Some(Token::Symbol(symbol));
        if is_next {
            self.next()?;
        }
        Ok(is_next)
    }

    /// The next token if it is a number.
    fn number(&mut self) -> Result<Option<u64>, PtxError> {
        let Some(Token::Number(digits)) = self.peek() else { return Ok(None) };
        self.next()?;
        Ok(number(digits))
    }

    /// `.version 6.4 .target sm_50`, before all else.
    fn header(&mut self) -> Result<(), PtxError> {
        let start = self.tokens.clone().rest().chars().take(SHOWN).collect();
        match self.next()? {
            Some(Token::Directive("version")) => {}
            Some(Token::Directive(word)) if word.starts_with("version") => return Err(NO_NUMBER),
            _ => return Err(PtxError::NotPtx(start)),
        }
        if !matches!(self.next()?, Some(Token::Number(_))) {
            return Err(NO_NUMBER);
        }
        match self.next()? {
            Some(Token::Directive("target")) => Ok(()),
            _ => Err(PtxError::Malformed("has no .target after .version")),
        }
    }

    /// Reads what follows the name of an entry. Whether there is a body.
    fn entry(&mut self) -> Result<(PtxEntry, bool), PtxError> {
        let mut found = PtxEntry { parameters: Some(Vec::new()), ..PtxEntry::default() };
        if self.pass(b'(')? {
            found.parameters = self.parameters()?;
        }
        loop {
            match self.next()?.ok_or(ENDS_INSIDE)? {
                Token::Symbol(b'{') => break,
                Token::Symbol(b';') => return Ok((found, false)),
                // Ends in a semicolon of its own.
                Token::Directive("pragma") => {
                    while self.next()?.ok_or(ENDS_INSIDE)? != Token::Symbol(b';') {}
                }
                Token::Directive("maxntid") => {
                    let most = self.extent()?.map(|extent| extent.into_iter().product());
                    found.most_threads = most;
                }
                Token::Directive("reqntid") => found.exact_threads = self.extent()?,
                _ => {}
            }
        }
        let inside = self.depth;
        while self.depth >= inside {
            match self.next()?.ok_or(ENDS_INSIDE)? {
                Token::Directive("shared") => self.shared_variables()?,
                Token::Word(name) => {
                    // Counted once, however often it is named.
                    let bytes = self.shared.remove(name).unwrap_or(0);
                    found.static_shared = found.static_shared.saturating_add(bytes);
                }
                _ => {}
            }
        }
        Ok((found, true))
    }

    /// Up to three numbers between commas, where those that are missing are 1. `None` if they are not plain, or larger
    /// than a launch's.
    fn extent(&mut self) -> Result<Option<[u64; 3]>, PtxError> {
        let mut extent = [1; 3];
        for side in &mut extent {
            match self.number()? {
                Some(number @ 1..=0xffff) => *side = number,
                _ => return Ok(None),
            }
            if !self.pass(b',')? {
                break;
            }
        }
        Ok(Some(extent))
    }

    /// The bytes of each parameter, to the end of the list.
    fn parameters(&mut self) -> Result<Option<Vec<usize>>, PtxError> {
        let (mut sizes, mut declaration, mut open) = (Vec::new(), Vec::new(), 1);
        loop {
            let token = self.next()?.ok_or(ENDS_INSIDE)?;
            match token {
                Token::Symbol(b'(') => open += 1,
                Token::Symbol(b')') => open -= 1,
                _ => {}
            }
            if open == 0 {
                break;
            }
            if open == 1 && token == Token::Symbol(b',') {
                sizes.push(parameter_bytes(&declaration));
                declaration.clear();
            } else {
                declaration.push(token);
            }
        }
        if !(sizes.is_empty() && declaration.is_empty()) {
            sizes.push(parameter_bytes(&declaration));
        }
        Ok(sizes.into_iter().collect())
    }

    /// Reads a declaration of static shared variables, if `.shared` begins one. It may also stand in an
    /// instruction, in an attribute, or in a variable of another text.
    fn shared_variables(&mut self) -> Result<(), PtxError> {
        match self.last[1] {
            Some(Token::Word(_)) => return Ok(()),
            Some(Token::Directive(word)) if !matches!(word, "visible" | "weak" | "common") => {
                return Ok(());
            }
            _ => {}
        }
        let (mut element, mut width) = (None, 1);
        while let Some(Token::Directive(word)) = self.peek() {
            self.next()?;
            match (word, vector_lanes(word), type_bytes(word)) {
                ("align", ..) => drop(self.number()?),
                (_, Some(count), _) => width = count,
                (_, _, Some(bytes)) => element = Some(bytes as u64),
                _ => return Ok(()),
            }
        }
        let Some(element) = element else { return Ok(()) };
        while let Some(Token::Word(name)) = self.peek() {
            self.next()?;
            let mut bytes = Some(element * width);
            while self.pass(b'[')? {
                let length = self.number()?;
                bytes = bytes.zip(length).and_then(|(bytes, length)| bytes.checked_mul(length));
                self.pass(b']')?;
            }
            if let Some(bytes) = bytes {
                self.shared.insert(name, bytes);
            }
            if !self.pass(b',')? {
                break;
            }
        }
        Ok(())
    }
}

/// `.param .align 8 .b8 name[40]`, `.param .u64 .ptr .global .align 8 name`.
fn parameter_bytes(declaration: &[Token<'_>]) -> Option<usize> {
    let mut tokens = declaration.iter().copied();
    let mut element = None;
    if tokens.next()? != Token::Directive("param") {
        return None;
    }
    loop {
        match tokens.next()? {
            Token::Directive("align") => {
                let Token::Number(digits) = tokens.next()? else { return None };
                number(digits).filter(|bytes| bytes.is_power_of_two())?;
            }
            Token::Directive("ptr" | "global" | "const" | "local" | "shared")
                if element.is_some() => {}
            Token::Directive(word) if element.is_none() => element = Some(type_bytes(word)?),
            Token::Word(_) => break,
            _ => return None,
        }
    }
    let element = element?;
    let rest: Vec<_> = tokens.take(4).collect();
    match rest[..] {
        [] => Some(element),
        [Token::Symbol(b'['), Token::Number(length), Token::Symbol(b']')] => {
            let length = number(length).filter(|length| *length > 0)?;
            element.checked_mul(usize::try_from(length).ok()?)
        }
        _ => None,
    }
}

fn vector_lanes(word: &str) -> Option<u64> {
    match word {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    }
}

/// The bytes of a type that a variable can have.
fn type_bytes(word: &str) -> Option<usize> {
    match word {
        "b8" | "u8" | "s8" => Some(1),
        "b16" | "u16" | "s16" | "f16" | "bf16" => Some(2),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Some(4),
        "b64" | "u64" | "s64" | "f64" => Some(8),
        "b128" => Some(16),
        _ => None,
    }
}

/// A constant: `48`, `0x30`, `060`, `0b110000`, each perhaps with a `U` at its end.
fn number(digits: &str) -> Option<u64> {
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, base).ok()
}

#[cfg(test)]
mod tests;
