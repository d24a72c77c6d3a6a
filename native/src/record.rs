//! The bytes of a record, read by position.
//!
//! Functions that read a token take the position of its first byte and return the one just past it, or `None`
//! if the token is unusual.

/// One record's bytes.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Record { bytes }
    }

    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// Returns a byte, or 0 past the record's end. No token contains a 0, so it ends all of them.
    #[inline(always)]
    pub fn byte(self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Returns the bytes of a range, or `None` if the range is not completely inside the record.
    #[inline(always)]
    pub fn slice(self, begin: usize, end: usize) -> Option<&'a [u8]> {
        self.bytes.get(begin..end)
    }

    /// Returns a fixed number of bytes, with one check of bounds for all of them.
    #[inline(always)]
    pub fn array<const N: usize>(self, at: usize) -> Option<&'a [u8; N]> {
        self.bytes.get(at..)?.get(..N)?.try_into().ok()
    }

    /// Reads a word such as `null`.
    #[inline(always)]
    pub fn word<const N: usize>(self, at: usize, word: &[u8; N]) -> Option<usize> {
        (self.array::<N>(at)? == word).then_some(at + N)
    }

    /// Skips white space. A newline does not count, because it ends records.
    #[inline(always)]
    pub fn skip_space(self, mut at: usize) -> usize {
        while matches!(self.byte(at), b' ' | b'\t' | b'\r') {
            at += 1;
        }
        at
    }
}

/// Returns the value of an ASCII digit; more than 9 for other bytes.
#[inline(always)]
pub fn digit(byte: u8) -> u8 {
    byte.wrapping_sub(b'0')
}
