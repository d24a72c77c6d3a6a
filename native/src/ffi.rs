//! The C interface, and the only code that is `unsafe`.
//!
//! Columns are handed over by Arrow's C data interface
//! (<https://arrow.apache.org/docs/format/CDataInterface.html>): the receiver gets pointers into our memory,
//! and calls `release` when it is done. No panic leaves a function: it becomes an error code, and the decoder
//! refuses further calls, because its columns may be half-filled.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;

use crate::columns::{Column, Values};
use crate::decoder::Decoder;
use crate::lines;
use crate::schema;
use crate::value::Rules;

/// Version of this interface, including the code of types. Python refuses a library with another version.
const ABI_VERSION: u32 = 2;

/// Bits of `flags`.
const STRICT: u32 = 1;
const LOCAL_IS_UTC: u32 = 2;

/// The arguments are invalid.
const INVALID: i64 = -1;
/// The decoder is in use by another thread, or a panic ended an earlier call.
const UNUSABLE: i64 = -2;

/// Arrow's `struct ArrowArray`.
#[repr(C)]
pub struct ArrowArray {
    pub(crate) length: i64,
    pub(crate) null_count: i64,
    pub(crate) offset: i64,
    pub(crate) n_buffers: i64,
    pub(crate) n_children: i64,
    pub(crate) buffers: *mut *const u8,
    pub(crate) children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    pub(crate) release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut Owned,
}

/// The memory to which an array points.
pub struct Owned {
    buffers: Vec<*const u8>,
    children: Vec<*mut ArrowArray>,
    _column: Column,
}

/// Returns the version of this interface.
#[no_mangle]
pub extern "C" fn gazette_json_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the version of this library, as text.
#[no_mangle]
pub extern "C" fn gazette_json_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes a decoder; returns null if a type is not supported.
///
/// # Safety
///
/// `code` points to `size` bytes: a type as [`schema`] describes it.
#[no_mangle]
pub unsafe extern "C" fn gazette_json_decoder_new(
    code: *const u8,
    size: usize,
    flags: u32,
) -> *mut Mutex<Decoder> {
    let made = catch_unwind(|| {
        // SAFETY: the caller promises it.
        let code = unsafe { slice(code, size) }?;
        let rules = Rules { strict: flags & STRICT != 0, local_is_utc: flags & LOCAL_IS_UTC != 0 };
        Decoder::new(&schema::parse(code)?, rules)
    });
    match made {
        Ok(Some(decoder)) => Box::into_raw(Box::new(Mutex::new(decoder))),
        _ => ptr::null_mut(),
    }
}

/// Frees a decoder. Arrays that it made remain valid.
///
/// # Safety
///
/// The decoder is one that [`gazette_json_decoder_new`] made, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn gazette_json_decoder_free(decoder: *mut Mutex<Decoder>) {
    if !decoder.is_null() {
        // SAFETY: the pointer came from `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(decoder) });
    }
}

/// Decodes a block of records.
///
/// # Arguments
///
/// * `data`, `size` - The bytes of the block; they are not needed after the call.
/// * `starts`, `ends`, `count` - Record *i* is `data[starts[i]..ends[i]]`.
/// * `array` - Gets a struct array of the columns, which the caller releases; only if the call succeeds.
/// * `suspects` - Gets the indices of the suspects: room for `count` of them.
///
/// Returns the number of suspects, or a negative error code.
///
/// # Safety
///
/// Pointers are valid for the stated number of items, `array` for one. The decoder has not been freed.
#[no_mangle]
pub unsafe extern "C" fn gazette_json_decode(
    decoder: *const Mutex<Decoder>,
    data: *const u8,
    size: usize,
    starts: *const i64,
    ends: *const i64,
    count: usize,
    array: *mut ArrowArray,
    suspects: *mut i64,
) -> i64 {
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller promises that the pointers are valid for these lengths. Nothing else writes to
        // `suspects` meanwhile, and nothing writes to the others.
        let (decoder, data, starts, ends, suspects) = unsafe {
            let decoder = decoder.as_ref().ok_or(INVALID)?;
            let data = slice(data, size).ok_or(INVALID)?;
            let starts = slice(starts, count).ok_or(INVALID)?;
            let ends = slice(ends, count).ok_or(INVALID)?;
            let suspects = slice_mut(suspects, count).ok_or(INVALID)?;
            if array.is_null() {
                return Err(INVALID);
            }
            (decoder, data, starts, ends, suspects)
        };
        // After a panic, the lock is poisoned, and each call fails.
        let mut decoder = decoder.try_lock().map_err(|_| UNUSABLE)?;
        let (column, suspect_count) = decoder.decode(data, starts, ends, suspects).ok_or(INVALID)?;
        // SAFETY: `array` is valid for one item. The caller releases its old content, if any.
        unsafe { ptr::write(array, export(column)) };
        Ok(suspect_count as i64)
    }));
    match decoded {
        Ok(Ok(suspect_count)) => suspect_count,
        Ok(Err(code)) => code,
        Err(_) => UNUSABLE,
    }
}

/// Finds the newlines of some bytes.
///
/// Returns their number, or a negative error code. `positions` gets the positions of the first ones, as many
/// as it has room for.
///
/// # Safety
///
/// Pointers are valid for the stated number of items.
#[no_mangle]
pub unsafe extern "C" fn gazette_newlines(
    data: *const u8,
    size: usize,
    positions: *mut i64,
    room: usize,
) -> i64 {
    let counted = catch_unwind(|| {
        // SAFETY: the caller promises that the pointers are valid for these lengths, and that nothing else
        // uses `positions` meanwhile.
        unsafe { Some(lines::newlines(slice(data, size)?, slice_mut(positions, room)?) as i64) }
    });
    counted.ok().flatten().unwrap_or(INVALID)
}

/// Returns a slice; `None` if the pointer is null or misaligned although there are items.
///
/// # Safety
///
/// The pointer is valid for `count` items, which do not change as long as the slice is used.
unsafe fn slice<'a, T>(items: *const T, count: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    if items.is_null() || items as usize % std::mem::align_of::<T>() != 0 {
        return None;
    }
    // SAFETY: it is neither null nor misaligned, and the caller promises the rest.
    Some(unsafe { std::slice::from_raw_parts(items, count) })
}

/// Returns a slice to write to; `None` as in [`slice`].
///
/// # Safety
///
/// The pointer is valid for `count` items, which nothing else uses as long as the slice is used.
unsafe fn slice_mut<'a, T>(items: *mut T, count: usize) -> Option<&'a mut [T]> {
    if count == 0 {
        return Some(&mut []);
    }
    if items.is_null() || items as usize % std::mem::align_of::<T>() != 0 {
        return None;
    }
    // SAFETY: it is neither null nor misaligned, and the caller promises the rest.
    Some(unsafe { std::slice::from_raw_parts_mut(items, count) })
}

/// Returns a column as an array that owns it.
fn export(mut column: Column) -> ArrowArray {
    let (length, null_count) = (column.len(), column.validity.null_count());
    let mut children = vec![];
    let mut add_child = |child: Column| children.push(Box::into_raw(Box::new(export(child))));
    match &mut column.values {
        Values::List { items, .. } => add_child(items.take()),
        Values::Struct { fields, .. } => fields.drain(..).for_each(add_child),
        _ => {}
    }
    // A vector's memory stays where it is when the column is moved into its box below.
    let mut buffers = vec![column.validity.bits().map_or(ptr::null(), <[u8]>::as_ptr)];
    match &column.values {
        Values::Boolean(values) => buffers.push(values.bytes().as_ptr()),
        Values::Int8(values) => buffers.push(values.as_ptr().cast()),
        Values::Int16(values) => buffers.push(values.as_ptr().cast()),
        Values::Int32(values) | Values::Date(values) => buffers.push(values.as_ptr().cast()),
        Values::Int64(values) | Values::Timestamp { micros: values, .. } => {
            buffers.push(values.as_ptr().cast())
        }
        Values::Float32(values) => buffers.push(values.as_ptr().cast()),
        Values::Float64(values) => buffers.push(values.as_ptr().cast()),
        Values::Decimal { unscaled, .. } => buffers.push(unscaled.as_ptr().cast()),
        Values::String { offsets, data } => buffers.extend([offsets.as_ptr().cast(), data.as_ptr()]),
        Values::List { offsets, .. } => buffers.push(offsets.as_ptr().cast()),
        Values::Struct { .. } => {}
    }
    let mut owned = Box::new(Owned { buffers, children, _column: column });
    ArrowArray {
        length: length as i64,
        null_count: null_count as i64,
        offset: 0,
        n_buffers: owned.buffers.len() as i64,
        n_children: owned.children.len() as i64,
        buffers: owned.buffers.as_mut_ptr(),
        children: owned.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release),
        private_data: Box::into_raw(owned),
    }
}

/// Frees an array that [`export`] made, and the remaining parts of its children.
///
/// # Safety
///
/// As Arrow specifies, the owner of the array calls this once.
unsafe extern "C" fn release(array: *mut ArrowArray) {
    // SAFETY: the caller owns the array, which `export` made, so its private data came from `Box::into_raw`.
    let (array, owned) = unsafe { (&mut *array, Box::from_raw((*array).private_data)) };
    for &child in &owned.children {
        // SAFETY: `export` made each child with `Box::into_raw`. The receiver may have moved a child's content
        // elsewhere; its `release` is then null, and only the box has to be freed.
        unsafe {
            if let Some(release) = (*child).release {
                release(child);
            }
            drop(Box::from_raw(child));
        }
    }
    array.release = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct of a string `s` and a list of integers `l`.
    const CODE: &[u8] = b"{\x02\0\0\0\x01\0\0\0ss\x01\0\0\0l[8";

    fn empty() -> ArrowArray {
        let mut array = export(Column::new(&schema::parse(CODE).unwrap()));
        unsafe { release(&mut array) };
        array
    }

    #[test]
    fn a_block_is_decoded_and_freed() {
        let data = br#"{"s":"ab","l":[1,2]} x {"l":[3],"s":"c"}"#;
        let (starts, ends) = ([0, 21, 23], [20, 22, data.len() as i64]);
        let mut suspects = [-1; 3];
        let mut array = empty();
        // SAFETY: all pointers and lengths are those of live slices.
        unsafe {
            let decoder = gazette_json_decoder_new(CODE.as_ptr(), CODE.len(), 0);
            let count = gazette_json_decode(
                decoder,
                data.as_ptr(),
                data.len(),
                starts.as_ptr(),
                ends.as_ptr(),
                3,
                &mut array,
                suspects.as_mut_ptr(),
            );
            assert_eq!((count, suspects[0]), (1, 1));
            // The arrays own their memory.
            gazette_json_decoder_free(decoder);
            assert_eq!((array.length, array.n_children, array.null_count), (3, 2, 0));
            let texts = &**array.children;
            assert_eq!((texts.length, texts.null_count, texts.n_buffers), (3, 1, 3));
            let offsets = std::slice::from_raw_parts((*texts.buffers.add(1)).cast::<i32>(), 4);
            assert_eq!(offsets, [0, 2, 2, 3]);
            assert_eq!(std::slice::from_raw_parts(*texts.buffers.add(2), 3), b"abc");
            // A receiver may take a child for itself: it copies the struct and marks the original as released.
            let list = *array.children.add(1);
            let mut moved = ptr::read(list);
            (*list).release = None;
            release(&mut array);
            assert!(array.release.is_none());
            let items = &**moved.children;
            assert_eq!(std::slice::from_raw_parts((*items.buffers.add(1)).cast::<i64>(), 3), [1, 2, 3]);
            release(&mut moved);
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let mut array = empty();
        let (starts, mut suspects) = ([0i64; 2], [0i64; 2]);
        let misaligned = starts.as_ptr().cast::<u8>().wrapping_add(1).cast::<i64>();
        // SAFETY: pointers are valid for their lengths, or refused before they are read.
        unsafe {
            assert!(gazette_json_decoder_new(CODE.as_ptr(), CODE.len() - 1, 0).is_null());
            assert!(gazette_json_decoder_new(ptr::null(), 1, 0).is_null());
            gazette_json_decoder_free(ptr::null_mut());
            let decoder = gazette_json_decoder_new(CODE.as_ptr(), CODE.len(), 0);
            let mut decode = |decoder, starts: *const i64, array| {
                let (data, out) = (b"{}", suspects.as_mut_ptr());
                gazette_json_decode(decoder, data.as_ptr(), 2, starts, starts, 1, array, out)
            };
            assert_eq!(decode(ptr::null(), starts.as_ptr(), &mut array), INVALID);
            assert_eq!(decode(decoder, ptr::null(), &mut array), INVALID);
            assert_eq!(decode(decoder, misaligned, &mut array), INVALID);
            assert_eq!(decode(decoder, starts.as_ptr(), ptr::null_mut()), INVALID);
            let guard = (*decoder).lock().unwrap();
            assert_eq!(decode(decoder, starts.as_ptr(), &mut array), UNUSABLE);
            drop(guard);
            // A panic poisons the lock permanently.
            let _ = catch_unwind(|| {
                let _guard = (*decoder).lock();
                panic!("for the test");
            });
            assert_eq!(decode(decoder, starts.as_ptr(), &mut array), UNUSABLE);
            gazette_json_decoder_free(decoder);
        }
    }
}
