//! A model written as a GGUF file. It writes a file and runs no model, so it is functions of its own instead of a
//! [`Study`](crate::studies::study::Study).

use crate::observer::Observer;
use crate::open::{checkpoint, open_tokenizer};
use crate::spelling::Spelling;
use anyhow::{Context, anyhow, bail};
use gpt2_files::atomic;
use gpt2_loader::{Checkpoint, Encoding, Files, GgufType, LoadError, Source, Tokenizer, save_gguf};
use gpt2_model::parameters::WPE;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The file that was written.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// The file.
    pub file: PathBuf,
    /// The type of the weights.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The file's size.
    pub bytes: u64,
    /// The number of parameters.
    pub parameters: u64,
    /// The file's size for each parameter.
    pub bits_per_parameter: f64,
    /// The number of weight tensors in each format.
    pub weights: BTreeMap<String, usize>,
    /// Why there are formats that the type does not name; empty if there are none.
    #[serde(skip)]
    pub because: String,
}

/// The numbers in a block of `q4_K` or `q6_K`.
const LARGE_BLOCK: usize = 256;

/// A model that is about to be written as a GGUF file.
#[derive(Debug)]
pub struct Quantizing {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    kind: GgufType,
}

/// Refuses a name by which nothing would know the format.
///
/// # Errors
/// When it does not end in `.gguf`.
pub fn check_name(out: &Path, spelling: Spelling) -> anyhow::Result<()> {
    if out.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
        return Ok(());
    }
    let knows = match spelling {
        Spelling::Flags => "every command",
        Spelling::Keywords => "Model.load",
    };
    let given = spelling.given("out", out.display());
    bail!("{given}: expected a name that ends in .gguf, by which {knows} knows the format")
}

impl Quantizing {
    /// Opens the model of these files.
    ///
    /// # Errors
    /// When it is quantized already, or has no tokenizer.
    pub fn new(files: &Files, kind: GgufType, observer: &dyn Observer) -> anyhow::Result<Self> {
        let checkpoint = checkpoint(files, observer)?;
        if let Some(format) = checkpoint.formats().first() {
            bail!(
                "{}: is quantized already ({format}), and quantizing it again would lose more precision; start from the original",
                checkpoint.name()
            );
        }
        let tokenizer =
            open_tokenizer(files, checkpoint.config().vocab_size, observer).map_err(no_tokenizer)?;
        Ok(Self { checkpoint, tokenizer, kind })
    }

    /// Writes the file at `path`, which is to become `out`.
    ///
    /// # Errors
    /// When it cannot be written, or reads otherwise than it was written.
    pub fn write(&self, path: &Path, out: &Path, observer: &dyn Observer) -> anyhow::Result<Report> {
        let Self { checkpoint, tokenizer, kind } = self;
        save_gguf(path, checkpoint, tokenizer, *kind, &mut |done, all, name| {
            observer.figures(name);
            // The last step is to read it back.
            observer.step("tensors", done as u64, Some(all as u64 + 1))
        })?;
        let weights = weights_of(path)?;
        observer.step("tensors", 1, Some(1))?;
        let bytes = std::fs::metadata(path)?.len();
        let parameters = checkpoint.audit().parameter_count;
        Ok(Report {
            model: checkpoint.name().to_string(),
            file: out.to_path_buf(),
            kind: kind.as_str(),
            bytes,
            parameters,
            bits_per_parameter: 8.0 * bytes as f64 / parameters as f64,
            weights,
            because: because(*kind, checkpoint.config().n_embd),
        })
    }
}

/// Writes the model of these files as the GGUF file `out`, whole or not at all.
///
/// # Errors
/// See [`Quantizing::new`] and [`Quantizing::write`], and when the file is there already or is one of the model's.
pub fn quantize(
    files: &Files,
    kind: GgufType,
    out: &Path,
    overwrite: bool,
    spelling: Spelling,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    check_name(out, spelling)?;
    let given = spelling.given("out", out.display());
    if let Ok(place) = out.canonicalize()
        && files.paths()?.iter().any(|input| input.canonicalize().is_ok_and(|input| input == place))
    {
        bail!("{given}: is a file of the model that is read; choose another name");
    }
    if out.symlink_metadata().is_ok() && !overwrite {
        let overwrite = spelling.switch("overwrite");
        bail!("{given}: is there already; choose another name, or replace it with {overwrite}");
    }
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        let none = io::Error::from(io::ErrorKind::NotFound);
        return Err(anyhow::Error::from(none).context(format!("there is no folder {}", folder.display())));
    }
    let quantizing = Quantizing::new(files, kind, observer)?;
    let mut report = None;
    atomic::write(out, |temporary| {
        report = Some(quantizing.write(temporary, out, observer)?);
        anyhow::Ok(())
    })?;
    report.context("the file was not written")
}

/// Counts the tensors of more than one dimension in each format of a GGUF file. Positions, in f32 in every type, are
/// not counted.
fn weights_of(path: &Path) -> anyhow::Result<BTreeMap<String, usize>> {
    let written = Checkpoint::open(&Source::Gguf(path.into()).open()?)?;
    let mut weights = BTreeMap::new();
    for (_, tensor) in written.tensors().filter(|(name, of)| of.shape.len() > 1 && *name != WPE) {
        let format = match tensor.dtype {
            Encoding::Blocks(format) => format.as_str().to_owned(),
            other => other.to_string().to_lowercase(),
        };
        *weights.entry(format).or_default() += 1;
    }
    Ok(weights)
}

/// Explains formats that the file's type does not name: rows of `width` numbers may not divide into large blocks.
fn because(kind: GgufType, width: usize) -> String {
    let (need, instead) = match kind {
        GgufType::Q4_0 => ("Q6_K needs", "the output projection got Q8_0"),
        GgufType::Q4KM => ("Q4_K and Q6_K need", "the others got Q5_0 and Q8_0"),
        _ => return String::new(),
    };
    if width.is_multiple_of(LARGE_BLOCK) {
        return String::new();
    }
    format!("; {need} rows whose length is a multiple of {LARGE_BLOCK}; {instead}")
}

/// The error in words that fit: ids are no way out, since the file holds the tokenizer.
fn no_tokenizer(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::NoTokenizer { name, vocab_size } => anyhow!(
            "{name}: no tokenizer here, and a GGUF file holds one; put its tokenizer.json, or vocab.json with merges.txt, into \
             the folder (a vocabulary of {vocab_size} is not GPT-2's own 50257)"
        ),
        LoadError::OtherTokenizer { name, reason, remedy } => {
            anyhow!("{name}: tokenizer: {reason}; a GGUF file holds the tokenizer: {remedy}")
        }
        other => other.into(),
    }
}
