//! Decodes blocks of records to columns.

use crate::columns::{Column, Values};
use crate::record::Record;
use crate::schema::Type;
use crate::value::{self, Rules};

/// Arrow counts bytes of strings and items of lists with 31 bits. No column has more of them than the block
/// has bytes.
pub const MAX_BLOCK_BYTES: usize = i32::MAX as usize;

/// Decodes blocks by one schema.
pub struct Decoder {
    /// A struct whose fields are the columns.
    records: Column,
    rules: Rules,
}

impl Decoder {
    /// Returns a decoder; `None` if the type is not a struct.
    pub fn new(kind: &Type, rules: Rules) -> Option<Self> {
        matches!(kind, Type::Struct(_)).then(|| Decoder { records: Column::new(kind), rules })
    }

    /// Decodes records.
    ///
    /// # Arguments
    ///
    /// * `data` - The bytes of a block.
    /// * `starts`, `ends` - Record *i* is `data[starts[i]..ends[i]]`; records are in order.
    /// * `suspects` - Gets the indices of the suspects, whose rows are null.
    ///
    /// Returns a struct of the columns and the number of suspects; `None` if the positions are not in order.
    pub fn decode(
        &mut self,
        data: &[u8],
        starts: &[i64],
        ends: &[i64],
        suspects: &mut [i64],
    ) -> Option<(Column, usize)> {
        if data.len() > MAX_BLOCK_BYTES || starts.len() != ends.len() || starts.len() > suspects.len() {
            return None;
        }
        self.records.truncate(0);
        let mut suspect_count = 0;
        let mut previous_end = 0;
        for (row, (&start, &end)) in starts.iter().zip(ends).enumerate() {
            let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
            // Overlapping records could have more bytes than the block.
            if start < previous_end {
                return None;
            }
            previous_end = end;
            if self.read_record(Record::new(data.get(start..end)?)).is_none() {
                self.records.truncate(row);
                self.push_null_row();
                *suspects.get_mut(suspect_count)? = row as i64;
                suspect_count += 1;
            }
        }
        Some((self.records.take(), suspect_count))
    }

    /// Appends a record, which must be a single object.
    fn read_record(&mut self, record: Record) -> Option<()> {
        let begin = record.skip_space(0);
        // Null is a valid struct, but not a valid record.
        if record.byte(begin) != b'{' {
            return None;
        }
        let end = value::read(&mut self.records, record, begin, self.rules)?;
        (record.skip_space(end) == record.len()).then_some(())
    }

    /// Appends a row whose columns are null.
    fn push_null_row(&mut self) {
        if let Values::Struct { fields, .. } = &mut self.records.values {
            fields.iter_mut().for_each(Column::push_null);
        }
        self.records.validity.push(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Field;

    fn decoder(fields: &[(&str, Type)], rules: Rules) -> Decoder {
        let field =
            |(name, kind): &(&str, Type)| Field { name: name.as_bytes().to_vec(), kind: kind.clone() };
        Decoder::new(&Type::Struct(fields.iter().map(field).collect()), rules).unwrap()
    }

    fn decode(decoder: &mut Decoder, records: &[&[u8]]) -> Option<(Vec<Column>, Vec<i64>)> {
        let (mut starts, mut ends, mut data) = (vec![], vec![], vec![]);
        for record in records {
            starts.push(data.len() as i64);
            data.extend_from_slice(record);
            ends.push(data.len() as i64);
            data.push(b'\n');
        }
        let mut suspects = vec![0; records.len()];
        let (column, count) = decoder.decode(&data, &starts, &ends, &mut suspects)?;
        suspects.truncate(count);
        let Values::Struct { fields, .. } = column.values else { panic!("not a struct") };
        Some((fields, suspects))
    }

    const RULES: Rules = Rules { strict: false, local_is_utc: true };

    #[test]
    fn a_suspect_leaves_nothing_behind() {
        let inside = Type::Struct(vec![
            Field { name: b"x".to_vec(), kind: Type::Int64 },
            Field { name: b"y".to_vec(), kind: Type::String },
        ]);
        let fields = [("s", Type::String), ("l", Type::List(Box::new(inside))), ("b", Type::Boolean)];
        let mut decoder = decoder(&fields, RULES);
        let good: &[u8] = br#"{"s":"ab","l":[{"x":1,"y":"q"},null,{}],"b":true}"#;
        let bad: [&[u8]; 6] = [
            br#"{"s":"ab","l":[{"x":1,"y":"q"},null,{"x":"2"}],"b":true}"#,
            br#"{"s":"abc\ud800"}"#,
            br#"{"s":"ab"}x"#,
            br#"{"b":true,"b":false}"#,
            b"null",
            b"{\"s\":\"\xff\"}",
        ];
        for bad in bad {
            let (columns, suspects) = decode(&mut decoder, &[good, bad, good, bad]).unwrap();
            assert_eq!(suspects, [1, 3]);
            assert!(columns.iter().all(|column| column.len() == 4 && column.validity.null_count() == 2));
            let Values::String { offsets, data } = &columns[0].values else { panic!() };
            assert_eq!((&offsets[..], &data[..]), (&[0, 2, 2, 4, 4][..], &b"abab"[..]));
            let Values::List { offsets, items } = &columns[1].values else { panic!() };
            assert_eq!((&offsets[..], items.len()), (&[0, 3, 3, 6, 6][..], 6));
            let Values::Struct { fields, .. } = &items.values else { panic!() };
            assert!(fields.iter().all(|field| field.len() == 6 && field.validity.null_count() == 4));
            let Values::Boolean(flags) = &columns[2].values else { panic!() };
            assert_eq!(flags.bytes(), [0b0101]);
        }
    }

    #[test]
    fn fields_without_a_column_are_skipped_or_suspect() {
        let records: [&[u8]; 2] = [br#"{"other":[1],"a":7}"#, br#"{"a":8}"#];
        let strict = Rules { strict: true, ..RULES };
        for (rules, expected) in [(RULES, vec![]), (strict, vec![0])] {
            let (_, suspects) = decode(&mut decoder(&[("a", Type::Int8)], rules), &records).unwrap();
            assert_eq!(suspects, expected);
        }
    }

    #[test]
    fn positions_out_of_order_are_refused() {
        let mut decoder = decoder(&[], RULES);
        let data = b"{} {} {}";
        for (starts, ends) in [
            (&[0][..], &[9][..]),
            (&[-1], &[2]),
            (&[2], &[1]),
            (&[0, 1], &[2, 5]),
            (&[0, 3], &[2]),
            (&[9], &[9]),
        ] {
            assert!(decoder.decode(data, starts, ends, &mut [0; 2]).is_none());
        }
        assert!(decoder.decode(data, &[0, 3], &[2, 5], &mut [0]).is_none(), "no room for suspects");
        assert_eq!(decoder.decode(data, &[0, 3], &[2, 5], &mut [0; 2]).map(|(_, count)| count), Some(0));
        assert!(Decoder::new(&Type::String, RULES).is_none());
    }

    #[test]
    fn every_prefix_of_a_record_is_suspect() {
        let inside = Type::Struct(vec![Field { name: b"x".to_vec(), kind: Type::Float64 }]);
        let fields = [
            ("i", Type::Int64),
            ("f", Type::Float32),
            ("s", Type::String),
            ("t", Type::Timestamp { zoned: true }),
            ("d", Type::Date),
            ("c", Type::Decimal { precision: 10, scale: 2 }),
            ("l", Type::List(Box::new(inside))),
        ];
        let record = br#"{"i":12,"f":1.5e3,"s":"a\u00e9","t":"2024-01-02T03:04:05.5+01:00","d":"2024-01-02","c":1.25,"l":[{"x":1}],"o":{"a":[1,"b"]}}"#;
        let mut decoder = decoder(&fields, RULES);
        for end in 0..record.len() {
            let (columns, suspects) = decode(&mut decoder, &[record, &record[..end], record]).unwrap();
            assert_eq!(suspects, [1], "{end}");
            assert!(columns.iter().all(|column| column.len() == 3));
        }
    }
}
