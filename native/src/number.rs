//! Reads numbers exactly. If that takes more than a few steps, a slower parser reads the number, or it is
//! unusual.

use crate::record::{digit, Record};

/// Limits below which floating point numbers represent every integer exactly.
const EXACT_F32: u64 = 1 << 24;
const EXACT_F64: u64 = 1 << 53;

/// Powers of ten that floating point numbers represent exactly.
const POWERS_F32: [f32; 11] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10];
const POWERS_F64: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Number of digits that always fit into 64 bits.
const MAX_DIGITS: usize = 19;

/// Above this, an exponent is practically infinite, so no more of its digits are read.
const MAX_EXPONENT: i64 = 1 << 40;

/// A number by the grammar of JSON.
struct Number {
    negative: bool,
    /// All digits as one integer; meaningless unless `is_whole`.
    mantissa: u64,
    /// The number is the mantissa times ten to this power.
    exponent: i64,
    /// Whether the mantissa has every digit.
    is_whole: bool,
    end: usize,
}

/// Returns the end of a number.
pub fn skip(record: Record, at: usize) -> Option<usize> {
    Some(parse(record, at)?.end)
}

/// Reads an integer without a fraction or an exponent. One that does not fit into 64 bits is unusual.
#[inline(always)]
pub fn integer(record: Record, at: usize) -> Option<(i64, usize)> {
    let negative = record.byte(at) == b'-';
    let begin = at + usize::from(negative);
    let (digits, end) = digits(record, begin, 0);
    let count = end - begin;
    let has_zero_first = record.byte(begin) == b'0' && count > 1;
    if count == 0 || count > MAX_DIGITS || has_zero_first || matches!(record.byte(end), b'.' | b'e' | b'E') {
        return None;
    }
    let value = i128::from(digits);
    Some((i64::try_from(if negative { -value } else { value }).ok()?, end))
}

/// Reads a double, rounded to the nearest. An infinite one is unusual.
#[inline(always)]
pub fn float64(record: Record, at: usize) -> Option<(f64, usize)> {
    let number = parse(record, at)?;
    // A product or quotient of two exact operands is rounded once, and so correctly (Clinger 1990).
    if number.is_whole && number.mantissa <= EXACT_F64 {
        if let Some(&power) = power(&POWERS_F64, number.exponent) {
            let mantissa = number.mantissa as f64;
            let value = if number.exponent < 0 { mantissa / power } else { mantissa * power };
            return Some((if number.negative { -value } else { value }, number.end));
        }
    }
    let value: f64 = text(record, at, number.end)?.parse().ok()?;
    value.is_finite().then_some((value, number.end))
}

/// Reads a float, rounded once from the text and not through a double. An infinite one is unusual.
#[inline(always)]
pub fn float32(record: Record, at: usize) -> Option<(f32, usize)> {
    let number = parse(record, at)?;
    if number.is_whole && number.mantissa <= EXACT_F32 {
        if let Some(&power) = power(&POWERS_F32, number.exponent) {
            let mantissa = number.mantissa as f32;
            let value = if number.exponent < 0 { mantissa / power } else { mantissa * power };
            return Some((if number.negative { -value } else { value }, number.end));
        }
    }
    let value: f32 = text(record, at, number.end)?.parse().ok()?;
    value.is_finite().then_some((value, number.end))
}

/// Reads a decimal as the integer that Arrow stores. One that would have to be rounded is unusual.
#[inline(always)]
pub fn decimal(record: Record, at: usize, precision: u8, scale: u8) -> Option<(i128, usize)> {
    let number = parse(record, at)?;
    let zeros = i64::from(scale) + number.exponent;
    // 19 digits and 18 zeros are less than 2^127.
    if !number.is_whole || !(0..=18).contains(&zeros) {
        return None;
    }
    let value = i128::from(number.mantissa) * 10i128.pow(zeros as u32);
    if value >= 10i128.pow(u32::from(precision)) {
        return None;
    }
    Some((if number.negative { -value } else { value }, number.end))
}

#[inline(always)]
fn power<T>(powers: &[T], exponent: i64) -> Option<&T> {
    powers.get(usize::try_from(exponent.unsigned_abs()).ok()?)
}

/// Returns the text of a number, for the standard library's parsers: their grammar contains JSON's.
fn text(record: Record<'_>, begin: usize, end: usize) -> Option<&str> {
    std::str::from_utf8(record.slice(begin, end)?).ok()
}

#[inline(always)]
fn parse(record: Record, at: usize) -> Option<Number> {
    let negative = record.byte(at) == b'-';
    let begin = at + usize::from(negative);
    let (mut mantissa, mut end) = digits(record, begin, 0);
    let mut count = end - begin;
    if count == 0 || (record.byte(begin) == b'0' && count > 1) {
        return None;
    }
    let mut exponent = 0;
    if record.byte(end) == b'.' {
        let fraction = end + 1;
        (mantissa, end) = digits(record, fraction, mantissa);
        if end == fraction {
            return None;
        }
        count += end - fraction;
        exponent = -((end - fraction) as i64);
    }
    if record.byte(end) | 0x20 == b'e' {
        let sign = record.byte(end + 1);
        let first = end + 1 + usize::from(matches!(sign, b'+' | b'-'));
        let mut power = 0;
        end = first;
        while digit(record.byte(end)) <= 9 {
            if power < MAX_EXPONENT {
                power = power * 10 + i64::from(digit(record.byte(end)));
            }
            end += 1;
        }
        if end == first {
            return None;
        }
        exponent += if sign == b'-' { -power } else { power };
    }
    Some(Number { negative, mantissa, exponent, is_whole: count <= MAX_DIGITS, end })
}

/// Appends digits to a number; wraps around after 19 of them.
#[inline(always)]
fn digits(record: Record, mut at: usize, mut number: u64) -> (u64, usize) {
    loop {
        let value = digit(record.byte(at));
        if value > 9 {
            return (number, at);
        }
        number = number.wrapping_mul(10).wrapping_add(u64::from(value));
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a, T>(text: &'a str, parser: impl Fn(Record<'a>, usize) -> Option<(T, usize)>) -> Option<T> {
        let (value, end) = parser(Record::new(text.as_bytes()), 0)?;
        (end == text.len()).then_some(value)
    }

    #[test]
    fn integers_fit_or_are_unusual() {
        let numbers =
            ["0", "-0", "7", "-12", "999999999999999999", "-9223372036854775808", "9223372036854775807"];
        for text in numbers {
            assert_eq!(read(text, integer), text.parse().ok(), "{text}");
        }
        for text in [
            "",
            "-",
            "01",
            "-01",
            "1.0",
            "1e2",
            "1E2",
            "+1",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551617",
            "x",
            "99999999999999999999",
        ] {
            assert_eq!(read(text, integer), None, "{text}");
        }
    }

    #[test]
    fn floats_are_those_of_the_standard_library() {
        let mut texts: Vec<String> =
            ["0", "-0", "-0.0", "1.1", "123456789012345678", "1234567890123456789012"]
                .map(String::from)
                .to_vec();
        for mantissa in ["1", "16777217", "9007199254740993", "17976931348623157", "0.000001", "3.4028235"] {
            for exponent in (-330..=310).step_by(7) {
                texts.push(format!("-{mantissa}e{exponent}"));
                texts.push(format!("{mantissa}E{exponent:+}"));
            }
        }
        for text in texts {
            let double: f64 = text.parse().unwrap();
            let single: f32 = text.parse().unwrap();
            let expected = double.is_finite().then_some(double.to_bits());
            assert_eq!(read(&text, float64).map(f64::to_bits), expected, "{text}");
            let expected = single.is_finite().then_some(single.to_bits());
            assert_eq!(read(&text, float32).map(f32::to_bits), expected, "{text}");
        }
    }

    #[test]
    fn the_grammar_is_that_of_json() {
        for text in
            ["", "-", "+1", "01", "1.", ".5", "1e", "1e+", "NaN", "Infinity", "1_0", "0x1", "1.5.5", "--1"]
        {
            assert_eq!(read(text, float64), None, "{text}");
        }
        let huge = format!("1e{}", "9".repeat(10_000));
        assert_eq!(read(&huge, float64), None);
        assert_eq!(read(&format!("1e-{}", "9".repeat(10_000)), float64), Some(0.0));
        assert_eq!(skip(Record::new(huge.as_bytes()), 0), Some(huge.len()));
    }

    #[test]
    fn decimals_are_exact_or_unusual() {
        let of_10_2 = |text| read(text, |record, at| decimal(record, at, 10, 2));
        assert_eq!(of_10_2("1.25"), Some(125));
        assert_eq!(of_10_2("-1.5"), Some(-150));
        assert_eq!(of_10_2("125e-2"), Some(125));
        assert_eq!(of_10_2("99999999.99"), Some(9_999_999_999));
        for text in
            ["1.255", "100000000", "1e99999999999999999999", "0e-9999999999", "12345678901234567890e-19"]
        {
            assert_eq!(of_10_2(text), None, "{text}");
        }
        let widest = read("9999999999999999999e18", |record, at| decimal(record, at, 38, 0));
        assert_eq!(widest, Some(9_999_999_999_999_999_999_000_000_000_000_000_000));
    }
}
