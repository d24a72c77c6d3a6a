//! Decodes JSON records by a schema into Arrow arrays, in one pass over their bytes.
//!
//! A record that is unusual in any way is a *suspect*: its row is null, its index is reported, and the caller
//! reads it again with the reference parser in Python (`gazette_spark/_formats/json_reference.py`). Malformed
//! records are unusual, and so are valid records with something rare: a value whose type is not its column's,
//! a repeated name in an object, an escape in a name, a decimal to be rounded, a timestamp of an
//! uncommon form. So this code only has to be correct for records that it accepts, and can be small.
//!
//! The steps for a block:
//!
//! 1. [`ffi`] takes the block from Python. It alone has `unsafe` code.
//! 2. [`decoder`] goes from record to record, and notes the suspects.
//! 3. [`value`] reads a record's value by its column's type, with [`number`], [`string`] and [`timestamp`].
//! 4. [`columns`] stores the values in Arrow's layout, and removes those of a suspect.
//!
//! Before that, [`lines`] finds the records of the block.
//!
//! Safety rests on three habits. All bytes are read through [`record::Record`], which returns 0 past the end;
//! 0 ends every token and is valid in none, so that no loop has to check where the record ends. Recursion
//! follows the schema, whose depth is limited, and never the record. The values of a column come from
//! different bytes of a block of less than 2 GiB, so no 32-bit offset of Arrow overflows.

mod columns;
mod decoder;
mod ffi;
mod lines;
mod number;
mod record;
mod schema;
mod string;
mod timestamp;
mod value;
