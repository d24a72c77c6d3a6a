//! Fuzzes the decoder through its C interface, as Python calls it.
//!
//! The first byte of an input chooses the rules and what the rest is: a block for one of the types below, or
//! the code of a type and a block, or positions of records and a block. Whatever the input, the decoder has to
//! answer with an error or with arrays whose buffers are as long as Arrow says, whose offsets ascend, and whose
//! texts are UTF-8. AddressSanitizer watches the rest: each buffer is read to its end.
#![no_main]

#[path = "../../src/columns.rs"]
mod columns;
#[path = "../../src/decoder.rs"]
mod decoder;
#[path = "../../src/ffi.rs"]
mod ffi;
#[path = "../../src/lines.rs"]
mod lines;
#[path = "../../src/number.rs"]
mod number;
#[path = "../../src/record.rs"]
mod record;
#[path = "../../src/schema.rs"]
mod schema;
#[path = "../../src/string.rs"]
mod string;
#[path = "../../src/timestamp.rs"]
mod timestamp;
#[path = "../../src/value.rs"]
mod value;

use ffi::ArrowArray;
use libfuzzer_sys::fuzz_target;
use schema::{Field, Type};
use std::sync::LazyLock;

/// Bits of an input's first byte: the decoder's flags, a code of the input's own, positions of its own.
const FLAGS: u8 = 3;
const OWN_CODE: u8 = 4;
const OWN_POSITIONS: u8 = 8;

/// The code of the type for blocks without a code of their own.
static ALL_TYPES: LazyLock<Vec<u8>> = LazyLock::new(|| code_of(&all_types()));

fuzz_target!(|input: &[u8]| {
    let Some((&mode, mut rest)) = input.split_first() else { return };
    let code = if mode & OWN_CODE == 0 {
        ALL_TYPES.clone()
    } else {
        let Some((&size, after)) = rest.split_first() else { return };
        let (code, block) = after.split_at((size as usize).min(after.len()));
        rest = block;
        code.to_vec()
    };
    let (starts, ends, block) = if mode & OWN_POSITIONS == 0 { by_lines(rest) } else { by_input(rest) };
    // Python sends as many bytes as it says, and no more. The copies make the sanitizer notice a byte beyond.
    let (code, block) = (code.into_boxed_slice(), block.to_vec().into_boxed_slice());
    let mut suspects = vec![-1_i64; starts.len()];
    let mut array = std::mem::MaybeUninit::<ArrowArray>::uninit();
    // SAFETY: all pointers are those of live slices, and lengths are theirs.
    unsafe {
        let decoder = ffi::gazette_json_decoder_new(code.as_ptr(), code.len(), u32::from(mode & FLAGS));
        if decoder.is_null() {
            return;
        }
        // The second block is decoded with the buffers of the first.
        for _ in 0..2 {
            let count = ffi::gazette_json_decode(
                decoder,
                block.as_ptr(),
                block.len(),
                starts.as_ptr(),
                ends.as_ptr(),
                starts.len(),
                array.as_mut_ptr(),
                suspects.as_mut_ptr(),
            );
            assert_ne!(count, -2, "a panic");
            if count < 0 {
                break;
            }
            let made = array.assume_init_mut();
            let kind = schema::parse(&code).expect("the decoder has taken it");
            check(made, &kind, starts.len());
            let found = &suspects[..count as usize];
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "suspects are in order");
            assert!(found.iter().all(|&row| (0..starts.len() as i64).contains(&row)));
            made.release.expect("it was just made")(made);
        }
        ffi::gazette_json_decoder_free(decoder);
    }
});

/// Returns the records of a block as Python finds them: by its newlines.
fn by_lines(block: &[u8]) -> (Vec<i64>, Vec<i64>, &[u8]) {
    let mut positions = vec![-1; block.len()];
    // SAFETY: the pointers are those of live slices.
    let count = unsafe {
        ffi::gazette_newlines(block.as_ptr(), block.len(), positions.as_mut_ptr(), positions.len())
    };
    positions.truncate(usize::try_from(count).expect("no error"));
    let newlines = block.iter().enumerate().filter(|(_, &byte)| byte == b'\n').map(|(at, _)| at as i64);
    assert!(newlines.eq(positions.iter().copied()));
    let starts = std::iter::once(0).chain(positions.iter().map(|&at| at + 1)).take(positions.len());
    (starts.collect(), positions, block)
}

/// Returns records at any positions, which the first bytes of the input say.
fn by_input(input: &[u8]) -> (Vec<i64>, Vec<i64>, &[u8]) {
    let Some((&count, rest)) = input.split_first() else { return (vec![], vec![], input) };
    let (positions, block) = rest.split_at((2 * count as usize % 64).min(rest.len()) & !1);
    let pairs = positions.chunks_exact(2).map(|pair| (i64::from(pair[0] as i8), i64::from(pair[1])));
    let (starts, ends) = pairs.unzip();
    (starts, ends, block)
}

/// Reads all of an array, and checks it as a reader of Arrow's would.
///
/// # Safety
///
/// The array is one that the decoder made of this type.
unsafe fn check(array: &ArrowArray, kind: &Type, length: usize) {
    assert_eq!((array.length, array.offset), (length as i64, 0));
    let buffer = |at: usize, bytes: usize| -> &[u8] {
        assert!((at as i64) < array.n_buffers);
        let pointer = *array.buffers.add(at);
        if bytes == 0 {
            return &[];
        }
        assert!(!pointer.is_null());
        let slice = std::slice::from_raw_parts(pointer, bytes);
        std::hint::black_box(slice.iter().fold(0_u8, |sum, &byte| sum.wrapping_add(byte)));
        slice
    };
    let bits = length.div_ceil(8);
    if !(*array.buffers).is_null() {
        let valid = buffer(0, bits);
        let nulls = (0..length).filter(|row| valid[row / 8] >> (row % 8) & 1 == 0).count();
        assert_eq!(array.null_count, nulls as i64);
    } else {
        assert_eq!(array.null_count, 0);
    }
    let offsets = || -> Vec<i32> {
        let bytes = buffer(1, 4 * (length + 1));
        let all: Vec<i32> = bytes
            .chunks_exact(4)
            .map(|four| i32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
            .collect();
        assert_eq!(all[0], 0);
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "offsets ascend");
        all
    };
    let child = |at: usize| {
        assert!((at as i64) < array.n_children);
        &**array.children.add(at)
    };
    match kind {
        Type::Boolean => drop(buffer(1, bits)),
        Type::Int8 => drop(buffer(1, length)),
        Type::Int16 => drop(buffer(1, 2 * length)),
        Type::Int32 | Type::Float32 | Type::Date => drop(buffer(1, 4 * length)),
        Type::Int64 | Type::Float64 | Type::Timestamp { .. } => drop(buffer(1, 8 * length)),
        Type::Decimal { .. } => drop(buffer(1, 16 * length)),
        Type::String => {
            let offsets = offsets();
            let texts = buffer(2, offsets[length] as usize);
            for pair in offsets.windows(2) {
                assert!(std::str::from_utf8(&texts[pair[0] as usize..pair[1] as usize]).is_ok());
            }
        }
        Type::List(items) => check(child(0), items, offsets()[length] as usize),
        Type::Struct(fields) => {
            assert_eq!(array.n_children, fields.len() as i64);
            fields.iter().enumerate().for_each(|(at, field)| check(child(at), &field.kind, length));
        }
    }
}

/// Returns a type that has all types in it, under short names.
fn all_types() -> Type {
    let field = |name: &str, kind: Type| Field { name: name.as_bytes().to_vec(), kind };
    let inside = Type::Struct(vec![field("x", Type::Int64), field("y", Type::String)]);
    Type::Struct(vec![
        field("a", Type::Boolean),
        field("b", Type::Int8),
        field("c", Type::Int16),
        field("d", Type::Int32),
        field("e", Type::Int64),
        field("f", Type::Float32),
        field("g", Type::Float64),
        field("h", Type::String),
        field("i", Type::Date),
        field("j", Type::Timestamp { zoned: true }),
        field("k", Type::Timestamp { zoned: false }),
        field("l", Type::Decimal { precision: 10, scale: 2 }),
        field("m", Type::Decimal { precision: 38, scale: 38 }),
        field("n", Type::List(Box::new(Type::List(Box::new(Type::Float64))))),
        field("o", Type::List(Box::new(inside.clone()))),
        field("p", inside),
    ])
}

/// Returns the code in which Python sends a type; see [`schema`].
fn code_of(kind: &Type) -> Vec<u8> {
    match kind {
        Type::Boolean => b"b".to_vec(),
        Type::Int8 => b"1".to_vec(),
        Type::Int16 => b"2".to_vec(),
        Type::Int32 => b"4".to_vec(),
        Type::Int64 => b"8".to_vec(),
        Type::Float32 => b"f".to_vec(),
        Type::Float64 => b"d".to_vec(),
        Type::String => b"s".to_vec(),
        Type::Date => b"D".to_vec(),
        Type::Timestamp { zoned: true } => b"t".to_vec(),
        Type::Timestamp { zoned: false } => b"n".to_vec(),
        Type::Decimal { precision, scale } => vec![b'c', *precision, *scale],
        Type::List(items) => [b"[".to_vec(), code_of(items)].concat(),
        Type::Struct(fields) => {
            let mut code = b"{".to_vec();
            code.extend((fields.len() as u32).to_le_bytes());
            for field in fields {
                code.extend((field.name.len() as u32).to_le_bytes());
                code.extend(&field.name);
                code.extend(code_of(&field.kind));
            }
            code
        }
    }
}
