//! The values of a GGUF file's keys, read without trust in any length.

/// What a key says.
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

/// How deep arrays may lie in arrays.
const DEEPEST: u32 = 4;

/// The type numbers of strings and arrays.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// What is left of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
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

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things that take at least `least` bytes each.
    pub(super) fn count(&mut self, what: impl Fn() -> String, least: usize) -> Result<usize, String> {
        let count = self.u64("a number of elements")?;
        let most = self.left() / least;
        let found = usize::try_from(count).ok().filter(|count| *count <= most);
        found.ok_or_else(|| format!("{count} {} do not fit the file, whose rest has room for {most}", what()))
    }

    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|e| format!("{what} is not UTF-8: {e}"))
    }

    /// The value of a key.
    pub(super) fn value(&mut self, key: &str) -> Result<Value<'a>, String> {
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
