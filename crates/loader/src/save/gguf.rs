//! Saves a model as a GGUF file.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::files::Files;
use crate::formats::gguf::END_KEYS;
use crate::formats::gguf_header::ALIGNMENT;
use crate::formats::gguf_types::{GgufType, PlannedTensor, number, plan};
use crate::stored::Encoding;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::list::List;
use candle_core::{DType, Device, Tensor};
use gpt2_model::Config;
use gpt2_model::config::TokenIds;
use half::f16;
use rayon::prelude::*;
use std::io::{BufWriter, Cursor, Seek, Write};
use std::path::Path;

/// Called before each tensor with the number of tensors done, the number of all, and its name; and once at the end. Its
/// error ends the work.
type Progress<'a> = dyn FnMut(usize, usize, &str) -> candle_core::Result<()> + 'a;

/// Writes a checkpoint as a GGUF file of version 3, with its tokenizer, into the file at `path`, and reads it back. The caller
/// chooses a temporary path if an old file is to stay until the new one is whole.
///
/// # Errors
/// For gpt_bigcode and cross-attention; when the config, the tokenizer or the widths are such that GGUF cannot hold them, a weight is not finite or does not fit
/// f16, the file cannot be written, or what is read back differs from what was written.
pub fn save_gguf(
    path: &Path,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    kind: GgufType,
    progress: &mut Progress,
) -> Result<(), LoadError> {
    let create = || std::fs::File::create(path).map(BufWriter::new);
    let (file, written) = Written::new(create, path, checkpoint, tokenizer, kind, progress)?;
    file.into_inner().map_err(std::io::IntoInnerError::into_error).map_err(LoadError::io(path))?;
    progress(written.plan.len(), written.plan.len(), "reading it back").map_err(LoadError::Interrupted)?;
    written.check(&Files::open_gguf(path)?)
}

/// Like [`save_gguf`], but in memory: the file has the model's name and the type, such as `gpt2-q8_0.gguf`.
///
/// # Errors
/// Returns the errors of [`save_gguf`].
pub fn to_gguf(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    kind: GgufType,
    progress: &mut Progress,
) -> Result<Files, LoadError> {
    let base = Path::new(checkpoint.name()).file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{base}-{}.gguf", kind.as_str());
    let create = || Ok(Cursor::new(vec![]));
    let (bytes, written) = Written::new(create, Path::new(&name), checkpoint, tokenizer, kind, progress)?;
    let files = Files::in_memory(checkpoint.name(), [(name, bytes.into_inner())].into())?;
    written.check(&files)?;
    Ok(files)
}

/// The content of a written file, for comparison with what is read back.
struct Written {
    config: Config,
    list: List,
    plan: Vec<PlannedTensor>,
    /// The checksum of each tensor.
    sums: Vec<u32>,
}

/// Zeros up to the next multiple of the alignment.
fn pad(file: &mut (impl Write + Seek)) -> std::io::Result<()> {
    let at = usize::try_from(file.stream_position()?).map_err(std::io::Error::other)?;
    file.write_all(&vec![0; at.next_multiple_of(ALIGNMENT) - at])
}

impl Written {
    /// Writes the file that `create` makes once the model is known to fit one; `path` names it in errors.
    fn new<W: Write + Seek>(
        create: impl FnOnce() -> std::io::Result<W>,
        path: &Path,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        kind: GgufType,
        progress: &mut Progress,
    ) -> Result<(W, Self), LoadError> {
        let refused = |reason: String| LoadError::Gguf { name: checkpoint.name().to_string(), reason };
        checkpoint.check()?;
        let config = checkpoint.config();
        // The head of a model that is meant to be tied may be another table.
        let config = Config { tie_word_embeddings: checkpoint.is_tied()?, ..config.clone() };
        if config.is_bigcode() || config.add_cross_attention {
            let what = if config.is_bigcode() { "gpt_bigcode" } else { "cross-attention" };
            return Err(refused(format!("GGUF files of {what} are not supported; save it as safetensors")));
        }
        let plan = plan(&config, kind).map_err(refused)?;
        let list = tokenizer.list()?;
        let head = header(&config, &list, kind, &plan).map_err(refused)?;
        let mut out = create().map_err(LoadError::io(path))?;
        out.write_all(&head).map_err(LoadError::io(path))?;
        let mut sums = vec![];
        for (i, tensor) in plan.iter().enumerate() {
            progress(i, plan.len(), &tensor.source).map_err(LoadError::Interrupted)?;
            let stored = checkpoint.tensor(&tensor.source, DType::F32, &Device::Cpu)?;
            let data = encode(tensor, &stored, checkpoint.name())?;
            sums.push(crc32fast::hash(&data));
            out.write_all(&data).and_then(|()| pad(&mut out)).map_err(LoadError::io(path))?;
        }
        Ok((out, Self { config, list, plan, sums }))
    }

    /// Compares a file with what was written to it: the config, the tokenizer, and the tensors with their checksums.
    fn check(&self, files: &Files) -> Result<(), LoadError> {
        let Self { config, list, plan, sums } = self;
        let differs = |what: &str| LoadError::Gguf {
            name: files.name.clone(),
            reason: format!("{what} is not read back as it was written"),
        };
        let written = Checkpoint::open(files)?;
        written.check()?;
        let sizes = |c: &Config| (c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.inner_dim());
        if sizes(written.config()) != sizes(config)
            || written.config().tie_word_embeddings != config.tie_word_embeddings
        {
            return Err(differs("the config"));
        }
        for (tensor, sum) in plan.iter().zip(sums) {
            let same = written.stored(&tensor.source).is_some_and(|stored| {
                let data = stored.bytes.get(stored.range.clone());
                stored.info.dtype == tensor.encoding && data.is_some_and(|data| crc32fast::hash(data) == *sum)
            });
            if !same {
                return Err(differs(&tensor.name));
            }
        }
        let again = Tokenizer::open(files, config.vocab_size)?.list()?;
        let tokens = list.tokens.iter().zip(&again.tokens);
        let same_tokens = tokens.filter(|(token, _)| token.is_some()).all(|(token, again)| token == again);
        if !same_tokens || again.merges != list.merges {
            return Err(differs("the tokenizer"));
        }
        Ok(())
    }
}

/// A tensor as the file holds it.
fn encode(planned: &PlannedTensor, tensor: &Tensor, name: &str) -> Result<Vec<u8>, LoadError> {
    let tensor = if planned.transposed { tensor.t() } else { Ok(tensor.clone()) };
    let numbers = tensor
        .and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>())
        .map_err(|source| LoadError::Tensor { name: name.to_string(), source })?;
    // The scales of blocks are also in f16.
    let limit = match planned.encoding {
        Encoding::Plain(safetensors::Dtype::F32) => f32::MAX,
        _ => f16::MAX.to_f32(),
    };
    if let Some(x) = numbers.par_iter().find_first(|x| x.abs() > limit || x.is_nan()) {
        return Err(LoadError::NotSavable {
            parameter: planned.source.clone(),
            value: f64::from(*x),
            format: planned.encoding.to_string().to_lowercase(),
            most: f64::from(limit),
            remedy: "keep the model as safetensors",
        });
    }
    match planned.encoding {
        Encoding::Plain(safetensors::Dtype::F16) => {
            let halves: Vec<f16> = numbers.par_iter().map(|x| f16::from_f32(*x)).collect();
            Ok(halves.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Encoding::Blocks(format) => {
            let row = planned.dims.first().copied().unwrap_or(1);
            let rows: Vec<Vec<u8>> = numbers.par_chunks(row).map(|row| format.quantize(row)).collect();
            Ok(rows.concat())
        }
        _ => Ok(numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
    }
}

/// Everything before the data, padded.
fn header(config: &Config, list: &List, kind: GgufType, plan: &[PlannedTensor]) -> Result<Vec<u8>, String> {
    let small = |n: usize| u32::try_from(n).map_err(|_| format!("{n} does not fit 32 bits"));
    let mut keys = Keys::default();
    keys.text("general.architecture", "gpt2");
    keys.u32("general.file_type", kind.number());
    keys.u32("general.quantization_version", 2);
    keys.u32("gpt2.block_count", small(config.n_layer)?);
    keys.u32("gpt2.context_length", small(config.n_positions)?);
    keys.u32("gpt2.embedding_length", small(config.n_embd)?);
    keys.u32("gpt2.feed_forward_length", small(config.n_inner.unwrap_or(4 * config.n_embd))?);
    keys.u32("gpt2.attention.head_count", small(config.n_head)?);
    #[allow(clippy::cast_possible_truncation)] // as llama.cpp reads it
    keys.f32("gpt2.attention.layer_norm_epsilon", config.layer_norm_epsilon as f32);
    tokenizer(&mut keys, config, list)?;

    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((plan.len() as u64).to_le_bytes());
    out.extend(keys.count.to_le_bytes());
    out.extend(keys.bytes);
    let mut offset = 0;
    for tensor in plan {
        put_text(&mut out, &tensor.name);
        out.extend(small(tensor.dims.len())?.to_le_bytes());
        tensor.dims.iter().for_each(|dim| out.extend((*dim as u64).to_le_bytes()));
        let kind =
            number(tensor.encoding).ok_or_else(|| format!("{} has no type in GGUF", tensor.encoding))?;
        out.extend(kind.to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes.next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    Ok(out)
}

/// llama.cpp's types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

fn tokenizer(keys: &mut Keys, config: &Config, list: &List) -> Result<(), String> {
    let v = config.vocab_size;
    if list.tokens.len() > v {
        return Err(format!("the tokenizer has {} tokens, the model only {v}", list.tokens.len()));
    }
    let token = |id: usize| list.tokens.get(id).and_then(Option::as_deref);
    let kind = |id: usize| match list.added.iter().find(|(added, _)| *added as usize == id) {
        Some((_, true)) => CONTROL,
        Some((_, false)) => USER_DEFINED,
        None if token(id).is_none() => UNUSED,
        None => NORMAL,
    };
    let in_vocabulary = |id: &u32| (*id as usize) < v;
    let given = config.eos_token_id.as_ref().map_or(&[][..], TokenIds::as_slice);
    let mut ends: Vec<u32> = given.iter().copied().filter(in_vocabulary).collect();
    if ends.len() > END_KEYS.len() {
        return Err(format!("eos_token_id is {given:?}; expected at most {} ids", END_KEYS.len()));
    }
    if ends.is_empty() {
        ends.extend(list.end_of_text);
    }
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", "gpt-2");
    let tokens = (0..v).map(|id| token(id).map_or_else(|| format!("[PAD{id}]"), str::to_string));
    keys.texts("tokenizer.ggml.tokens", &tokens.collect::<Vec<_>>());
    keys.i32s("tokenizer.ggml.token_type", &(0..v).map(kind).collect::<Vec<_>>());
    keys.texts("tokenizer.ggml.merges", &list.merges);
    for (key, end) in END_KEYS.iter().zip(&ends) {
        keys.u32(key, *end);
    }
    if let Some(begin) = config.bos_token_id.filter(in_vocabulary).or(ends.first().copied()) {
        keys.u32("tokenizer.ggml.bos_token_id", begin);
    }
    Ok(())
}

/// Keys and their values.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

impl Keys {
    fn key(&mut self, name: &str, kind: u32) {
        self.count += 1;
        put_text(&mut self.bytes, name);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, name: &str, value: u32) {
        self.key(name, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, name: &str, value: f32) {
        self.key(name, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, name: &str, value: &str) {
        self.key(name, 8);
        put_text(&mut self.bytes, value);
    }

    fn list(&mut self, name: &str, kind: u32, len: usize) {
        self.key(name, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn texts(&mut self, name: &str, values: &[String]) {
        self.list(name, 8, values.len());
        for value in values {
            put_text(&mut self.bytes, value);
        }
    }

    fn i32s(&mut self, name: &str, values: &[i32]) {
        self.list(name, 5, values.len());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
