//! Parses the types of a block's columns from the code in which Python sends them.
//!
//! The code of a type is one letter and the type's parts; lengths are little-endian:
//!
//! ```text
//! b                      boolean              s                      string
//! 1 2 4 8                integer of as many   D                      date: days, 32 bits
//!                        bytes                t                      timestamp in UTC: microseconds
//! f d                    float, double        n                      timestamp without a zone
//! c precision scale      decimal of 128 bits; a byte each
//! [ type                 list
//! { count fields         struct; count is 32 bits, a field is the length of its name (32 bits), the name
//!                        and its type
//! ```

/// Maximum nesting of types. Reading a value recurses to this depth.
const MAX_DEPTH: usize = 64;

/// The type of a column, or of the values inside it.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    String,
    Date,
    Timestamp { zoned: bool },
    Decimal { precision: u8, scale: u8 },
    List(Box<Type>),
    Struct(Vec<Field>),
}

/// A field of a struct; the columns of a block are the fields of one struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: Vec<u8>,
    pub kind: Type,
}

/// Returns the type of a code; `None` if the code is invalid, or this decoder does not support the type.
pub fn parse(code: &[u8]) -> Option<Type> {
    let mut rest = code;
    let kind = parse_type(&mut rest, 0)?;
    rest.is_empty().then_some(kind)
}

fn parse_type(rest: &mut &[u8], depth: usize) -> Option<Type> {
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match take::<1>(rest)?[0] {
        b'b' => Type::Boolean,
        b'1' => Type::Int8,
        b'2' => Type::Int16,
        b'4' => Type::Int32,
        b'8' => Type::Int64,
        b'f' => Type::Float32,
        b'd' => Type::Float64,
        b's' => Type::String,
        b'D' => Type::Date,
        b't' => Type::Timestamp { zoned: true },
        b'n' => Type::Timestamp { zoned: false },
        b'c' => {
            let [precision, scale] = take::<2>(rest)?;
            if !(1..=38).contains(&precision) || scale > precision {
                return None;
            }
            Type::Decimal { precision, scale }
        }
        b'[' => Type::List(Box::new(parse_type(rest, depth + 1)?)),
        b'{' => {
            let count = take_length(rest)?;
            let mut fields: Vec<Field> = Vec::new();
            for _ in 0..count {
                let length = take_length(rest)?;
                let name = rest.get(..length)?.to_vec();
                *rest = &rest[length..];
                // Names are compared with a record's bytes. A name that JSON writes with an escape would
                // match bytes that are not JSON.
                if name.iter().any(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
                    return None;
                }
                fields.push(Field { name, kind: parse_type(rest, depth + 1)? });
            }
            let mut names: Vec<&[u8]> = fields.iter().map(|field| &field.name[..]).collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) {
                return None;
            }
            Type::Struct(fields)
        }
        _ => return None,
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let taken = rest.get(..N)?.try_into().ok()?;
    *rest = &rest[N..];
    Some(taken)
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(take(rest)?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &[u8], code: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_le_bytes()[..], name, code].concat()
    }

    fn structure(fields: &[Vec<u8>]) -> Vec<u8> {
        [&b"{"[..], &(fields.len() as u32).to_le_bytes(), &fields.concat()].concat()
    }

    #[test]
    fn types_nest() {
        let code = structure(&[field(b"a", b"[c\x0a\x02"), field("é".as_bytes(), &structure(&[]))]);
        let decimal = Type::Decimal { precision: 10, scale: 2 };
        let expected = Type::Struct(vec![
            Field { name: b"a".to_vec(), kind: Type::List(Box::new(decimal)) },
            Field { name: "é".as_bytes().to_vec(), kind: Type::Struct(vec![]) },
        ]);
        assert_eq!(parse(&code), Some(expected));
        for end in 0..code.len() {
            assert_eq!(parse(&code[..end]), None);
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let mut codes = vec![b"x".to_vec(), b"ss".to_vec(), b"c\x27\x00".to_vec(), b"c\x02\x03".to_vec()];
        codes.extend([&b"a\"b"[..], b"a\\", b"\x01"].map(|name| structure(&[field(name, b"s")])));
        codes.push(structure(&[field(b"a", b"s"), field(b"b", b"s"), field(b"a", b"8")]));
        codes.push([vec![b'['; MAX_DEPTH + 1], b"s".to_vec()].concat());
        codes.push(b"{\xff\xff\xff\xff".to_vec());
        for code in codes {
            assert_eq!(parse(&code), None, "{code:?}");
        }
        assert!(parse(&[vec![b'['; MAX_DEPTH], b"s".to_vec()].concat()).is_some());
    }
}
