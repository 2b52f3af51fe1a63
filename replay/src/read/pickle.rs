//! Pickles, as far as they are plain values. Nothing in one is run: of what a pickle would import,
//! call or build there is an [`Value::Object`] and no more.
//!
//! Values lie in one list and name each other by their place there, so what a pickle shares is
//! shared here, however often, and neither reading nor dropping one recurses: time and memory have a
//! bound in the file's length. (`serde-pickle` copies what is shared, takes the stack for what is
//! nested, and 4 KiB for each mark; and it calls a dict recursive that is shared and holds memoized
//! strings, which PyTorch's frames are.)

use std::collections::HashMap;

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

/// A value, whose bytes are those of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i128),
    /// An int of more bits than any address has.
    LongInt,
    Float,
    Bytes,
    String(&'a str),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set,
    Dict(Vec<(Id, Id)>),
    /// Something that would have to be made by code.
    Object,
}

/// Where a pickle ends to be one, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) offset: usize,
    pub(super) reason: &'static str,
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
    /// The bytes behind its end.
    rest: &'a [u8],
}

impl<'a> Pickle<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Broken> {
        let mut machine = Machine {
            bytes,
            at: 0,
            // Values that need no place of their own.
            values: vec![Value::None, Value::Bool(false), Value::Bool(true), Value::Object],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        match machine.run() {
            Ok(root) => {
                let rest = bytes.get(machine.at..).unwrap_or_default();
                Ok(Self { values: machine.values, root, rest })
            }
            Err(reason) => Err(Broken { offset: machine.at.min(bytes.len()), reason }),
        }
    }

    /// The bytes of the file behind the pickle.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn root(&self) -> &Value<'a> {
        self.get(self.root)
    }

    pub(super) fn get(&self, id: Id) -> &Value<'a> {
        // Every id was given out for a value, and values are never removed.
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }

    /// What a dict has under a key: the last of several, as in Python.
    pub(super) fn look_up(&self, dict: &[(Id, Id)], key: &str) -> Option<&Value<'a>> {
        self.id(dict, key).map(|value| self.get(value))
    }

    /// The place of what a dict has under a key.
    pub(super) fn id(&self, dict: &[(Id, Id)], key: &str) -> Option<Id> {
        let found = dict.iter().rev().find(|(name, _)| *self.get(*name) == Value::String(key));
        found.map(|(_, value)| *value)
    }
}

const NONE: Id = Id(0);
const FALSE: Id = Id(1);
const TRUE: Id = Id(2);
const OBJECT: Id = Id(3);

const CUT: &str = "the file ends within it";
const NEGATIVE: &str = "it has a value of a negative length";
const EMPTY: &str = "it takes a value where there is none";

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// How long the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

type Step<T> = Result<T, &'static str>;

impl<'a> Machine<'a> {
    fn run(&mut self) -> Step<Id> {
        loop {
            match self.byte()? {
                b'.' => return self.pop(),
                // The protocol and the frames do not matter.
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => {
                    if self.pop().is_err() {
                        self.pop_mark()?;
                    }
                }
                b'1' => drop(self.pop_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'p' => {
                    let key = self.decimal()?;
                    self.memoize(key)?;
                }
                b'q' => {
                    let key = self.unsigned(1)?;
                    self.memoize(key)?;
                }
                b'r' => {
                    let key = self.unsigned(4)?;
                    self.memoize(key)?;
                }
                0x94 => self.memoize(self.memo.len() as u64)?,
                b'g' => {
                    let key = self.decimal()?;
                    self.recall(key)?;
                }
                b'h' => {
                    let key = self.unsigned(1)?;
                    self.recall(key)?;
                }
                b'j' => {
                    let key = self.unsigned(4)?;
                    self.recall(key)?;
                }
                b'N' => self.stack.push(NONE),
                0x88 => self.stack.push(TRUE),
                0x89 => self.stack.push(FALSE),
                code => self.value(code)?,
            }
        }
    }

    /// The codes that make a value of bytes in the file.
    fn value(&mut self, code: u8) -> Step<()> {
        let value = match code {
            b'I' | b'L' => match self.line()? {
                digits @ (b"00" | b"01") if code == b'I' => Value::Bool(digits == b"01"),
                line => text_int(line)?,
            },
            b'F' => {
                self.line()?;
                Value::Float
            }
            b'G' => {
                self.take(8)?;
                Value::Float
            }
            b'J' => Value::Int(i128::from(self.unsigned(4)? as u32 as i32)),
            b'K' => Value::Int(self.unsigned(1)?.into()),
            b'M' => Value::Int(self.unsigned(2)?.into()),
            0x8a => int(self.prefixed(1)?),
            0x8b => int(self.signed_prefixed()?),
            b'C' => self.skipped(1)?,
            b'B' => self.skipped(4)?,
            0x8e | 0x96 => self.skipped(8)?,
            b'U' => string_or_bytes(self.prefixed(1)?),
            b'T' => string_or_bytes(self.signed_prefixed()?),
            b'S' => string_or_bytes(unquoted(self.line()?)),
            b'V' => string_or_bytes(self.line()?),
            0x8c => string(self.prefixed(1)?)?,
            b'X' => string(self.prefixed(4)?)?,
            0x8d => string(self.prefixed(8)?)?,
            code => return self.collect(code),
        };
        self.push(value)
    }

    /// The codes that make a value of values, or add to one.
    fn collect(&mut self, code: u8) -> Step<()> {
        match code {
            b']' => self.push(Value::List(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Value::Tuple(items))
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))
            }
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items))
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(&items)
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => {
                let items = self.pop_mark()?;
                self.push(Value::Dict(Vec::new()))?;
                self.set(&items)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set(&items)
            }
            0x8f => self.push(Value::Set),
            0x91 => {
                self.pop_mark()?;
                self.push(Value::Set)
            }
            0x90 => drop_ok(self.pop_mark()),
            code => self.object(code),
        }
    }

    /// The codes that would import, call or build something, and do not.
    fn object(&mut self, code: u8) -> Step<()> {
        let replaced = match code {
            b'c' => {
                self.line()?;
                self.line()?;
                0
            }
            b'P' => {
                self.line()?;
                0
            }
            b'Q' => 1,
            0x93 | b'R' | 0x81 => 2,
            0x92 => 3,
            b'i' => {
                self.line()?;
                self.line()?;
                self.pop_mark()?;
                0
            }
            b'o' => {
                self.pop_mark()?;
                0
            }
            // The state of an object, which stays what it is.
            b'b' => return drop_ok(self.pop()),
            _ => return Err("it has a code of no protocol that is known here"),
        };
        for _ in 0..replaced {
            self.pop()?;
        }
        self.stack.push(OBJECT);
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Step<()> {
        let id = u32::try_from(self.values.len()).map_err(|_| "it has more than 2^32 values")?;
        self.values.push(value);
        self.stack.push(Id(id));
        Ok(())
    }

    fn top(&self) -> Step<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack.get(floor..).and_then(<[Id]>::last).copied().ok_or(EMPTY)
    }

    fn pop(&mut self) -> Step<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("it goes back to a mark where there is none")?;
        // Never longer than the stack: `pop` stops at the mark.
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn memoize(&mut self, key: u64) -> Step<()> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Step<()> {
        let id = *self.memo.get(&key).ok_or("it recalls a value that it did not keep")?;
        self.stack.push(id);
        Ok(())
    }

    fn append(&mut self, items: &[Id]) -> Step<()> {
        let list = self.top()?;
        match self.values.get_mut(list.0 as usize) {
            Some(Value::List(list)) => list.extend_from_slice(items),
            Some(Value::Object) => {}
            _ => return Err("it appends to what is no list"),
        }
        Ok(())
    }

    /// Keys and values in turn.
    fn set(&mut self, items: &[Id]) -> Step<()> {
        let dict = self.top()?;
        match self.values.get_mut(dict.0 as usize) {
            Some(Value::Dict(dict)) => {
                dict.extend(items.chunks_exact(2).map(|two| (two[0], two[1])));
            }
            Some(Value::Object) => {}
            _ => return Err("it sets a key of what is no dict"),
        }
        Ok(())
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(count).ok_or(CUT)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT)?;
        self.at = end;
        Ok(taken)
    }

    /// An unsigned number of 1 to 8 bytes, the lowest first.
    fn unsigned(&mut self, count: usize) -> Step<u64> {
        let bytes = self.take(count)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Bytes behind their number, which has `count` bytes itself.
    fn prefixed(&mut self, count: usize) -> Step<&'a [u8]> {
        let length = self.unsigned(count)?;
        self.take(usize::try_from(length).map_err(|_| CUT)?)
    }

    /// Bytes behind their number, of 4 bytes and a sign.
    fn signed_prefixed(&mut self) -> Step<&'a [u8]> {
        let length = self.unsigned(4)? as u32 as i32;
        self.take(usize::try_from(length).map_err(|_| NEGATIVE)?)
    }

    fn skipped(&mut self, count: usize) -> Step<Value<'a>> {
        self.prefixed(count)?;
        Ok(Value::Bytes)
    }

    fn line(&mut self) -> Step<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or(CUT)?;
        self.at += length + 1;
        let line = &rest[..length];
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn decimal(&mut self) -> Step<u64> {
        let line = self.line()?;
        let number = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
        number.ok_or("it has a place in the memo that is no number")
    }
}

fn drop_ok<T>(done: Step<T>) -> Step<()> {
    done.map(drop)
}

fn string(bytes: &[u8]) -> Step<Value<'_>> {
    std::str::from_utf8(bytes).map(Value::String).map_err(|_| "it has a string that is not UTF-8")
}

/// Python 2's strings, which may be either.
fn string_or_bytes(bytes: &[u8]) -> Value<'_> {
    std::str::from_utf8(bytes).map_or(Value::Bytes, Value::String)
}

fn unquoted(line: &[u8]) -> &[u8] {
    match line {
        [open @ (b'"' | b'\''), inner @ .., close] if open == close => inner,
        _ => line,
    }
}

/// A number in two's complement, the lowest byte first.
fn int<'a>(bytes: &[u8]) -> Value<'a> {
    if bytes.len() > size_of::<i128>() {
        return Value::LongInt;
    }
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let rest = if negative { -1_i128 } else { 0 };
    Value::Int(bytes.iter().rev().fold(rest, |number, byte| number << 8 | i128::from(*byte)))
}

fn text_int<'a>(line: &[u8]) -> Step<Value<'a>> {
    let digits = line.strip_suffix(b"L").unwrap_or(line);
    let bare = digits.strip_prefix(b"-").unwrap_or(digits);
    if bare.is_empty() || !bare.iter().all(u8::is_ascii_digit) {
        return Err("it has an int that is no number");
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    Ok(number.map_or(Value::LongInt, Value::Int))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(bytes: &[u8]) -> &'static str {
        Pickle::read(bytes).unwrap_err().reason
    }

    #[test]
    fn ints_of_every_form() {
        for (bytes, number) in [
            (&b"K\xff."[..], 255),
            (b"M\xff\xff.", 65535),
            (b"J\xff\xff\xff\xff.", -1),
            (b"\x8a\x00.", 0),
            (b"\x8a\x02\x00\xff.", -256),
            (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.", u64::MAX.into()),
            (b"I-12\n.", -12),
            (b"L12L\n.", 12),
        ] {
            assert_eq!(*Pickle::read(bytes).unwrap().root(), Value::Int(number), "{bytes:?}");
        }
        let long = [&b"\x8b\x11\x00\x00\x00"[..], &[1; 17], b"."].concat();
        assert_eq!(*Pickle::read(&long).unwrap().root(), Value::LongInt);
    }

    #[test]
    fn bools_of_every_form() {
        for (bytes, value) in
            [(&b"\x88."[..], true), (b"\x89.", false), (b"I01\n.", true), (b"I00\n.", false)]
        {
            assert_eq!(*Pickle::read(bytes).unwrap().root(), Value::Bool(value), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_shared_is_one_value() {
        // x = ["a"]; [x, x]
        let pickle = Pickle::read(b"\x80\x04](]\x94\x8c\x01aah\x00e.").unwrap();
        let Value::List(items) = pickle.root() else { panic!("{pickle:?}") };
        assert_eq!(items[0], items[1]);
    }

    #[test]
    fn what_is_broken_says_how() {
        assert_eq!(reason(b""), CUT);
        assert_eq!(reason(b"]"), CUT);
        assert_eq!(reason(b"\x8b\xfb\xff\xff\xffabcdefgh."), NEGATIVE);
        assert_eq!(reason(b"T\xfb\xff\xff\xffabcdefgh."), NEGATIVE);
        assert_eq!(reason(b"\x8b\x09\x00\x00\x00abcdefg."), CUT);
        assert_eq!(reason(b"."), EMPTY);
        assert_eq!(reason(b"N(a."), EMPTY);
        assert_eq!(reason(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc."), CUT);
        assert_eq!(reason(b"t."), "it goes back to a mark where there is none");
        assert_eq!(reason(b"h\x07."), "it recalls a value that it did not keep");
        assert_eq!(reason(b"KaKaa."), "it appends to what is no list");
        assert_eq!(reason(b")Kaa."), "it appends to what is no list");
        assert_eq!(reason(b"\x7f."), "it has a code of no protocol that is known here");
        assert_eq!(Pickle::read(b"NN\x7f").unwrap_err().offset, 3);
    }
}
