//! [`Header`]: everything in a GGUF file but the tensors' data, read without trust in any length.

use crate::error::refusal::Refusal;
use std::collections::{BTreeMap, BTreeSet};

const MAGIC: [u8; 4] = *b"GGUF";

/// The alignment of the data if no key gives another.
pub(crate) const ALIGNMENT: usize = 32;

/// The largest alignment that any file could need.
const LARGEST_ALIGNMENT: i128 = 1 << 20;

/// The most bytes of a key, by the format's own rule.
const LONGEST_KEY: usize = 65_535;

/// The most dimensions of a tensor.
const MOST_DIMS: u32 = 4;

/// The keys and the tensors of a file.
pub(super) struct Header<'a> {
    pub(super) values: BTreeMap<&'a str, Value<'a>>,
    pub(super) tensors: Vec<Tensor<'a>>,
    /// The offset of the tensors' data in the file.
    pub(super) data: usize,
}

/// A tensor as the file describes it.
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    /// The last dimension first.
    pub(super) dims: Vec<usize>,
    pub(super) kind: u32,
    /// Counted from the start of the data.
    pub(super) offset: u64,
}

impl<'a> Header<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let mut file = Cursor::new(bytes);
        let magic = file.u32("the magic number")?.to_le_bytes();
        let version = file.u32("the version")?;
        if magic != MAGIC {
            return Err(format!("it begins with {magic:?}; expected \"GGUF\"").into());
        }
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 2 | 3) => {
                return Err(Refusal::Unread(
                    "a GGUF file for big-endian machines; expected a little-endian one, which `gguf-convert-endian FILE little` of \
                     Python's package gguf makes of it"
                        .into(),
                ));
            }
            1 => {
                return Err(Refusal::Unread(
                    "a GGUF file of version 1, of August 2023; expected version 2 or 3: convert the original weights again".into(),
                ));
            }
            // A number like that of a later version, not of chance.
            4..=99 => {
                return Err(Refusal::Unread(format!(
                    "a GGUF file of version {version}; expected 2 or 3, the versions that this program knows"
                )));
            }
            _ => return Err(format!("version {version} is not supported; expected 3 or 2").into()),
        }
        let tensor_count = file.u64("the number of tensors")?;
        // A key takes at least its length, its type and a byte; a tensor its name's length, a number of dimensions, a type
        // and an offset.
        let key_count = file.count(|| "keys".into(), 8 + 4 + 1)?;
        let mut values = BTreeMap::new();
        for _ in 0..key_count {
            let key = file.text("a key")?;
            if key.len() > LONGEST_KEY {
                return Err(format!("a key has {} bytes; expected at most {LONGEST_KEY}", key.len()).into());
            }
            let value = file.value(key)?;
            if values.insert(key, value).is_some() {
                return Err(format!("key {key:?} occurs twice").into());
            }
        }
        let most = (bytes.len() - file.at) / (8 + 4 + 4 + 8);
        let tensor_count =
            usize::try_from(tensor_count).ok().filter(|count| *count <= most).ok_or_else(|| {
                format!("{tensor_count} tensors do not fit the file, whose rest has room for {most}")
            })?;
        let mut tensors = vec![];
        let mut names = BTreeSet::new();
        for _ in 0..tensor_count {
            let tensor = tensor(&mut file)?;
            if !names.insert(tensor.name) {
                return Err(format!("tensor {:?} occurs twice", tensor.name).into());
            }
            tensors.push(tensor);
        }
        let data = file.at.next_multiple_of(alignment(&values)?);
        Ok(Self { values, tensors, data })
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.values.get(key)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{key}: expected a string")),
        }
    }

    /// A number that is not negative.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(n)) => match usize::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(format!("{key}: {n} is not a number from 0 on")),
            },
            Some(_) => Err(format!("{key}: expected an integer")),
        }
    }
}

fn tensor<'a>(file: &mut Cursor<'a>) -> Result<Tensor<'a>, String> {
    let name = file.text("the name of a tensor")?;
    let rank = file.u32(name)?;
    if rank > MOST_DIMS {
        return Err(format!("{name}: {rank} dimensions; expected at most {MOST_DIMS}"));
    }
    let mut dims = vec![];
    for _ in 0..rank {
        let dim = file.u64(name)?;
        dims.push(usize::try_from(dim).map_err(|_| format!("{name}: a dimension of {dim}"))?);
    }
    let kind = file.u32(name)?;
    let offset = file.u64(name)?;
    Ok(Tensor { name, dims, kind, offset })
}

fn alignment(values: &BTreeMap<&str, Value>) -> Result<usize, String> {
    match values.get("general.alignment") {
        None => Ok(ALIGNMENT),
        Some(Value::Integer(n @ 1..=LARGEST_ALIGNMENT)) if n.count_ones() == 1 => {
            usize::try_from(*n).map_err(|e| e.to_string())
        }
        Some(other) => {
            Err(format!("general.alignment is {other:?}; expected a power of 2 up to {LARGEST_ALIGNMENT}"))
        }
    }
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    List(List<'a>),
}

/// An array, whose elements are read when they are asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct List<'a> {
    kind: u32,
    pub(super) len: usize,
    bytes: &'a [u8],
}

impl<'a> List<'a> {
    /// The elements of an array of strings; `key` names it.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>, String> {
        let mut file = Cursor::new(self.bytes);
        match self.kind {
            TEXT => (0..self.len).map(|_| file.text(key)).collect(),
            _ if self.len == 0 => Ok(vec![]), // some writers give any type
            _ => Err(format!("{key}: expected a list of strings")),
        }
    }

    /// The elements of an array of integers; `key` names it.
    pub(super) fn integers(&self, key: &str) -> Result<Vec<i128>, String> {
        let mut file = Cursor::new(self.bytes);
        let integer = |_| match file.value_of(self.kind, key, 0)? {
            Value::Integer(number) => Ok(number),
            _ => Err(format!("{key}: expected a list of integers")),
        };
        (0..self.len).map(integer).collect()
    }
}

/// The deepest nesting of arrays.
const DEEPEST: u32 = 4;

/// The type numbers of strings and arrays.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Reads a file's bytes in order.
struct Cursor<'a> {
    bytes: &'a [u8],
    /// The number of bytes read so far.
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], String> {
        let found = usize::try_from(count).ok().filter(|count| *count <= self.left());
        let count = found.ok_or_else(|| {
            format!("{what} should take {count} bytes at byte {}, the file has {} more", self.at, self.left())
        })?;
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let taken = self.take(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(taken);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things that take at least `least` bytes each.
    fn count(&mut self, what: impl Fn() -> String, least: usize) -> Result<usize, String> {
        let count = self.u64("a number of elements")?;
        let most = self.left() / least;
        let found = usize::try_from(count).ok().filter(|count| *count <= most);
        found.ok_or_else(|| format!("{count} {} do not fit the file, whose rest has room for {most}", what()))
    }

    fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|e| format!("{what} is not UTF-8: {e}"))
    }

    /// The value of a key.
    fn value(&mut self, key: &str) -> Result<Value<'a>, String> {
        let kind = self.u32(key)?;
        self.value_of(kind, key, 0)
    }

    fn value_of(&mut self, kind: u32, key: &str, depth: u32) -> Result<Value<'a>, String> {
        Ok(match kind {
            TEXT => Value::Text(self.text(key)?),
            ARRAY if depth < DEEPEST => Value::List(self.list(key, depth)?),
            ARRAY => return Err(format!("{key}: arrays lie more than {DEEPEST} deep in arrays")),
            _ => self.scalar(kind, key)?,
        })
    }

    fn scalar(&mut self, kind: u32, key: &str) -> Result<Value<'a>, String> {
        let size = size_of_scalar(kind).ok_or_else(|| format!("{key}: there is no type {kind}"))?;
        let bytes = self.take(size as u64, key)?;
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        let shift = 64 - 8 * size;
        let signed = i128::from((unsigned << shift).cast_signed() >> shift);
        Ok(match kind {
            1 | 3 | 5 | 11 => Value::Integer(signed),
            #[allow(clippy::cast_possible_truncation)] // it has 4 bytes
            6 => Value::Float(f32::from_bits(unsigned as u32).into()),
            7 if unsigned > 1 => return Err(format!("{key}: {unsigned} is not a bool")),
            7 => Value::Bool(unsigned == 1),
            12 => Value::Float(f64::from_bits(unsigned)),
            _ => Value::Integer(unsigned.into()),
        })
    }

    fn list(&mut self, key: &str, depth: u32) -> Result<List<'a>, String> {
        let kind = self.u32(key)?;
        let least = match kind {
            TEXT => 8,
            ARRAY => 12,
            _ => size_of_scalar(kind).ok_or_else(|| format!("{key}: there is no type {kind}"))?,
        };
        let len = self.count(|| format!("elements of {key}"), least)?;
        let first = self.at;
        match kind {
            TEXT => {
                for _ in 0..len {
                    let bytes = self.u64(key)?;
                    self.take(bytes, key)?;
                }
            }
            ARRAY => {
                for _ in 0..len {
                    self.value_of(ARRAY, key, depth + 1)?;
                }
            }
            _ => {
                self.take((len * least) as u64, key)?;
            }
        }
        Ok(List { kind, len, bytes: &self.bytes[first..self.at] })
    }
}

/// The bytes of a number or a bool of this type.
fn size_of_scalar(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}
