//! The words of a PTX text.

/// A word of a PTX text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A directive such as `.entry` or `.u64`, without its dot. `ld.param.u64` has two.
    Directive(&'t str),
    /// A name, or an instruction.
    Word(&'t str),
    Number(&'t str),
    /// A text in quotes.
    Quoted,
    Symbol(u8),
    /// The text ended inside of a comment.
    Unended,
}

/// Reads the words of a text in turn, without comments and blanks.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// The next bytes as long as `belongs` holds, which it does for bytes of ASCII alone.
    fn take(&mut self, belongs: impl Fn(u8) -> bool) -> &'t str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.bytes().position(|byte| !belongs(byte)).unwrap_or(rest.len());
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }

    /// Passes blanks and comments. `false` if a comment has no end.
    fn skip_blanks(&mut self) -> bool {
        loop {
            self.take(|byte| byte.is_ascii_whitespace() || byte == b'\x0b');
            match (self.byte(0), self.byte(1)) {
                (Some(b'/'), Some(b'/')) => {
                    let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
                    let line = rest.iter().position(|byte| *byte == b'\n');
                    self.at += line.unwrap_or(rest.len());
                }
                (Some(b'/'), Some(b'*')) => {
                    let rest = self.text.get(self.at + 2..).unwrap_or_default();
                    let Some(end) = rest.find("*/") else {
                        self.at = self.text.len();
                        return false;
                    };
                    self.at += 2 + end + 2;
                }
                _ => return true,
            }
        }
    }

    /// What is left of the text, from the next word on.
    pub(super) fn rest(&mut self) -> &'t str {
        self.skip_blanks();
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Passes a text in quotes. The text ends with its line at the latest, so a quote that is not
    /// closed costs one line.
    fn skip_quoted(&mut self) {
        self.at += 1;
        while let Some(byte) = self.byte(0).filter(|byte| *byte != b'\n') {
            self.at += 1;
            match byte {
                b'"' => return,
                b'\\' if self.byte(0).is_some_and(|next| next != b'\n') => self.at += 1,
                _ => {}
            }
        }
    }
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

impl<'t> Iterator for Tokens<'t> {
    type Item = Token<'t>;

    fn next(&mut self) -> Option<Token<'t>> {
        if !self.skip_blanks() {
            return Some(Token::Unended);
        }
        let first = self.byte(0)?;
        Some(match first {
            b'"' => {
                self.skip_quoted();
                Token::Quoted
            }
            b'.' if self.byte(1).is_some_and(is_of_word) => {
                self.at += 1;
                Token::Directive(self.take(is_of_word))
            }
            b'0'..=b'9' => {
                let start = self.at;
                self.take(is_of_word);
                // 6.4 is one number.
                while self.byte(0) == Some(b'.')
                    && self.byte(1).is_some_and(|byte| byte.is_ascii_digit())
                {
                    self.at += 1;
                    self.take(is_of_word);
                }
                Token::Number(self.text.get(start..self.at).unwrap_or_default())
            }
            b'%' | b'_' | b'$' | b'A'..=b'Z' | b'a'..=b'z' => {
                let start = self.at;
                self.at += 1;
                self.take(is_of_word);
                Token::Word(self.text.get(start..self.at).unwrap_or_default())
            }
            symbol => {
                self.at += 1;
                Token::Symbol(symbol)
            }
        })
    }
}
