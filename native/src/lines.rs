//! Finds the ends of lines.

const NEWLINES: u64 = u64::from_le_bytes([b'\n'; 8]);
const LOWS: u64 = u64::from_le_bytes([0x7F; 8]);

/// Number of bytes that are examined at a time. A line of an event takes several such steps.
const STEP: usize = 64;

/// Writes the positions of all newlines and returns their number.
///
/// Positions for which there is no room are only counted, so that the caller knows how much it needs.
pub fn newlines(data: &[u8], positions: &mut [i64]) -> usize {
    let mut count = 0;
    let mut push = |position: usize| {
        if let Some(slot) = positions.get_mut(count) {
            *slot = position as i64;
        }
        count += 1;
    };
    let mut steps = data.chunks_exact(STEP);
    let mut begin = 0;
    for step in &mut steps {
        // This has no branch, so the compiler makes a few instructions for many bytes.
        if step.iter().fold(false, |any, &byte| any | (byte == b'\n')) {
            for (index, word) in step.chunks_exact(8).enumerate() {
                let mut flags = flags(word);
                while flags != 0 {
                    push(begin + index * 8 + flags.trailing_zeros() as usize / 8);
                    flags &= flags - 1;
                }
            }
        }
        begin += STEP;
    }
    for (index, &byte) in steps.remainder().iter().enumerate() {
        if byte == b'\n' {
            push(begin + index);
        }
    }
    count
}

/// Returns a number in which the highest bit of each byte that is a newline is set.
fn flags(word: &[u8]) -> u64 {
    let word = word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)) ^ NEWLINES;
    // The sum carries into a byte's highest bit, but no further, unless the byte's other bits are 0.
    !(((word & LOWS) + LOWS) | word | LOWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_newline_is_there() {
        // 0x0B and 0x8A differ from a newline by one bit, and a newline may follow another.
        let octets = [b'\n', 0x0B, b'\n', b'\n', 0x8A, 0, 0xFF, 0x0A, b'a'];
        for len in 0..300 {
            for every in [1, 3, 7, 50] {
                let data: Vec<u8> =
                    (0..len).map(|i| if i % every == 0 { octets[i / every % 9] } else { b'x' }).collect();
                let expected: Vec<i64> = (0..len).filter(|&i| data[i] == b'\n').map(|i| i as i64).collect();
                let mut positions = vec![0; len];
                let count = newlines(&data, &mut positions);
                assert_eq!(positions[..count], expected);
                let mut few = vec![0; count / 2];
                assert_eq!(newlines(&data, &mut few), count);
                assert_eq!(few, expected[..count / 2]);
            }
        }
    }
}
