//! Values of many tokens in a folder: shards of a bounded size, and an index that says what they hold.
//!
//! ```text
//! FOLDER/store.json          what the shards hold, what made them, and, once all are there, how many tokens each has
//! FOLDER/00000.safetensors   values by name (tokens, ..), ids, documents, positions (tokens)
//! FOLDER/00001.safetensors   and so on
//! ```
//!
//! A shard is there whole or not at all, so that a run which was interrupted goes on with those that are missing.

use crate::{Error, atomic, read_text, read_whole, write_safetensors};
use candle_core::{Device, Result, Tensor};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The name of a store's index.
pub const INDEX: &str = "store.json";
/// Far more than an index takes.
const LONGEST_INDEX: u64 = 1 << 28;

/// The content of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreIndex {
    /// The names of the values.
    pub values: Vec<String>,
    /// The facts of how the store was made, as its maker wants them.
    pub facts: serde_json::Value,
    /// The number of tokens of each shard; `None` while shards are missing.
    pub shards: Option<Vec<usize>>,
}

/// A shard: values of tokens, one after another.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The value of each name, (tokens, ..), in the order of the index.
    pub values: Vec<Tensor>,
    /// The tokens, u32 (tokens).
    pub ids: Tensor,
    /// The document that each token is of, counted from 0, u32 (tokens).
    pub documents: Tensor,
    /// The position of each token in its document, counted from 0, u32 (tokens).
    pub positions: Tensor,
}

/// Writes a store.
#[derive(Debug)]
pub struct StoreWriter {
    folder: PathBuf,
    index: StoreIndex,
}

impl StoreWriter {
    /// Starts a store in a folder, which is made if it is missing, or goes on with one of the same index.
    ///
    /// # Errors
    /// When the folder holds shards of another index, which the error says, or cannot be written to.
    pub fn new(folder: &Path, values: Vec<String>, facts: serde_json::Value) -> Result<Self> {
        let index = StoreIndex { values, facts, shards: None };
        std::fs::create_dir_all(folder).map_err(|e| candle_core::Error::from(e).with_path(folder))?;
        if folder.join(INDEX).exists() {
            let found = read_index(folder)?;
            let Some(difference) = difference(&found, &index) else {
                return Ok(Self { folder: folder.to_path_buf(), index: found });
            };
            // One that holds nothing yet can be of other values.
            if has_shards(folder) {
                candle_core::bail!(
                    "{}: holds values that were made otherwise: {difference}; name another folder, or make the same again",
                    folder.display()
                )
            }
        }
        let writer = Self { folder: folder.to_path_buf(), index };
        writer.write_index()?;
        Ok(writer)
    }

    /// The metadata that a shard was written with; `None` if it is not there, or not whole.
    #[must_use]
    pub fn metadata(&self, number: usize) -> Option<HashMap<String, String>> {
        crate::safetensors::metadata(&shard_path(&self.folder, number)).ok().flatten()
    }

    /// Writes a shard, whole or not at all.
    ///
    /// # Errors
    /// When there is not a value for each name, a value has another number of tokens, one is NaN or infinite, or the disk is full.
    pub fn add(&self, number: usize, shard: &Shard, metadata: &[(&str, String)]) -> Result<()> {
        let tokens = shard.ids.dims1()?;
        let mut tensors: Vec<(&str, &Tensor)> = vec![];
        if shard.values.len() != self.index.values.len() {
            candle_core::bail!(
                "shard {number}: {} values for {} names",
                shard.values.len(),
                self.index.values.len()
            )
        }
        tensors.extend(self.index.values.iter().map(String::as_str).zip(&shard.values));
        tensors.extend([
            ("ids", &shard.ids),
            ("documents", &shard.documents),
            ("positions", &shard.positions),
        ]);
        if let Some((name, tensor)) =
            tensors.iter().find(|(_, tensor)| tensor.dims().first() != Some(&tokens))
        {
            candle_core::bail!("shard {number}: {name} is {:?}, expected {tokens} tokens", tensor.dims())
        }
        let path = shard_path(&self.folder, number);
        atomic::write(&path, |temporary| write_safetensors(temporary, &tensors, metadata)).map_err(candle)
    }

    /// Says that all shards are there, with the number of tokens of each.
    ///
    /// # Errors
    /// When one is missing, there is one more, or the index cannot be written.
    pub fn finish(mut self, shards: Vec<usize>) -> Result<()> {
        if let Some(number) = (0..shards.len()).find(|&number| self.metadata(number).is_none()) {
            candle_core::bail!("{}: shard {number} is missing", self.folder.display())
        }
        let beyond = shard_path(&self.folder, shards.len());
        if beyond.exists() {
            candle_core::bail!(
                "{}: is of a longer corpus than this one, which ends before it; name another folder",
                beyond.display()
            )
        }
        self.index.shards = Some(shards);
        self.write_index()
    }

    fn write_index(&self) -> Result<()> {
        let mut bytes = serde_json::to_vec_pretty(&self.index).map_err(candle_core::Error::wrap)?;
        bytes.push(b'\n');
        atomic::write_bytes(&self.folder.join(INDEX), &bytes).map_err(candle)
    }
}

/// Reads a store.
///
/// ```no_run
/// # fn main() -> candle_core::Result<()> {
/// let store = gpt2_files::Store::open("activations".as_ref())?;
/// for batch in store.shuffled(&store.index().values[0], 4096, 7)? {
///     let batch = batch?; // (4096, ..), in an order that the seed decides
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    index: StoreIndex,
    shards: Vec<usize>,
}

/// The number of shards that [`Store::shuffled`] mixes at a time: more mix better, and take more memory.
const MIXED: usize = 4;

impl Store {
    /// Opens a store whose shards are all there.
    ///
    /// # Errors
    /// When the folder holds none, or one with shards missing.
    pub fn open(folder: &Path) -> Result<Self> {
        let index = read_index(folder)?;
        let Some(shards) = index.shards.clone() else {
            candle_core::bail!(
                "{}: shards are missing: the run that writes them has not finished",
                folder.display()
            )
        };
        Ok(Self { folder: folder.to_path_buf(), index, shards })
    }

    /// The store's index.
    #[must_use]
    pub fn index(&self) -> &StoreIndex {
        &self.index
    }

    /// The number of shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether there is no shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The number of tokens in all shards.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.shards.iter().sum()
    }

    /// A shard, on the CPU.
    ///
    /// # Errors
    /// When there is none of this number, it cannot be read, or it is damaged.
    pub fn shard(&self, number: usize) -> Result<Shard> {
        let Some(&tokens) = self.shards.get(number) else {
            candle_core::bail!(
                "{}: there is no shard {number}, expected 0 to {}",
                self.folder.display(),
                self.shards.len()
            )
        };
        let path = shard_path(&self.folder, number);
        let damaged = |reason: String| {
            candle_core::Error::Msg(format!(
                "{}: {reason}; remove it, and record the same again to have it back",
                path.display()
            ))
        };
        // A file of another size than its own header says is not read whole: it may be of any size.
        if crate::safetensors::metadata(&path).is_ok_and(|found| found.is_none()) {
            return Err(damaged("ends elsewhere than its header says, or is no safetensors file".into()));
        }
        // Why a file cannot be read, such as for want of memory, says nothing about what it holds.
        let bytes = read_whole(&path).map_err(|error| candle(Error::at(&path)(error)))?;
        let mut found: HashMap<String, Tensor> = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
            .map_err(|error| damaged(error.to_string()))?;
        let mut take = |name: &str| match found.remove(name) {
            Some(tensor) if tensor.dims().first() == Some(&tokens) => Ok(tensor),
            Some(tensor) => Err(damaged(format!("{name} is {:?}, expected {tokens} tokens", tensor.dims()))),
            None => Err(damaged(format!("has no {name}"))),
        };
        Ok(Shard {
            values: self.index.values.iter().map(|name| take(name)).collect::<Result<_>>()?,
            ids: take("ids")?,
            documents: take("documents")?,
            positions: take("positions")?,
        })
    }

    /// The file of the shard with the largest number of a value, and its size: NaN and infinity count as infinite. `None` if no
    /// shard can be read.
    #[must_use]
    pub fn largest(&self, value: &str) -> Option<(PathBuf, f64)> {
        let place = self.index.values.iter().position(|name| name == value)?;
        let size = |number: usize| -> Result<f64> {
            let values = self.shard(number)?.values.swap_remove(place);
            let all = values.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()?;
            let size = |x: f64| if x.is_nan() { f64::INFINITY } else { x.abs() };
            Ok(all.into_iter().map(size).fold(0.0, f64::max))
        };
        let sizes = (0..self.len()).filter_map(|number| Some((number, size(number).ok()?)));
        let (number, size) = sizes.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some((shard_path(&self.folder, number), size))
    }

    /// The rows of a value in an order that the seed decides, `rows` at a time; the last batch may have fewer. The shards come in a
    /// random order, and the rows of a few of them are mixed.
    ///
    /// # Errors
    /// When the store has no value of this name, or `rows` is 0. The batches give those of damaged shards.
    pub fn shuffled(
        &self,
        value: &str,
        rows: usize,
        seed: u64,
    ) -> Result<impl Iterator<Item = Result<Tensor>>> {
        let Some(place) = self.index.values.iter().position(|name| name == value) else {
            candle_core::bail!("there is no {value}: the store has {}", self.index.values.join(", "))
        };
        if rows == 0 {
            candle_core::bail!("a batch needs at least one row")
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.shuffle(&mut rng);
        let mut groups = order.chunks(MIXED).map(<[usize]>::to_vec).collect::<Vec<_>>().into_iter();
        // Rows that wait, mixed.
        let mut waiting: Option<Tensor> = None;
        Ok(std::iter::from_fn(move || {
            let mut next = || -> Result<Option<Tensor>> {
                while waiting.as_ref().map_or(Ok(0), |rows| rows.dim(0))? < rows {
                    let Some(group) = groups.next() else { break };
                    let mut all: Vec<Tensor> = waiting.take().into_iter().collect();
                    for shard in group {
                        all.push(self.shard(shard)?.values.swap_remove(place));
                    }
                    let all = Tensor::cat(&all, 0)?;
                    let count = u32::try_from(all.dim(0)?).map_err(candle_core::Error::wrap)?;
                    let mut order: Vec<u32> = (0..count).collect();
                    order.shuffle(&mut rng);
                    waiting = Some(all.index_select(&Tensor::new(order, &Device::Cpu)?, 0)?);
                }
                let Some(all) = waiting.take() else { return Ok(None) };
                let count = all.dim(0)?;
                if count == 0 {
                    return Ok(None);
                }
                let taken = rows.min(count);
                waiting = (taken < count).then(|| all.narrow(0, taken, count - taken)).transpose()?;
                all.narrow(0, 0, taken).map(Some)
            };
            next().transpose()
        }))
    }
}

/// Tells where the second index differs from the first.
fn difference(first: &StoreIndex, second: &StoreIndex) -> Option<String> {
    if (&first.values, &first.facts) == (&second.values, &second.facts) {
        return None;
    }
    if first.values != second.values {
        return Some(format!("{} there, {} here", first.values.join(", "), second.values.join(", ")));
    }
    let facts = |index: &StoreIndex| index.facts.as_object().cloned().unwrap_or_default();
    let first = facts(first);
    let second = facts(second);
    let Some(name) = first.keys().chain(second.keys()).find(|name| first.get(*name) != second.get(*name))
    else {
        return Some("what made them is told otherwise".to_owned());
    };
    let shown = |facts: &serde_json::Map<String, serde_json::Value>| {
        facts.get(name).map_or_else(|| "missing".to_owned(), ToString::to_string)
    };
    Some(format!("{name} is {} there, {} here", shown(&first), shown(&second)))
}

fn has_shards(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|end| end == "safetensors"))
}

fn shard_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number:05}.safetensors"))
}

fn read_index(folder: &Path) -> Result<StoreIndex> {
    let path = folder.join(INDEX);
    let text = read_text(&path, LONGEST_INDEX).map_err(|e| candle(Error::at(&path)(e)))?;
    serde_json::from_str(&text).map_err(|error| {
        candle_core::Error::Msg(format!("{}: is not the index of a store: {error}", path.display()))
    })
}

fn candle(error: Error) -> candle_core::Error {
    candle_core::Error::Msg(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shard(first: u32, tokens: u32) -> Result<Shard> {
        let ids = Tensor::arange(first, first + tokens, &Device::Cpu)?;
        let value = ids.to_dtype(candle_core::DType::F32)?.unsqueeze(1)?;
        Ok(Shard { values: vec![value], documents: ids.zeros_like()?, positions: ids.clone(), ids })
    }

    fn store(folder: &Path, shards: u32) -> Result<StoreWriter> {
        let writer = StoreWriter::new(folder, vec!["x".to_owned()], json!({ "model": "m" }))?;
        for number in 0..shards {
            writer.add(number as usize, &shard(10 * number, 10)?, &[("tokens", "10".to_owned())])?;
        }
        Ok(writer)
    }

    #[test]
    fn what_is_written_is_read_once_each_in_the_order_of_the_seed() -> Result<()> {
        let folder = tempfile::tempdir()?;
        store(folder.path(), 11)?.finish(vec![10; 11])?;
        let store = Store::open(folder.path())?;
        assert_eq!((store.len(), store.tokens(), &store.index().facts["model"]), (11, 110, &json!("m")));
        assert_eq!(store.shard(3)?.ids.to_vec1::<u32>()?, (30..40).collect::<Vec<_>>());
        let rows = |seed: u64| -> Result<Vec<f32>> {
            let mut all = vec![];
            for batch in store.shuffled("x", 7, seed)? {
                let batch = batch?.flatten_all()?.to_vec1::<f32>()?;
                assert!(batch.len() == 7 || all.len() + batch.len() == 110);
                all.extend(batch);
            }
            Ok(all)
        };
        let once = rows(1)?;
        let other = rows(2)?;
        assert_eq!(once, rows(1)?);
        assert_ne!(once, other);
        for mut rows in [once, other] {
            assert!(!rows.is_sorted());
            rows.sort_by(f32::total_cmp);
            assert_eq!(rows, (0..110u16).map(f32::from).collect::<Vec<_>>());
        }
        assert!(
            store.shuffled("y", 7, 1).map(drop).expect_err("no y").to_string().contains("the store has x")
        );
        assert!(store.shuffled("x", 0, 1).map(drop).is_err());
        Ok(())
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        assert!(Store::open(path).expect_err("no index").to_string().contains("store.json"));
        let writer = store(path, 2)?;
        assert!(Store::open(path).expect_err("unfinished").to_string().contains("shards are missing"));
        assert!(writer.metadata(2).is_none());
        assert_eq!(writer.metadata(1).expect("shard 1")["tokens"], "10");
        let other = StoreWriter::new(path, vec!["x".to_owned()], json!({ "model": "n" }));
        let error = other.expect_err("another model").to_string();
        assert!(error.contains("made otherwise: model is \"m\" there, \"n\" here"), "{error}");
        let short = store(path, 0)?.finish(vec![10]);
        assert!(short.expect_err("one more").to_string().contains("longer corpus"));
        assert!(
            store(path, 0)?
                .finish(vec![10; 3])
                .expect_err("2 shards")
                .to_string()
                .contains("shard 2 is missing")
        );
        writer.finish(vec![10, 10])?;
        let shard = path.join("00001.safetensors");
        let bytes = std::fs::read(&shard)?;
        for (damaged, says) in [(&bytes[..bytes.len() - 1], "00001"), (&b"x"[..], "record the same again")] {
            std::fs::write(&shard, damaged)?;
            assert!(store(path, 0)?.metadata(1).is_none());
            let error = Store::open(path)?.shard(1).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        // A file that is far longer than it says is not read.
        std::fs::write(&shard, &bytes)?;
        std::fs::File::options().write(true).open(&shard)?.set_len(1 << 42)?;
        let error = Store::open(path)?.shard(1).expect_err("too long").to_string();
        assert!(error.contains("ends elsewhere than its header says"), "{error}");
        std::fs::write(path.join("store.json"), "{}")?;
        assert!(Store::open(path).expect_err("no index").to_string().contains("not the index"));
        Ok(())
    }
}
