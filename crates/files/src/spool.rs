//! Tensors that wait on disk for the safetensors file that will hold them.

use crate::safetensors::{Numbers, TensorEntry, check, header, order, refuse_twice, write_data};
use candle_core::{DType, Error, Result, Tensor};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Collects the tensors of a safetensors file one at a time, without keeping them in memory: the file begins with a header
/// that names them all, so their numbers wait in a temporary file without a name until the last one is known.
///
/// ```
/// # fn main() -> candle_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("numbers.safetensors");
/// use candle_core::{Device, Tensor};
///
/// let mut spool = gpt2_files::TensorSpool::new(folder.path())?;
/// for i in 0..3u32 {
///     spool.add(&format!("{i}/x"), &Tensor::new(&[i, i], &Device::Cpu)?)?;
/// }
/// spool.write(&path, &[("made by", "an example".to_owned())])?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TensorSpool {
    folder: PathBuf,
    data: BufWriter<File>,
    tensors: Vec<Waiting>,
    length: u64,
    /// A tensor that could not be added: what follows it would lie elsewhere than its place says.
    failed: Option<String>,
}

/// A tensor in the temporary file.
#[derive(Debug)]
struct Waiting {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Its first byte there, and how many it has.
    start: u64,
    bytes: u64,
}

impl TensorSpool {
    /// A spool whose temporary file lies in `folder`; the system removes it with the process.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn new(folder: &Path) -> Result<Self> {
        let data = tempfile::tempfile_in(folder).map_err(|e| Error::from(e).with_path(folder))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            data: BufWriter::new(data),
            tensors: vec![],
            length: 0,
            failed: None,
        })
    }

    /// Adds a tensor of any shape, dtype and device. Its numbers may be NaN or infinite, such as scores of hidden keys.
    ///
    /// # Errors
    /// When the tensor is called `__metadata__` or has a dtype that Candle cannot copy out, and when the disk is full; after that,
    /// [`write`](Self::write) fails.
    pub fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        check(name, tensor.dtype())?;
        let added = write_data(&mut self.data, name, tensor, Numbers::Any);
        if !matches!(added, Ok(Ok(()))) {
            self.failed.get_or_insert_with(|| name.to_owned());
        }
        added?.map_err(|e| Error::from(e).with_path(&self.folder))?;
        let dtype = tensor.dtype();
        let shape = tensor.dims().to_vec();
        let bytes = (tensor.elem_count() * dtype.size_in_bytes()) as u64;
        self.tensors.push(Waiting { name: name.to_owned(), dtype, shape, start: self.length, bytes });
        self.length += bytes;
        Ok(())
    }

    /// Writes all tensors to a safetensors file at `path`: the bytes that [`write_safetensors`](crate::write_safetensors)
    /// writes.
    ///
    /// # Errors
    /// When a tensor could not be added, or two tensors or two metadata entries have the same name, which leaves `path` untouched,
    /// or when `path` cannot be written.
    pub fn write(mut self, path: &Path, metadata: &[(&str, String)]) -> Result<()> {
        if let Some(name) = &self.failed {
            candle_core::bail!(
                "{}: {name} could not be added, so the file would not be whole",
                path.display()
            )
        }
        refuse_twice("tensor", self.tensors.iter().map(|tensor| tensor.name.as_str()))?;
        refuse_twice("metadata entry", metadata.iter().map(|(key, _)| *key))?;
        self.tensors.sort_by(|a, b| order(&a.name, a.dtype).cmp(&order(&b.name, b.dtype)));
        let entries = self.tensors.iter().map(|Waiting { name, dtype, shape, .. }| TensorEntry {
            name,
            dtype: *dtype,
            shape,
        });
        let header = header(entries, metadata)?;
        let failed = |e: io::Error| Error::from(e).with_path(path);
        let data = self.data.into_inner();
        let mut data = data.map_err(|e| Error::from(e.into_error()).with_path(&self.folder))?;
        let mut out = BufWriter::new(File::create(path).map_err(failed)?);
        out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        out.write_all(&header).map_err(failed)?;
        for Waiting { start, bytes, .. } in &self.tensors {
            data.seek(SeekFrom::Start(*start)).map_err(failed)?;
            let copied = io::copy(&mut (&mut data).take(*bytes), &mut out).map_err(failed)?;
            if copied != *bytes {
                let short = io::Error::other("the temporary file is shorter than what was written to it");
                return Err(Error::from(short).with_path(&self.folder));
            }
        }
        out.flush().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_safetensors;
    use candle_core::Device;

    #[test]
    fn a_spool_writes_the_bytes_of_a_file_written_at_once() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let whole = folder.path().join("whole");
        let spooled = folder.path().join("spooled");
        let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
        let wide = x.to_dtype(DType::F64)?;
        let halves = x.to_dtype(DType::F16)?;
        let strided = x.t()?;
        let none = Tensor::zeros((0, 2), DType::F32, &Device::Cpu)?;
        let tensors = [("10/x", &x), ("9/h", &halves), ("2/x", &strided), ("w", &wide), ("none", &none)];
        let metadata = [("model", "m".to_owned()), ("gpt2", "1".to_owned())];
        write_safetensors(&whole, &tensors, &metadata)?;
        let mut spool = TensorSpool::new(folder.path())?;
        for (name, tensor) in tensors {
            spool.add(name, tensor)?;
        }
        assert!(spool.add("__metadata__", &x).is_err());
        spool.write(&spooled, &metadata)?;
        assert_eq!(std::fs::read(&spooled)?, std::fs::read(&whole)?);
        let names: Vec<_> = std::fs::read_dir(folder.path())?.flatten().map(|of| of.file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        Ok(())
    }

    #[test]
    fn names_that_cannot_be_told_apart_are_refused() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("x");
        let mut spool = TensorSpool::new(folder.path())?;
        let x = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
        spool.add("x", &x)?;
        spool.add("x", &x)?;
        let err = spool.write(&path, &[]).expect_err("twice").to_string();
        assert!(err.contains("two tensors") && !path.exists(), "{err}");
        let missing = TensorSpool::new(&folder.path().join("nowhere")).expect_err("no folder").to_string();
        assert!(missing.contains("nowhere"), "{missing}");
        Ok(())
    }
}
