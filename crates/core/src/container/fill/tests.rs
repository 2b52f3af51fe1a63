use super::*;

fn steps(pattern: &[u8], address: u64, bytes: usize) -> Vec<Step> {
    super::steps(pattern, address, bytes).collect()
}

/// Carries the steps out on the host.
fn carry_out(pattern: &[u8], elements: usize) -> Vec<u8> {
    let mut memory = vec![0xEE; pattern.len() * elements];
    for step in steps(pattern, 0, memory.len()) {
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
    assert_eq!(steps(&[0; 24], 0, 240).len(), 1);
    assert_eq!(
        steps(&[0; 3], 0, 9)[0],
        Step { offset: 0, stride: 1, word: FillWord::U8(0), count: 9 }
    );
    assert_eq!(steps(&[1, 2, 1, 2], 0, 8)[0].word.bytes(), 2);
    assert_eq!(steps(&1.5_f64.to_ne_bytes(), 0, 80).len(), 2);
    assert_eq!(steps(&[7; 4], 2, 8)[0].word.bytes(), 1);
    assert_eq!(steps(&[1, 2, 3, 4], 6, 8).len(), 2);
    assert_eq!(steps(&[1, 2, 3, 4], 1, 8).len(), 4);
}
