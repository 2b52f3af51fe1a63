//! Text, written a machine word at a time, since `write!` and loops over digits are too
//! slow for the rows of a busy program.

/// The bytes that [`TextBuffer::row`] reserves. They hold more than twelve fields of the largest
/// values, each with the rest of the word or array that is stored for it.
const ROW: usize = 384;

/// Text that waits to be written out. It is initialised to its end, so that a field is stored with the bytes
/// after it in its array, which the next field overwrites.
pub(super) struct TextBuffer {
    bytes: Vec<u8>,
    length: usize,
}

impl TextBuffer {
    /// With an initial capacity of `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes + ROW], length: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        self.reserve(text.len());
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    /// Appends the row that `write` writes.
    #[inline]
    pub(super) fn row(&mut self, write: impl FnOnce(&mut RowWriter<'_>)) {
        self.reserve(ROW);
        let Some(room) = self.bytes[self.length..].first_chunk_mut() else { return };
        let mut row = RowWriter { room, at: 0 };
        write(&mut row);
        self.length += row.at;
    }

    #[inline]
    fn reserve(&mut self, more: usize) {
        if self.bytes.len() - self.length < more {
            self.bytes.resize(2 * self.bytes.len() + more, 0);
        }
    }
}

/// Writes the fields of a row, or a [`ShortText`].
pub(super) struct RowWriter<'a> {
    room: &'a mut [u8; ROW],
    at: usize,
}

/// A short text in an array, which is copied whole, so the compiler knows the length of the copy.
#[derive(Clone, Copy)]
pub(super) struct ShortText<const N: usize> {
    text: [u8; N],
    length: usize,
}

impl<const N: usize> ShortText<N> {
    /// The text must fit.
    pub(super) const fn new(text: &[u8]) -> Self {
        let mut short = Self { text: [0; N], length: text.len() };
        short.text.split_at_mut(text.len()).0.copy_from_slice(text);
        short
    }

    /// The text that `write` writes, cut off where it does not fit.
    pub(super) fn of(write: impl FnOnce(&mut RowWriter<'_>)) -> Self {
        let mut room = [0; ROW];
        let mut row = RowWriter { room: &mut room, at: 0 };
        write(&mut row);
        let length = row.at.min(N);
        Self::new(&room[..length])
    }
}

/// The text of a number, which the next row often has too.
pub(super) struct CachedText<const N: usize> {
    number: Option<u64>,
    text: ShortText<N>,
}

impl<const N: usize> CachedText<N> {
    pub(super) const fn new() -> Self {
        Self { number: None, text: ShortText::new(b"") }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ONES * b'0' as u64;

/// The eight digits of a number below 100 million, the first in the lowest byte. They are computed in
/// parallel, by multiplications that divide the parts of a word and do not carry into each other.
#[inline]
fn decimal_digits(value: u64) -> u64 {
    debug_assert!(value < 100_000_000);
    // Two numbers of four digits, then four of two, then eight of one.
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = ((fours - 100 * hundreds) << 16) + hundreds;
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    ((twos - 10 * tens) << 8) + tens
}

/// The eight hexadecimal digits of 32 bits, the first in the lowest byte.
#[inline]
fn hexadecimal_digits(value: u32) -> u64 {
    let mut digits = u64::from(value);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    digits.swap_bytes()
}

#[inline]
fn hexadecimal_text(digits: u64) -> u64 {
    let letters = ((digits + 6 * ONES) >> 4) & ONES;
    digits + ZEROS + letters * u64::from(b'a' - b'0' - 10)
}

impl RowWriter<'_> {
    /// Stores a word, and advances by `length` bytes.
    #[inline]
    fn word(&mut self, word: u64, length: usize) {
        if let Some(place) = self.room.get_mut(self.at..self.at + 8) {
            place.copy_from_slice(&word.to_le_bytes());
            self.at += length;
        }
    }

    /// Stores eight digits without leading zeros.
    #[inline]
    fn trimmed(&mut self, digits: u64, text: u64) {
        // The set bit keeps the last digit.
        let zeros = (digits | 1 << 56).trailing_zeros() & !7;
        self.word(text >> zeros, 8 - zeros as usize / 8);
    }

    #[inline]
    pub(super) fn byte(&mut self, byte: u8) {
        if let Some(place) = self.room.get_mut(self.at) {
            *place = byte;
            self.at += 1;
        }
    }

    #[inline]
    pub(super) fn text<const N: usize>(&mut self, text: &ShortText<N>) {
        if let Some(place) = self.room.get_mut(self.at..self.at + N) {
            place.copy_from_slice(&text.text);
            self.at += text.length;
        }
    }

    /// The text that `write` writes for the number, or a copy of the last one if the number is the same.
    #[inline]
    pub(super) fn cached<const N: usize>(
        &mut self,
        last: &mut CachedText<N>,
        number: u64,
        write: impl FnOnce(&mut Self),
    ) {
        if last.number == Some(number) {
            return self.text(&last.text);
        }
        let from = self.at;
        write(self);
        if let Some(text) = self.room[from..].first_chunk() {
            last.text = ShortText { text: *text, length: self.at - from };
            last.number = Some(number);
        }
    }

    #[inline]
    pub(super) fn decimal(&mut self, value: u64) {
        if value < 100_000_000 {
            let digits = decimal_digits(value);
            return self.trimmed(digits, digits + ZEROS);
        }
        self.long_decimal(value);
    }

    #[inline(never)]
    fn long_decimal(&mut self, value: u64) {
        self.decimal(value / 100_000_000);
        self.digits::<8>(value % 100_000_000);
    }

    /// A number of at most `N` digits, eight at most, with leading zeros.
    #[inline]
    pub(super) fn digits<const N: usize>(&mut self, value: u64) {
        self.word((decimal_digits(value) + ZEROS) >> (64 - 8 * N), N);
    }

    #[inline]
    pub(super) fn hexadecimal(&mut self, value: u64) {
        let (high, low) = ((value >> 32) as u32, hexadecimal_digits(value as u32));
        if high == 0 {
            return self.trimmed(low, hexadecimal_text(low));
        }
        let high = hexadecimal_digits(high);
        self.trimmed(high, hexadecimal_text(high));
        self.word(hexadecimal_text(low), 8);
    }

    /// Nanoseconds, in seconds with nine decimals.
    #[inline]
    pub(super) fn seconds(&mut self, nanoseconds: u64) {
        self.decimal(nanoseconds / 1_000_000_000);
        let fraction = nanoseconds % 1_000_000_000;
        let first = b'0' + (fraction / 100_000_000) as u8;
        self.word(u64::from_le_bytes([b'.', first, 0, 0, 0, 0, 0, 0]), 2);
        self.digits::<8>(fraction % 100_000_000);
    }
}

#[cfg(test)]
mod tests;
