//! [`Header`]: everything in a GGUF file but the tensors' data.

use super::value::{Cursor, Value};
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
    /// Where the data starts.
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
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let mut file = Cursor::new(bytes);
        let (magic, version) = (file.u32("the magic number")?.to_le_bytes(), file.u32("the version")?);
        if magic != MAGIC {
            return Err(format!("it begins with {magic:?}; expected \"GGUF\""));
        }
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 2 | 3) => {
                return Err("it was written for big-endian machines; expected a little-endian file".into());
            }
            _ => return Err(format!("version {version} is not supported; expected 3 or 2")),
        }
        let tensor_count = file.u64("the number of tensors")?;
        // A key takes at least its length, its type and a byte; a tensor its name's length, a number of dimensions, a type
        // and an offset.
        let key_count = file.count(|| "keys".into(), 8 + 4 + 1)?;
        let mut values = BTreeMap::new();
        for _ in 0..key_count {
            let key = file.text("a key")?;
            if key.len() > LONGEST_KEY {
                return Err(format!("a key has {} bytes; expected at most {LONGEST_KEY}", key.len()));
            }
            let value = file.value(key)?;
            if values.insert(key, value).is_some() {
                return Err(format!("key {key:?} occurs twice"));
            }
        }
        let most = (bytes.len() - file.at()) / (8 + 4 + 4 + 8);
        let tensor_count =
            usize::try_from(tensor_count).ok().filter(|count| *count <= most).ok_or_else(|| {
                format!("{tensor_count} tensors do not fit the file, whose rest has room for {most}")
            })?;
        let (mut tensors, mut names) = (vec![], BTreeSet::new());
        for _ in 0..tensor_count {
            let tensor = tensor(&mut file)?;
            if !names.insert(tensor.name) {
                return Err(format!("tensor {:?} occurs twice", tensor.name));
            }
            tensors.push(tensor);
        }
        let data = file.at().next_multiple_of(alignment(&values)?);
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
    let (kind, offset) = (file.u32(name)?, file.u64(name)?);
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
