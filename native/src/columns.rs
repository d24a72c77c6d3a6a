//! Columns in Arrow's layout, filled value by value.
//!
//! While a record is being read, a nested column may be longer than its parent says, because the items of a
//! list come before the list. [`Column::truncate`] cuts all columns to a number of rows, so that a suspect
//! leaves nothing behind.

use std::collections::HashMap;

use crate::record::Record;
use crate::schema::{Field, Type};
use crate::string;

/// Maximum number of a struct's fields that are compared with a name one by one, from the expected one on.
const MAX_GUESSES: usize = 8;

/// A column, or the values inside a column.
pub struct Column {
    pub validity: Validity,
    pub values: Values,
}

/// The values of a column. A null also has a value, which is meaningless.
pub enum Values {
    Boolean(Bitmap),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    /// Item *i* is `data[offsets[i]..offsets[i + 1]]`.
    String {
        offsets: Vec<i32>,
        data: Vec<u8>,
    },
    Date(Vec<i32>),
    Timestamp {
        micros: Vec<i64>,
        zoned: bool,
    },
    Decimal {
        unscaled: Vec<i128>,
        precision: u8,
        scale: u8,
    },
    /// Item *i* is the items `offsets[i]..offsets[i + 1]` of the inner column.
    List {
        offsets: Vec<i32>,
        items: Box<Column>,
    },
    Struct {
        names: Names,
        fields: Vec<Column>,
    },
}

impl Column {
    /// Returns an empty column of a type.
    pub fn new(kind: &Type) -> Self {
        let values = match kind {
            Type::Boolean => Values::Boolean(Bitmap::default()),
            Type::Int8 => Values::Int8(vec![]),
            Type::Int16 => Values::Int16(vec![]),
            Type::Int32 => Values::Int32(vec![]),
            Type::Int64 => Values::Int64(vec![]),
            Type::Float32 => Values::Float32(vec![]),
            Type::Float64 => Values::Float64(vec![]),
            Type::String => Values::String { offsets: vec![0], data: vec![] },
            Type::Date => Values::Date(vec![]),
            &Type::Timestamp { zoned } => Values::Timestamp { micros: vec![], zoned },
            &Type::Decimal { precision, scale } => Values::Decimal { unscaled: vec![], precision, scale },
            Type::List(item) => Values::List { offsets: vec![0], items: Box::new(Column::new(item)) },
            Type::Struct(fields) => Values::Struct {
                names: Names::new(fields),
                fields: fields.iter().map(|field| Column::new(&field.kind)).collect(),
            },
        };
        Column { validity: Validity::default(), values }
    }

    /// Returns the number of items.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.validity.len
    }

    /// Appends a null.
    pub fn push_null(&mut self) {
        match &mut self.values {
            Values::Boolean(values) => values.push(false),
            Values::Int8(values) => values.push(0),
            Values::Int16(values) => values.push(0),
            Values::Int32(values) | Values::Date(values) => values.push(0),
            Values::Int64(values) | Values::Timestamp { micros: values, .. } => values.push(0),
            Values::Float32(values) => values.push(0.0),
            Values::Float64(values) => values.push(0.0),
            Values::Decimal { unscaled, .. } => unscaled.push(0),
            Values::String { offsets, .. } | Values::List { offsets, .. } => offsets.push(last(offsets)),
            Values::Struct { fields, .. } => fields.iter_mut().for_each(Column::push_null),
        }
        self.validity.push(false);
    }

    /// Removes all but the first items, and the parts of an incomplete item.
    pub fn truncate(&mut self, len: usize) {
        self.validity.truncate(len);
        match &mut self.values {
            Values::Boolean(values) => values.truncate(len),
            Values::Int8(values) => values.truncate(len),
            Values::Int16(values) => values.truncate(len),
            Values::Int32(values) | Values::Date(values) => values.truncate(len),
            Values::Int64(values) | Values::Timestamp { micros: values, .. } => values.truncate(len),
            Values::Float32(values) => values.truncate(len),
            Values::Float64(values) => values.truncate(len),
            Values::Decimal { unscaled, .. } => unscaled.truncate(len),
            Values::String { offsets, data } => {
                offsets.truncate(len + 1);
                data.truncate(last(offsets) as usize);
            }
            Values::List { offsets, items } => {
                offsets.truncate(len + 1);
                items.truncate(last(offsets) as usize);
            }
            Values::Struct { fields, .. } => fields.iter_mut().for_each(|field| field.truncate(len)),
        }
    }

    /// Returns the column and leaves an empty one of the same capacity, because blocks resemble each other.
    pub fn take(&mut self) -> Column {
        let values = match &mut self.values {
            Values::Boolean(values) => Values::Boolean(values.take()),
            Values::Int8(values) => Values::Int8(take(values)),
            Values::Int16(values) => Values::Int16(take(values)),
            Values::Int32(values) => Values::Int32(take(values)),
            Values::Int64(values) => Values::Int64(take(values)),
            Values::Float32(values) => Values::Float32(take(values)),
            Values::Float64(values) => Values::Float64(take(values)),
            Values::String { offsets, data } => {
                Values::String { offsets: take_offsets(offsets), data: take(data) }
            }
            Values::Date(values) => Values::Date(take(values)),
            Values::Timestamp { micros, zoned } => Values::Timestamp { micros: take(micros), zoned: *zoned },
            Values::Decimal { unscaled, precision, scale } => {
                Values::Decimal { unscaled: take(unscaled), precision: *precision, scale: *scale }
            }
            Values::List { offsets, items } => {
                Values::List { offsets: take_offsets(offsets), items: Box::new(items.take()) }
            }
            Values::Struct { fields, .. } => Values::Struct {
                names: Names::default(),
                fields: fields.iter_mut().map(Column::take).collect(),
            },
        };
        Column { validity: std::mem::take(&mut self.validity), values }
    }
}

/// Returns the last offset; there is always one.
fn last(offsets: &[i32]) -> i32 {
    offsets.last().copied().unwrap_or(0)
}

fn take<T>(values: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(values.len() + values.len() / 8);
    std::mem::replace(values, room)
}

fn take_offsets(offsets: &mut Vec<i32>) -> Vec<i32> {
    let taken = take(offsets);
    offsets.push(0);
    taken
}

/// Which items of a column are not null.
#[derive(Default)]
pub struct Validity {
    len: usize,
    nulls: usize,
    /// Made at the first null, because most columns have none.
    bitmap: Option<Bitmap>,
}

impl Validity {
    #[inline(always)]
    pub fn push(&mut self, is_valid: bool) {
        if !is_valid {
            self.nulls += 1;
            let len = self.len;
            self.bitmap.get_or_insert_with(|| Bitmap::ones(len));
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.push(is_valid);
        }
        self.len += 1;
    }

    fn truncate(&mut self, len: usize) {
        if let Some(bitmap) = &mut self.bitmap {
            self.nulls -= (len..self.len).filter(|&index| !bitmap.get(index)).count();
            bitmap.truncate(len);
        }
        self.len = self.len.min(len);
    }

    pub fn null_count(&self) -> usize {
        self.nulls
    }

    /// Returns the bitmap, `None` if no item is null.
    pub fn bits(&self) -> Option<&[u8]> {
        self.bitmap.as_ref().filter(|_| self.nulls > 0).map(Bitmap::bytes)
    }
}

/// Flags of one bit each, the first one in the lowest bit.
#[derive(Default)]
pub struct Bitmap {
    bytes: Vec<u8>,
    len: usize,
}

impl Bitmap {
    fn ones(len: usize) -> Self {
        let mut bitmap = Bitmap { bytes: vec![0xFF; len.div_ceil(8)], len: len.div_ceil(8) * 8 };
        bitmap.truncate(len);
        bitmap
    }

    #[inline(always)]
    pub fn push(&mut self, flag: bool) {
        let bit = u8::from(flag) << (self.len % 8);
        match self.bytes.last_mut() {
            Some(byte) if self.len % 8 != 0 => *byte |= bit,
            _ => self.bytes.push(bit),
        }
        self.len += 1;
    }

    fn get(&self, index: usize) -> bool {
        self.bytes[index / 8] >> (index % 8) & 1 == 1
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.bytes.truncate(self.len.div_ceil(8));
        // New flags are added to the last byte, whose other bits must be 0.
        if let (Some(byte), bits @ 1..) = (self.bytes.last_mut(), self.len % 8) {
            *byte &= (1 << bits) - 1;
        }
    }

    fn take(&mut self) -> Bitmap {
        Bitmap { len: std::mem::take(&mut self.len), bytes: take(&mut self.bytes) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The names of a struct's fields.
#[derive(Default)]
pub struct Names {
    names: Vec<Name>,
    /// Index of each field by its quoted name, for structs with many fields.
    indices: HashMap<Vec<u8>, usize>,
}

impl Names {
    fn new(fields: &[Field]) -> Self {
        let names: Vec<Name> = fields.iter().map(|field| Name::new(&field.name)).collect();
        let mut indices = HashMap::new();
        if names.len() > MAX_GUESSES {
            indices.extend(names.iter().map(|name| name.quoted.clone()).zip(0..));
        }
        Names { names, indices }
    }

    /// Returns the number of fields.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Reads a name of an object.
    ///
    /// # Arguments
    ///
    /// * `at` - Position after the opening quote.
    /// * `expected` - The field to compare first. Objects usually have their fields in the order of
    ///   the schema, and omit some.
    ///
    /// Returns the field, or `None` if no field has the name, and the position past the closing quote. A name
    /// with an escape is unusual, because it might be the name of a field.
    #[inline(always)]
    pub fn read(&self, record: Record, at: usize, expected: usize) -> Option<(Option<usize>, usize)> {
        let count = self.names.len();
        for guess in expected..expected + count.min(MAX_GUESSES) {
            let index = if guess < count { guess } else { guess - count };
            if let Some(end) = self.names[index].read(record, at) {
                return Some((Some(index), end));
            }
        }
        let end = string::skip(record, at)?;
        let name = record.slice(at, end)?;
        if name.contains(&b'\\') {
            return None;
        }
        Some((self.indices.get(name).copied(), end))
    }
}

/// The name of a field.
struct Name {
    /// The name and the closing quote, so that no name matches the beginning of a longer one.
    quoted: Vec<u8>,
    /// The first eight bytes as a number, and a mask of the bits that count if the name is shorter.
    head: u64,
    mask: u64,
}

impl Name {
    fn new(name: &[u8]) -> Self {
        let quoted = [name, b"\""].concat();
        let (mut head, mut mask) = ([0; 8], [0; 8]);
        for (index, &byte) in quoted.iter().take(8).enumerate() {
            (head[index], mask[index]) = (byte, 0xFF);
        }
        Name { quoted, head: u64::from_le_bytes(head), mask: u64::from_le_bytes(mask) }
    }

    /// Returns the position past the name; `None` if the record has another text there.
    #[inline(always)]
    fn read(&self, record: Record, at: usize) -> Option<usize> {
        let end = at + self.quoted.len();
        // Most comparisons end here, without a call for a few bytes.
        if let Some(&bytes) = record.array::<8>(at) {
            if (u64::from_le_bytes(bytes) ^ self.head) & self.mask != 0 {
                return None;
            }
            if self.quoted.len() <= 8 {
                return Some(end);
            }
        }
        (record.slice(at, end)? == self.quoted).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_and_go() {
        for len in 0..40 {
            for kept in 0..=len {
                let mut validity = Validity::default();
                let flags: Vec<bool> = (0..len).map(|index| index % 3 != 1).collect();
                flags.iter().for_each(|&flag| validity.push(flag));
                validity.truncate(kept);
                validity.push(true);
                let expected = [&flags[..kept], &[true]].concat();
                assert_eq!(validity.null_count(), expected.iter().filter(|&&flag| !flag).count());
                let bits: Vec<bool> = match validity.bits() {
                    None => vec![true; validity.len],
                    Some(bytes) => (0..validity.len).map(|i| bytes[i / 8] >> (i % 8) & 1 == 1).collect(),
                };
                assert_eq!(bits, expected);
            }
        }
    }

    #[test]
    fn names_are_read_in_any_order() {
        for count in [1, 3, 8, 9, 30] {
            let field = |index| Field { name: format!("name{index}").into_bytes(), kind: Type::String };
            let names = Names::new(&(0..count).map(field).collect::<Vec<_>>());
            for index in 0..count {
                let text = format!("name{index}\":");
                for expected in 0..count {
                    let read = names.read(Record::new(text.as_bytes()), 0, expected);
                    assert_eq!(read, Some((Some(index), text.len() - 1)));
                }
            }
            let read = |text: &str| names.read(Record::new(text.as_bytes()), 0, 0);
            assert_eq!(read("name\""), Some((None, 5)));
            assert_eq!(read("name00\""), Some((None, 7)));
            assert_eq!(read("n\\u0061me0\""), None);
            assert_eq!(read("name0"), None);
            assert_eq!(read("na\x01me0\""), None);
        }
    }
}
