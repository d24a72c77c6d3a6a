//! Reads the values of a record by the types of its columns.

use crate::columns::{Column, Names, Values};
use crate::record::Record;
use crate::{number, string, timestamp};

/// Maximum nesting of values that no column stores. Each of their brackets is one bit of a number.
const MAX_SKIPPED_DEPTH: u32 = 64;

/// The rules that depend on the options of a query.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Whether a field without a column makes its record unusual, because the caller keeps its value.
    pub strict: bool,
    /// Whether timestamps without a zone are in UTC; otherwise they are unusual.
    pub local_is_utc: bool,
}

/// Appends a value to its column, and returns the position past it.
///
/// Returns `None` if it is unusual; the column may then have a part of the value.
#[inline]
pub fn read(column: &mut Column, record: Record, at: usize, rules: Rules) -> Option<usize> {
    if record.byte(at) == b'n' {
        let end = record.word(at, b"null")?;
        column.push_null();
        return Some(end);
    }
    let row = column.len();
    let end = match &mut column.values {
        Values::String { offsets, data } => {
            let end = if record.byte(at) == b'"' {
                string::read(record, at + 1, data)?
            } else {
                // Any other value is stored as it is written.
                let end = skip(record, at)?;
                data.extend_from_slice(record.slice(at, end)?);
                end
            };
            offsets.push(i32::try_from(data.len()).ok()?);
            end
        }
        Values::Int64(values) => push(values, number::integer(record, at)?),
        Values::Int32(values) => push(values, narrow(number::integer(record, at)?)?),
        Values::Int16(values) => push(values, narrow(number::integer(record, at)?)?),
        Values::Int8(values) => push(values, narrow(number::integer(record, at)?)?),
        Values::Float64(values) => push(values, number::float64(record, at)?),
        Values::Float32(values) => push(values, number::float32(record, at)?),
        Values::Decimal { unscaled, precision, scale } => {
            push(unscaled, number::decimal(record, at, *precision, *scale)?)
        }
        Values::Date(days) => push(days, timestamp::date(record, at)?),
        Values::Timestamp { micros, zoned } => {
            push(micros, timestamp::timestamp(record, at, *zoned, rules.local_is_utc)?)
        }
        Values::Boolean(flags) => {
            let flag = record.byte(at) == b't';
            let end = if flag { record.word(at, b"true")? } else { record.word(at, b"false")? };
            flags.push(flag);
            end
        }
        Values::List { offsets, items } => {
            let end = read_list(items, record, at, rules)?;
            offsets.push(i32::try_from(items.len()).ok()?);
            end
        }
        Values::Struct { names, fields } => read_object(names, fields, row, record, at, rules)?,
    };
    column.validity.push(true);
    Some(end)
}

#[inline(always)]
fn push<T>(values: &mut Vec<T>, (value, end): (T, usize)) -> usize {
    values.push(value);
    end
}

#[inline(always)]
fn narrow<T: TryFrom<i64>>((value, end): (i64, usize)) -> Option<(T, usize)> {
    Some((T::try_from(value).ok()?, end))
}

fn read_list(items: &mut Column, record: Record, at: usize, rules: Rules) -> Option<usize> {
    if record.byte(at) != b'[' {
        return None;
    }
    let mut at = record.skip_space(at + 1);
    if record.byte(at) == b']' {
        return Some(at + 1);
    }
    loop {
        at = record.skip_space(read(items, record, at, rules)?);
        match record.byte(at) {
            b',' => at = record.skip_space(at + 1),
            b']' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// Appends an object's fields to their columns, which have `row` items before.
#[inline]
fn read_object(
    names: &Names,
    fields: &mut [Column],
    row: usize,
    record: Record,
    at: usize,
    rules: Rules,
) -> Option<usize> {
    if record.byte(at) != b'{' {
        return None;
    }
    let mut at = record.skip_space(at + 1);
    let mut expected = 0;
    if record.byte(at) == b'}' {
        at += 1;
    } else {
        loop {
            if record.byte(at) != b'"' {
                return None;
            }
            let (index, end) = names.read(record, at + 1, expected)?;
            at = record.skip_space(end);
            if record.byte(at) != b':' {
                return None;
            }
            at = record.skip_space(at + 1);
            at = match index {
                Some(index) => {
                    let field = fields.get_mut(index)?;
                    // The name is repeated. Which of its values counts depends on their types.
                    if field.len() > row {
                        return None;
                    }
                    expected = if index + 1 < names.len() { index + 1 } else { 0 };
                    read(field, record, at, rules)?
                }
                None if rules.strict => return None,
                None => skip(record, at)?,
            };
            at = record.skip_space(at);
            match record.byte(at) {
                b',' => at = record.skip_space(at + 1),
                b'}' => {
                    at += 1;
                    break;
                }
                _ => return None,
            }
        }
    }
    for field in fields {
        if field.len() == row {
            field.push_null();
        }
    }
    Some(at)
}

/// Checks a value that no column stores, or that is stored as it is written; returns the position past it.
///
/// This is a loop and not a recursion, because the record decides how deep its values nest.
fn skip(record: Record, mut at: usize) -> Option<usize> {
    // The containers around a position, the innermost in the lowest bit: 1 for an object.
    let mut containers: u64 = 0;
    let mut depth = 0;
    loop {
        // A value begins here.
        match record.byte(at) {
            b'"' => at = string::skip(record, at + 1)?,
            b't' => at = record.word(at, b"true")?,
            b'f' => at = record.word(at, b"false")?,
            b'n' => at = record.word(at, b"null")?,
            bracket @ (b'{' | b'[') => {
                let is_object = bracket == b'{';
                at = record.skip_space(at + 1);
                if record.byte(at) == if is_object { b'}' } else { b']' } {
                    at += 1;
                } else if depth == MAX_SKIPPED_DEPTH {
                    return None;
                } else {
                    containers = containers << 1 | u64::from(is_object);
                    depth += 1;
                    if is_object {
                        at = skip_name(record, at)?;
                    }
                    continue;
                }
            }
            _ => at = number::skip(record, at)?,
        }
        // It ends here, and perhaps the containers around it end, too.
        loop {
            if depth == 0 {
                return Some(at);
            }
            at = record.skip_space(at);
            let in_object = containers & 1 == 1;
            match record.byte(at) {
                b',' => {
                    at = record.skip_space(at + 1);
                    if in_object {
                        at = skip_name(record, at)?;
                    }
                    break;
                }
                b'}' if in_object => {}
                b']' if !in_object => {}
                _ => return None,
            }
            at += 1;
            containers >>= 1;
            depth -= 1;
        }
    }
}

/// Skips a name and its colon; returns the position of its value.
fn skip_name(record: Record, at: usize) -> Option<usize> {
    if record.byte(at) != b'"' {
        return None;
    }
    let at = record.skip_space(string::skip(record, at + 1)?);
    (record.byte(at) == b':').then(|| record.skip_space(at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips(text: &str) -> bool {
        skip(Record::new(text.as_bytes()), 0) == Some(text.len())
    }

    #[test]
    fn what_no_column_takes_is_checked() {
        let values = [
            "null",
            "true",
            "false",
            "0",
            "-1.5e3",
            "\"\"",
            "\"\\u12ab\"",
            "[]",
            "{}",
            "[ ]",
            "{ }",
            "[1,2]",
            "[ 1 , [ ] , {\"a\" : [ { } ] } ]",
            "{\"a\":1,\"a\":{\"\\n\":null}}",
        ];
        for text in values {
            assert!(skips(text), "{text}");
            let record = format!("[{text},{{\"a\":{text}}}]");
            assert!(skips(&record), "{record}");
        }
        let mistakes = [
            "",
            "nul",
            "tru",
            "[",
            "{",
            "]",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{1:2}",
            "[1}",
            "{\"a\":1]",
            "{\"a\" 1}",
            "[1 2]",
            "{\"a\":[1}]",
            "01",
            "'a'",
            "[\n]",
        ];
        for text in mistakes {
            assert!(!skips(text), "{text}");
        }
    }

    #[test]
    fn depth_is_limited_by_a_number_and_not_by_the_stack() {
        let nested = |depth: usize| "[".repeat(depth) + "{\"a\":0}" + &"]".repeat(depth);
        assert!(skips(&nested(63)));
        assert!(!skips(&nested(64)));
        assert!(!skips(&nested(1_000_000)));
    }
}
