//! The prompt: an argument, a file, a pipe or ids.

use crate::output::note;
use crate::output::remedy;
use crate::output::terminal::TERMINAL;
use anyhow::{Context, anyhow};
use clap::error::ErrorKind;
use gpt2_engine::texts::{Content, LONGEST_PROMPT, Prompt, read_file, read_limited};
use gpt2_engine::{Opened, ReadFiles};
use gpt2_loader::LoadError;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

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

/// Tells who gave a file's name as the text how its content is read.
pub(crate) fn note_file_of_that_name(text: &str) {
    if !text.contains(char::is_whitespace) && Path::new(text).is_file() {
        note(&format!("the text is {text}, not what is in the file of that name; for that: --file {text}"));
    }
}

impl PromptArgs {
    /// Reads the text, if there is one. Call this before loading a model, so that a mistake shows at once.
    pub(crate) fn read(&self) -> anyhow::Result<Option<String>> {
        if self.ids.is_some() {
            return Ok(None);
        }
        if let Some(text) = &self.prompt {
            note_file_of_that_name(text);
            return Ok(Some(text.clone()));
        }
        let mut text = if let Some(path) = self.path() {
            read_file("the prompt", path, LONGEST_PROMPT, &TERMINAL)?
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
    pub(crate) fn encode(&self, text: Option<String>, opened: &Opened) -> anyhow::Result<Prompt> {
        let content = match text {
            Some(text) => Content::Text(text),
            None => Content::Ids(self.ids.clone().unwrap_or_default()),
        };
        prompt(opened, &content, "the prompt")
    }
}

/// A text or ids as a prompt; `what` names it in errors.
pub(crate) fn prompt(opened: &Opened, content: &Content, what: &str) -> anyhow::Result<Prompt> {
    Prompt::new(opened, content, what, &TERMINAL).map_err(|error| match error.downcast::<LoadError>() {
        Ok(error) => anyhow!("{} (--ids)", remedy::of_the_loader(&error)),
        Err(other) => other,
    })
}
