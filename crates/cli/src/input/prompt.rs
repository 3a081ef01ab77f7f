//! The prompt: an argument, a file, a pipe or ids.

use crate::model::session::Session;
use crate::output::note;
use crate::output::read_files::ReadFiles;
use crate::output::remedy;
#[cfg(unix)]
use crate::process::signals;
use anyhow::{Context, anyhow, bail};
use clap::error::ErrorKind;
use gpt2_engine::Encoded;
use gpt2_loader::{LoadError, Tokenizer};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::{sync::mpsc::RecvTimeoutError, time::Duration};

#[derive(Debug, clap::Args)]
pub(crate) struct PromptArgs {
    /// The prompt [default: standard input, if it is a pipe]
    #[arg(conflicts_with_all = ["file", "ids"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file, or from standard input for -. One newline at its end is left out
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    pub(crate) file: Option<PathBuf>,
    /// Token ids instead of text
    #[arg(long, value_delimiter = ',', value_name = "1,2,3", num_args = 1.., value_parser = token_id)]
    pub(crate) ids: Option<Vec<u32>>,
}

fn token_id(s: &str) -> Result<u32, String> {
    s.trim().parse().map_err(|_| "expected token ids, separated by commas: 1,2,3".to_owned())
}

/// Far more text than any context holds, but little enough to read in full.
const LONGEST_PROMPT: u64 = 1 << 24;

/// The time to wait for a named pipe's writer before a note.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(1);

/// Token ids, and the text of each.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) tokens: Vec<String>,
    /// The text of each token for display: see [`Session::shown`].
    pub(crate) shown: Vec<String>,
    /// The given text; `None` for ids.
    pub(crate) text: Option<String>,
}

/// The mark that some programs write before a text in UTF-8; it is no part of the text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Reads a whole text of at most `limit` bytes, without a byte order mark. It may come from a pipe.
pub(crate) fn read_limited(reader: impl Read, limit: u64) -> std::io::Result<String> {
    let mut bytes = vec![];
    if reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)? as u64 > limit {
        return Err(std::io::Error::other(format!("it is longer than {limit} bytes; shorten it")));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        std::io::Error::other(format!(
            "it is not UTF-8: byte {at} is {:#04x}; convert it, as `iconv -f latin1 -t utf-8` does",
            e.as_bytes()[at]
        ))
    })?;
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map_or_else(|| text.clone(), str::to_owned))
}

/// Reads `what`, a text of at most `limit` bytes, from a file or a pipe.
pub(crate) fn read_file(what: &str, path: &Path, limit: u64) -> anyhow::Result<String> {
    let text = open_text(path).and_then(|file| read_limited(file, limit));
    text.with_context(|| format!("cannot read {what} from {}", path.display()))
}

/// Refuses a device, which may never end, where a file or a pipe with a whole document is needed.
pub(crate) fn refuse_device(path: &Path) -> anyhow::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = std::fs::metadata(path).ok().map(|found| found.file_type());
        if kind.is_some_and(|kind| kind.is_char_device() || kind.is_block_device()) {
            bail!("is a device; expected a file");
        }
    }
    Ok(())
}

/// Opens the file or the pipe at `path`. Opening a named pipe waits until another program opens it to write: a note says so.
pub(crate) fn open_text(path: &Path) -> std::io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(std::io::Error::other("it is a folder, expected a file"));
    }
    #[cfg(unix)]
    if std::os::unix::fs::FileTypeExt::is_fifo(&kind) {
        return signals::waiting(|| open_pipe(path));
    }
    File::open(path)
}

#[cfg(unix)]
fn open_pipe(path: &Path) -> std::io::Result<File> {
    let (send, opened) = std::sync::mpsc::channel();
    let pipe = path.to_path_buf();
    std::thread::Builder::new().spawn(move || send.send(File::open(pipe)))?;
    match opened.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => {
            note(&format!("waiting for a program that writes to the pipe {}", path.display()));
            opened.recv().map_err(std::io::Error::other)?
        }
        opened => opened.map_err(std::io::Error::other)?,
    }
}

impl PromptArgs {
    /// Reads the text, if there is one. Call this before loading a model, so that a mistake shows at once.
    pub(crate) fn read(&self) -> anyhow::Result<Option<String>> {
        if self.ids.is_some() {
            return Ok(None);
        }
        if let Some(text) = &self.prompt {
            return Ok(Some(text.clone()));
        }
        let mut text = if let Some(path) = self.path() {
            read_file("the prompt", path, LONGEST_PROMPT)?
        } else if std::io::stdin().is_terminal() {
            let none =
                "no prompt: give one as an argument, with --file FILE or --ids 1,2,3, or through a pipe";
            return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, none).into());
        } else {
            read_limited(std::io::stdin(), LONGEST_PROMPT)
                .context("cannot read the prompt from standard input")?
        };
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(Some(text))
    }

    /// The file that the user names; none for standard input.
    fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// The file that the prompt comes from, if it comes from one.
    pub(crate) fn inputs(&self) -> ReadFiles {
        let mut inputs = ReadFiles::default();
        if let Some(path) = self.path() {
            inputs.file("the prompt", path);
        } else if self.prompt.is_none() && self.ids.is_none() && cfg!(unix) {
            inputs.file("the prompt", "/dev/stdin");
        }
        inputs
    }

    /// The prompt as ids and labels.
    pub(crate) fn encode(&self, text: Option<String>, session: &Session) -> anyhow::Result<Prompt> {
        match (text, &self.ids) {
            (Some(text), _) => Prompt::new(session, &text, "the prompt"),
            (None, ids) => Prompt::of_ids(session, ids.clone().unwrap_or_default(), None, "the prompt"),
        }
    }
}

impl Prompt {
    /// A text as ids and labels; `what` names it in errors.
    pub(crate) fn new(session: &Session, text: &str, what: &str) -> anyhow::Result<Self> {
        let tokenizer =
            session.tokenizer().map_err(|error| anyhow!("{} (--ids)", remedy::of_the_loader(&error)))?;
        let ids = encode_within(tokenizer, text, what, session.model.config().n_positions)?;
        Self::of_ids(session, ids, Some(text.to_owned()), what)
    }

    /// Token ids as a prompt; `what` names it in errors.
    pub(crate) fn of_ids(
        session: &Session,
        ids: Vec<u32>,
        text: Option<String>,
        what: &str,
    ) -> anyhow::Result<Self> {
        let n = session.model.config().n_positions;
        if ids.is_empty() {
            bail!("{what} is empty: give at least one token of text");
        }
        if ids.len() > n {
            bail!("{what} has {} tokens, but the model has n_positions = {n}: shorten it", ids.len());
        }
        Ok(Self { tokens: session.labels(&ids), shown: session.shown(&ids), ids, text })
    }
}

/// The ids of `text`, with a note about the characters that the vocabulary cannot spell; the note calls the text
/// `what`.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str, what: &str) -> Result<Vec<u32>, LoadError> {
    Ok(told(gpt2_engine::encode(tokenizer, text, what)?))
}

/// Like [`encode`], for a text that must fit a context of `n` tokens.
pub(crate) fn encode_within(
    tokenizer: &Tokenizer,
    text: &str,
    what: &str,
    n: usize,
) -> anyhow::Result<Vec<u32>> {
    Ok(told(gpt2_engine::encode_within(tokenizer, text, what, n)?))
}

fn told(encoded: Encoded) -> Vec<u32> {
    if let Some(text) = &encoded.note {
        note(text);
    }
    encoded.ids
}

/// The id of the single token that spells `text`, which the option `what` gives.
pub(crate) fn single_token(session: &Session, what: &str, text: &str) -> anyhow::Result<u32> {
    let tokenizer = match session.tokenizer() {
        Ok(tokenizer) => tokenizer,
        // Without a tokenizer, prompts are ids, and so are targets.
        Err(e) => match text.parse() {
            Ok(id) => return Ok(id),
            Err(_) => return Err(e).with_context(|| format!("{what} {text:?} is not an id")),
        },
    };
    let ids = encode(tokenizer, text, what)?;
    match ids[..] {
        [id] => Ok(id),
        _ => bail!(
            "{what} {text:?} is {} tokens ({}), expected one; a word inside a text begins with its space",
            ids.len(),
            session.labels(&ids).iter().map(|t| format!("{t:?}")).collect::<Vec<_>>().join(", ")
        ),
    }
}
