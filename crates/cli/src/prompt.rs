//! The prompt: an argument, a file, a pipe or ids.

use crate::args::{Args, PromptArgs};
use crate::session::Session;
use anyhow::{Context, bail};
use clap::{CommandFactory, error::ErrorKind};
use std::io::{IsTerminal, Read};

/// Far more text than any context holds, and little enough to be read in full.
const LONGEST_PROMPT: u64 = 1 << 24;

/// Token ids, and the text of each.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) tokens: Vec<String>,
    /// The text that was given; `None` for ids.
    pub(crate) text: Option<String>,
}

fn read_limited(reader: impl Read, text: &mut String) -> std::io::Result<()> {
    if reader.take(LONGEST_PROMPT + 1).read_to_string(text)? as u64 > LONGEST_PROMPT {
        return Err(std::io::Error::other(format!("it is longer than {LONGEST_PROMPT} bytes")));
    }
    Ok(())
}

impl PromptArgs {
    /// Reads the text, where there is one: before a model is loaded, so that a mistake costs no wait.
    pub(crate) fn read(&self) -> anyhow::Result<Option<String>> {
        if self.ids.is_some() {
            return Ok(None);
        }
        if let Some(text) = &self.prompt {
            return Ok(Some(text.clone()));
        }
        let mut text = String::new();
        if let Some(path) = &self.file {
            let file = std::fs::File::open(path);
            file.and_then(|f| read_limited(f, &mut text))
                .with_context(|| format!("cannot read the prompt from {}", path.display()))?;
        } else if std::io::stdin().is_terminal() {
            Args::command()
                .error(
                    ErrorKind::MissingRequiredArgument,
                    "no prompt: give one as an argument, with --file FILE or --ids 1,2,3, or through a pipe",
                )
                .exit()
        } else {
            read_limited(std::io::stdin(), &mut text)
                .context("cannot read the prompt from standard input")?;
        }
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(Some(text))
    }

    /// The prompt as ids and labels.
    pub(crate) fn encode(&self, text: Option<String>, session: &Session) -> anyhow::Result<Prompt> {
        let ids = match (&text, &self.ids) {
            (Some(text), _) => session.tokenizer()?.encode(text)?,
            (None, ids) => ids.clone().unwrap_or_default(),
        };
        if ids.is_empty() {
            bail!("the prompt is empty: give at least one token of text");
        }
        let n = session.model.config().n_positions;
        if ids.len() > n {
            bail!("the prompt has {} tokens, but the model has n_positions = {n}: shorten it", ids.len());
        }
        Ok(Prompt { tokens: session.labels(&ids), ids, text })
    }
}
