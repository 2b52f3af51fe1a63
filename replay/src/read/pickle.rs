//! Pickles of plain values. Nothing in one is run: what would make an object makes
//! [`Node::Opaque`].
//!
//! `serde-pickle` has to copy what a pickle names twice, and takes the shared lists of stack frames
//! in PyTorch's snapshots for recursion. Here a value is a number into one list, so sharing costs
//! nothing, and a file of n bytes makes at most n values whatever it says.

use std::io::{self, Read};

/// A value: its place among the pickle's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(u32);

#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool,
    Int(i128),
    Float,
    Bytes,
    String(String),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Set,
    Dict(Vec<(Id, Id)>),
    /// Something whose making would run code, or an int of more than 128 bits.
    Opaque,
}

/// Why a file is no pickle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The file cannot be read, or ends too early.
    #[error("byte {at}: {source}")]
    Io {
        /// How far the reader came.
        at: u64,
        /// Why.
        source: io::Error,
    },
    /// A code that no pickle of protocol 2 to 5 holds, or of something that is not for files.
    #[error("byte {at}: {code:#04x} is no code of a pickle of protocol 2 to 5")]
    Code {
        /// Where it stands.
        at: u64,
        /// The code.
        code: u8,
    },
    /// A code that finds something other than it needs before it.
    #[error("byte {at}: {what}")]
    Order {
        /// Where it stands.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

impl Pickle {
    pub(super) fn read(reader: impl Read) -> Result<Self, PickleError> {
        Machine {
            reader,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        }
        .run()
    }

    pub(super) fn root(&self) -> &Node {
        self.node(self.root)
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id.0 as usize).unwrap_or(&Node::Opaque)
    }

    /// What `dict` says of `key`. Dicts of interest have a dozen keys; the last of two wins.
    pub(super) fn get(&self, dict: &[(Id, Id)], key: &str) -> Option<&Node> {
        let found = dict.iter().rev().find(|(name, _)| match self.node(*name) {
            Node::String(name) => name == key,
            _ => false,
        });
        found.map(|(_, value)| self.node(*value))
    }
}

/// The machine that a pickle is a program of: a stack of values, marks in it, and a memo.
struct Machine<R> {
    reader: R,
    at: u64,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl<R: Read> Machine<R> {
    fn run(mut self) -> Result<Pickle, PickleError> {
        if self.bytes::<1>()? != [0x80] {
            return Err(PickleError::Order {
                at: 0,
                what: "it does not start as protocol 2 to 5 do",
            });
        }
        self.bytes::<1>()?;
        loop {
            let at = self.at;
            let [code] = self.bytes::<1>()?;
            match code {
                b'.' => {
                    let root = self.pop()?;
                    if !self.marks.is_empty() {
                        return Err(self.wrong("it ends with a mark open"));
                    }
                    return Ok(Pickle { nodes: self.nodes, root });
                }
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.marked()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'N' => self.push(Node::None)?,
                0x88 | 0x89 => self.push(Node::Bool)?,
                b'J' => {
                    let value = i32::from_le_bytes(self.bytes()?);
                    self.push(Node::Int(value.into()))?;
                }
                b'K' => {
                    let [value] = self.bytes()?;
                    self.push(Node::Int(value.into()))?;
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.bytes()?);
                    self.push(Node::Int(value.into()))?;
                }
                0x8a => {
                    let [length] = self.bytes()?;
                    self.long(length.into())?;
                }
                0x8b => {
                    let length = u32::from_le_bytes(self.bytes()?);
                    self.long(length.into())?;
                }
                b'G' => {
                    self.bytes::<8>()?;
                    self.push(Node::Float)?;
                }
                0x8c | b'X' | 0x8d => {
                    let length = self.length(code == 0x8c, code == 0x8d)?;
                    let text = self.run_of(length)?;
                    // Python's own strings can hold halves of surrogate pairs, which are not UTF-8.
                    let text = String::from_utf8_lossy(&text).into_owned();
                    self.push(Node::String(text))?;
                }
                b'C' | b'B' | 0x8e | 0x96 => {
                    let length = self.length(code == b'C', matches!(code, 0x8e | 0x96))?;
                    self.run_of(length)?;
                    self.push(Node::Bytes)?;
                }
                b']' => self.push(Node::List(Vec::new()))?,
                b')' => self.push(Node::Tuple(Vec::new()))?,
                b'}' => self.push(Node::Dict(Vec::new()))?,
                0x8f => self.push(Node::Set)?,
                b'l' => {
                    let items = self.marked()?;
                    self.push(Node::List(items))?;
                }
                b't' => {
                    let items = self.marked()?;
                    self.push(Node::Tuple(items))?;
                }
                0x91 => {
                    self.marked()?;
                    self.push(Node::Set)?;
                }
                b'd' => {
                    let items = self.marked()?;
                    self.push(Node::Dict(Vec::new()))?;
                    self.set(&items)?;
                }
                0x85..=0x87 => {
                    let count = usize::from(code - 0x84);
                    let from = self.floor(count)?;
                    let items = self.stack.split_off(from);
                    self.push(Node::Tuple(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(&[item])?;
                }
                b'e' => {
                    let items = self.marked()?;
                    self.append(&items)?;
                }
                b's' => {
                    let from = self.floor(2)?;
                    let items = self.stack.split_off(from);
                    self.set(&items)?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.set(&items)?;
                }
                0x90 => drop(self.marked()?),
                0x94 => self.remember(self.memo.len())?,
                b'q' => {
                    let [place] = self.bytes()?;
                    self.remember(place.into())?;
                }
                b'r' => {
                    let place = u32::from_le_bytes(self.bytes()?);
                    self.remember(place as usize)?;
                }
                b'h' => {
                    let [place] = self.bytes()?;
                    self.recall(place.into())?;
                }
                b'j' => {
                    let place = u32::from_le_bytes(self.bytes()?);
                    self.recall(place as usize)?;
                }
                // A frame says how much to read at once.
                0x95 => drop(self.bytes::<8>()?),
                // From here on: objects, by what would make them.
                b'c' => {
                    self.line()?;
                    self.line()?;
                    self.push(Node::Opaque)?;
                }
                0x93 | b'R' | 0x81 => self.opaque(2)?,
                0x92 => self.opaque(3)?,
                b'Q' => self.opaque(1)?,
                // The state of an object; the object stays.
                b'b' => drop(self.pop()?),
                b'o' => {
                    self.marked()?;
                    self.push(Node::Opaque)?;
                }
                _ => return Err(PickleError::Code { at, code }),
            }
        }
    }

    fn wrong(&self, what: &'static str) -> PickleError {
        PickleError::Order { at: self.at, what }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut bytes = [0; N];
        let read = self.reader.read_exact(&mut bytes);
        read.map_err(|source| PickleError::Io { at: self.at, source })?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// The next `length` bytes: no more memory than the file has, whatever it claims.
    fn run_of(&mut self, length: u64) -> Result<Vec<u8>, PickleError> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(length).read_to_end(&mut bytes);
        read.map_err(|source| PickleError::Io { at: self.at, source })?;
        self.at += bytes.len() as u64;
        if (bytes.len() as u64) < length {
            let source = io::ErrorKind::UnexpectedEof.into();
            return Err(PickleError::Io { at: self.at, source });
        }
        Ok(bytes)
    }

    fn length(&mut self, short: bool, long: bool) -> Result<u64, PickleError> {
        Ok(match (short, long) {
            (true, _) => self.bytes::<1>()?[0].into(),
            (_, true) => u64::from_le_bytes(self.bytes()?),
            _ => u32::from_le_bytes(self.bytes()?).into(),
        })
    }

    fn line(&mut self) -> Result<(), PickleError> {
        while self.bytes::<1>()? != [b'\n'] {}
        Ok(())
    }

    /// An int in two's complement, the low byte first.
    fn long(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.run_of(length)?;
        if bytes.len() > 16 {
            return self.push(Node::Opaque);
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 16];
        whole[..bytes.len()].copy_from_slice(&bytes);
        self.push(Node::Int(i128::from_le_bytes(whole)))
    }

    fn push(&mut self, node: Node) -> Result<(), PickleError> {
        let number = u32::try_from(self.nodes.len());
        let id = Id(number.map_err(|_| self.wrong("more than 2^32 values"))?);
        self.nodes.push(node);
        self.stack.push(id);
        Ok(())
    }

    /// The place in the stack `count` values from its end, above the last mark.
    fn floor(&self, count: usize) -> Result<usize, PickleError> {
        let least = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= least => Ok(from),
            _ => Err(self.wrong("the stack has too few values")),
        }
    }

    fn top(&self) -> Result<Id, PickleError> {
        let from = self.floor(1)?;
        Ok(self.stack[from])
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// The values since the last mark, which goes with them.
    fn marked(&mut self) -> Result<Vec<Id>, PickleError> {
        match self.marks.pop() {
            // Nothing takes values from under a mark: `floor` sees to it.
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => Err(self.wrong("no mark is there")),
        }
    }

    fn opaque(&mut self, values: usize) -> Result<(), PickleError> {
        let from = self.floor(values)?;
        self.stack.truncate(from);
        self.push(Node::Opaque)
    }

    fn append(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let top = self.top()?;
        match &mut self.nodes[top.0 as usize] {
            Node::List(list) => list.extend_from_slice(items),
            Node::Opaque => {}
            _ => return Err(self.wrong("items for something that is no list")),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let top = self.top()?;
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.wrong("a key without a value"));
        };
        match &mut self.nodes[top.0 as usize] {
            Node::Dict(dict) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            Node::Opaque => {}
            _ => return Err(self.wrong("keys for something that is no dict")),
        }
        Ok(())
    }

    fn remember(&mut self, place: usize) -> Result<(), PickleError> {
        let top = self.top()?;
        // What writes pickles counts places up; one far away would only take memory.
        if place > self.memo.len().saturating_add(1 << 16) {
            return Err(self.wrong("a place of the memo far above those before it"));
        }
        if place >= self.memo.len() {
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = Some(top);
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), PickleError> {
        match self.memo.get(place).copied().flatten() {
            Some(id) => self.stack.push(id),
            None => return Err(self.wrong("a place of the memo with nothing in it")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
        Pickle::read(bytes)
    }

    #[test]
    fn shared_and_recursive_values_are_read_once() {
        // a = [7]; a.append(a); {'x': a, 'y': a}
        let pickle =
            read(b"\x80\x04}\x94(\x8c\x01x\x94]\x94(K\x07h\x02e\x8c\x01y\x94h\x02u.").unwrap();
        let Node::Dict(dict) = pickle.root() else { panic!("{:?}", pickle.root()) };
        assert_eq!(dict[0].1, dict[1].1);
        let Some(Node::List(list)) = pickle.get(dict, "y") else { panic!("no list") };
        assert!(matches!(pickle.node(list[0]), Node::Int(7)));
        assert_eq!(list[1], dict[0].1);
    }

    #[test]
    fn ints_of_each_width() {
        for (bytes, value) in [
            (&b"K\xff"[..], 255),
            (b"M\xff\xff", 65_535),
            (b"J\xff\xff\xff\xff", -1),
            (b"\x8a\x00", 0),
            (b"\x8a\x06\x00\x00\x00\x00\x9e\x7f", 0x7f9e_0000_0000),
            (b"\x8a\x01\x80", -128),
            (b"\x8b\x08\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f", i64::MAX.into()),
        ] {
            let pickle = read(&[b"\x80\x04", bytes, b"."].concat()).unwrap();
            assert!(matches!(pickle.root(), Node::Int(found) if *found == value), "{pickle:?}");
        }
        let wide = [&b"\x80\x04\x8a\x11"[..], &[1; 17], b"."].concat();
        assert!(matches!(read(&wide).unwrap().root(), Node::Opaque));
    }

    #[test]
    fn what_would_run_code_is_opaque() {
        // os.system('false'), in the old and the new spelling.
        for bytes in [
            &b"\x80\x02cos\nsystem\nX\x05\x00\x00\x00false\x85R."[..],
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x05false\x85R.",
        ] {
            assert!(matches!(read(bytes).unwrap().root(), Node::Opaque));
        }
    }

    #[test]
    fn a_claim_costs_no_memory() {
        let text = read(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fshort").unwrap_err();
        assert!(matches!(text, PickleError::Io { at: 16, .. }), "{text:?}");
        let memo = read(b"\x80\x04Nr\xff\xff\xff\xff.").unwrap_err();
        assert!(matches!(memo, PickleError::Order { .. }), "{memo:?}");
    }

    #[test]
    fn broken_programs_are_refused() {
        for bytes in [
            &b""[..],
            b"\x80",
            b"\x80\x04",
            b"\x80\x04.",
            b"\x80\x04(N.(",
            b"\x80\x04a.",
            b"\x80\x04Na.",
            b"\x80\x04NNa.",
            b"\x80\x04}(Nu.",
            b"\x80\x04(.",
            b"\x80\x04N(\x85.",
            b"\x80\x04h\x00.",
            b"\x80\x04e.",
            b"\x80\x04\x94.",
            b"\x80\x04\xff.",
            b"I1\n.",
            b"\x80\x04R.",
            b"\x80\x05\x97.",
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
