//! Filling device memory with a value of any plain type.

use super::device_vec::DeviceVec;
use super::view::DeviceSliceMut;
use crate::backend::{FillWord, Wanted};
use crate::error::Result;
use bytemuck::Pod;

impl<T: Pod> DeviceVec<T> {
    /// Overwrites all elements with `value`, in home's order. Nothing waits on the host.
    ///
    /// A value of 1, 2 or 4 bytes, or one that repeats such a word (all zeros, say), is one driver
    /// call; others are one for each of their words.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.as_mut_slice().fill(value)
    }
}

impl<T: Pod> DeviceSliceMut<'_, T> {
    /// Overwrites all elements with `value`. See [`DeviceVec::fill`].
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn fill(&mut self, value: T) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let home = self.home();
        self.debts().pay(home, &self.byte_range(), true)?;
        for step in steps(bytemuck::bytes_of(&value), self.size_in_bytes()) {
            // SAFETY: the steps stay inside the view, which is borrowed exclusively and lives until
            // home's later free; all use elsewhere has been paid.
            unsafe {
                home.device().driver().fill(
                    self.as_device_ptr() + step.offset as u64,
                    step.stride,
                    step.word,
                    step.count,
                    home.raw(),
                )
            }
            .wanted(|| format!("filling {} bytes", self.size_in_bytes()))?;
        }
        Ok(())
    }
}

/// One call: a word, written at an offset and at every stride after it.
#[derive(Debug, PartialEq)]
struct Step {
    offset: usize,
    stride: usize,
    word: FillWord,
    count: usize,
}

/// The calls that fill `bytes` bytes with a pattern.
fn steps(pattern: &[u8], bytes: usize) -> Vec<Step> {
    let width = match pattern.len() {
        length if length % 4 == 0 => 4,
        length if length % 2 == 0 => 2,
        _ => 1,
    };
    // The shortest of the words that the whole pattern repeats, if it repeats one.
    let whole = [1, 2, 4]
        .into_iter()
        .find(|&word| word <= width && pattern.chunks(word).all(|chunk| chunk == &pattern[..word]));
    if let Some(width) = whole {
        let word = word(&pattern[..width]);
        return vec![Step { offset: 0, stride: width, word, count: bytes / width }];
    }
    let count = bytes / pattern.len();
    let words = pattern.chunks(width).enumerate();
    words
        .map(|(index, chunk)| Step {
            offset: index * width,
            stride: pattern.len(),
            word: word(chunk),
            count,
        })
        .collect()
}

fn word(bytes: &[u8]) -> FillWord {
    match *bytes {
        [a, b, c, d] => FillWord::U32(u32::from_ne_bytes([a, b, c, d])),
        [a, b] => FillWord::U16(u16::from_ne_bytes([a, b])),
        [a] => FillWord::U8(a),
        _ => FillWord::U8(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries the steps out on the host.
    fn carry_out(pattern: &[u8], elements: usize) -> Vec<u8> {
        let mut memory = vec![0xEE; pattern.len() * elements];
        for step in steps(pattern, memory.len()) {
            for index in 0..step.count {
                let at = step.offset + index * step.stride;
                let bytes = match step.word {
                    FillWord::U8(value) => value.to_ne_bytes().to_vec(),
                    FillWord::U16(value) => value.to_ne_bytes().to_vec(),
                    FillWord::U32(value) => value.to_ne_bytes().to_vec(),
                };
                memory[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        memory
    }

    #[test]
    fn every_pattern_is_repeated_exactly() {
        for length in 1..=40 {
            let pattern: Vec<u8> = (1..=length).collect();
            for elements in [1, 2, 7] {
                assert_eq!(carry_out(&pattern, elements), pattern.repeat(elements), "{length}");
            }
        }
    }

    #[test]
    fn what_repeats_a_word_is_one_call() {
        assert_eq!(steps(&[0; 24], 240).len(), 1);
        assert_eq!(
            steps(&[0; 3], 9)[0],
            Step { offset: 0, stride: 1, word: FillWord::U8(0), count: 9 }
        );
        assert_eq!(steps(&[1, 2, 1, 2], 8)[0].word.bytes(), 2);
        assert_eq!(steps(&1.5_f64.to_ne_bytes(), 80).len(), 2);
    }
}
