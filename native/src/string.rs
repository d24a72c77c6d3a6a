//! Reads the content of strings, with escapes replaced.
//!
//! Bytes beyond ASCII are valid only in strings, so they are checked to be UTF-8 only here. In events in
//! Western languages, few strings have such bytes.

use crate::record::{digit, Record};

/// Number of bytes that are examined at a time.
const STEP: usize = 16;

/// Appends the content of a string to `out`, and returns the position past its closing quote.
///
/// `at` is the position after the opening quote.
#[inline(always)]
pub fn read(record: Record, mut at: usize, out: &mut Vec<u8>) -> Option<usize> {
    let begin = out.len();
    let mut is_ascii = true;
    loop {
        // Sixteen bytes are copied before it is known how many of them belong to the string: one move of
        // fixed size is faster than finding the end first and copying only those bytes.
        while let Some(word) = record.array::<STEP>(at) {
            let plain = plain_bytes(word, &mut is_ascii);
            out.extend_from_slice(word);
            at += plain;
            if plain < STEP {
                out.truncate(out.len() - (STEP - plain));
                break;
            }
        }
        match record.byte(at) {
            b'"' => break,
            b'\\' => at = read_escape(record, at + 1, out)?,
            byte if byte < 0x20 => return None,
            // These are the last bytes of a record.
            byte => {
                is_ascii &= byte.is_ascii();
                out.push(byte);
                at += 1;
            }
        }
    }
    // Escapes were replaced by whole characters, so invalid bytes around them remain invalid.
    if !is_ascii {
        std::str::from_utf8(out.get(begin..)?).ok()?;
    }
    Some(at + 1)
}

/// Returns the position past a string's closing quote; `at` is the one after the opening quote.
#[inline(always)]
pub fn skip(record: Record, mut at: usize) -> Option<usize> {
    let begin = at;
    let mut is_ascii = true;
    loop {
        while let Some(word) = record.array::<STEP>(at) {
            let plain = plain_bytes(word, &mut is_ascii);
            at += plain;
            if plain < STEP {
                break;
            }
        }
        match record.byte(at) {
            b'"' => break,
            b'\\' => match record.byte(at + 1) {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                // Half of a surrogate pair is accepted here, because the string is not decoded.
                b'u' => {
                    code_unit(record, at + 2)?;
                    at += 6;
                }
                _ => return None,
            },
            byte if byte < 0x20 => return None,
            byte => {
                is_ascii &= byte.is_ascii();
                at += 1;
            }
        }
    }
    if !is_ascii {
        std::str::from_utf8(record.slice(begin, at)?).ok()?;
    }
    Some(at + 1)
}

/// Returns how many bytes come before the first quote, backslash or control character; 16 if all do.
///
/// `is_ascii` becomes false if any byte is not ASCII, even one after that character.
#[inline(always)]
fn plain_bytes(bytes: &[u8; STEP], is_ascii: &mut bool) -> usize {
    let bytes = u128::from_le_bytes(*bytes);
    let (low, high) = (bytes as u64, (bytes >> 64) as u64);
    *is_ascii &= (low | high) & HIGHS == 0;
    // 64 zeros are eight bytes.
    let plain = specials(low).trailing_zeros() as usize / 8;
    if plain < 8 {
        plain
    } else {
        8 + specials(high).trailing_zeros() as usize / 8
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES * 0x80;

/// Returns a word whose lowest bit is in the first quote, backslash or control character; 0 without any.
#[inline(always)]
fn specials(word: u64) -> u64 {
    // Each subtraction sets the high bit of a byte that is smaller than the subtrahend. A borrow can also set
    // the bit of a later byte, so only the first one counts.
    let is_control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = word ^ (ONES * b'"' as u64);
    let is_quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = word ^ (ONES * b'\\' as u64);
    let is_backslash = backslash.wrapping_sub(ONES) & !backslash;
    (is_control | is_quote | is_backslash) & HIGHS
}

/// Appends the character that an escape denotes; `at` is the position after the backslash.
fn read_escape(record: Record, at: usize, out: &mut Vec<u8>) -> Option<usize> {
    let byte = match record.byte(at) {
        byte @ (b'"' | b'\\' | b'/') => byte,
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => {
            let mut end = at + 5;
            let mut code = code_unit(record, at + 1)?;
            if (0xD800..0xDC00).contains(&code) && record.byte(end) == b'\\' && record.byte(end + 1) == b'u' {
                let low = code_unit(record, end + 2)?;
                if !(0xDC00..0xE000).contains(&low) {
                    return None;
                }
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                end += 6;
            }
            // None for half of a pair, which has no UTF-8.
            let character = char::from_u32(code)?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(end);
        }
        _ => return None,
    };
    out.push(byte);
    Some(at + 1)
}

/// Reads four hexadecimal digits.
fn code_unit(record: Record, at: usize) -> Option<u32> {
    record.array::<4>(at)?.iter().try_fold(0, |code, &byte| {
        let value = match byte {
            b'0'..=b'9' => digit(byte),
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        Some(code << 4 | u32::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = b"before".to_vec();
        let end = read(Record::new(text), 0, &mut out)?;
        assert_eq!(skip(Record::new(text), 0), Some(end));
        assert_eq!(end, text.len());
        Some(out.split_off(6))
    }

    #[test]
    fn every_byte_at_every_place_of_a_word() {
        for before in 0..20 {
            for byte in 0..=255 {
                let plain = vec![b'a'; before];
                let text = [&plain[..], &[byte], b"b\""].concat();
                let expected = match byte {
                    b'"' | b'\\' | 0..=0x1F | 0x80.. => None,
                    _ => Some([&plain[..], &[byte], b"b"].concat()),
                };
                let mut out = vec![];
                let end = read(Record::new(&text), 0, &mut out);
                match byte {
                    b'"' => assert_eq!((end, out), (Some(before + 1), plain)),
                    b'\\' => assert_eq!(out.last(), Some(&8), "an escaped b"),
                    _ => assert_eq!(end.map(|_| out), expected, "{byte}"),
                }
            }
        }
    }

    #[test]
    fn escapes_are_replaced() {
        assert_eq!(content(br#"\"\\\/\b\f\n\r\t""#).unwrap(), b"\"\\/\x08\x0c\n\r\t");
        assert_eq!(content(br#"\u00e9\u00E9 \ud83d\ude00\u0000""#).unwrap(), "éé 😀\0".as_bytes());
        assert_eq!(
            content(br#"a long text \u20ac, and more of it""#).unwrap(),
            "a long text €, and more of it".as_bytes()
        );
    }

    #[test]
    fn what_is_not_text_is_unusual() {
        let halves =
            [&br#"\ud83d""#[..], br#"\ude00""#, br#"\ud83d\ud83d""#, br#"\ud83dx""#, br#"\ud83d\n""#];
        for text in halves {
            assert_eq!(read(Record::new(text), 0, &mut vec![]), None);
            assert_eq!(skip(Record::new(text), 0), Some(text.len()));
        }
        for text in [
            &b""[..],
            b"a",
            b"\\",
            br"\u",
            br"\u12",
            br#"\u123""#,
            br#"\x41""#,
            br#"\u12g4""#,
            b"a\nb\"",
            b"a\0\"",
        ] {
            assert_eq!(read(Record::new(text), 0, &mut vec![]), None);
            assert_eq!(skip(Record::new(text), 0), None);
        }
    }
}
