//! Options of the commands that help with the shell: `completions` and `man`.
// These comments are the help text, which would print backticks.
#![allow(clippy::doc_markdown)]

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 completions bash > ~/.local/share/bash-completion/completions/gpt2
  gpt2 completions zsh > ~/.zfunc/_gpt2
  gpt2 completions fish > ~/.config/fish/completions/gpt2.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gpt2 man > ~/.local/share/man/man1/gpt2.1
  gpt2 man attention | man -l -")]
pub(crate) struct ManArgs {
    /// The page of one of gpt2's commands instead of the page of gpt2
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}
