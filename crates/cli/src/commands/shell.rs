//! `gpt2 completions` and `gpt2 man`: what a shell and its manual know of this command.

use crate::output;
use anyhow::anyhow;
use clap_complete::Shell;
use std::io::Write;

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

const NAME: &str = "gpt2";

/// The sections at the end of every manual page. `NO_COLOR` is only on the pages of commands with `--color`.
const ENDINGS: &str = r#".SH "EXIT STATUS"
.TP
0
success; also if the reader of a pipe has gone
.TP
1
the run failed; standard error says why and what to do
.TP
2
wrong arguments
.TP
130, 143
a run of score, record, features \-\-store, train or train-features that SIGINT or SIGTERM has stopped; \-\-resume goes on
.SH ENVIRONMENT
.TP
HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME, HF_HUB_CACHE
as Python reads them
.TP
RAYON_NUM_THREADS
the number of threads, if \-\-threads does not say it
.TP
GPT2_ISA
the instruction set: portable, avx2, avx512 or amx
"#;

const NO_COLOR: &str = r".TP
NO_COLOR
no colors, unless \-\-color says otherwise
";

/// The generator's title for the section after the options, and our title for it.
const TITLES: (&str, &str) = (".SH EXTRA\n", ".SH \"NOTES AND EXAMPLES\"\n");

pub(crate) fn completions(args: &CompletionsArgs, mut gpt2: clap::Command) -> anyhow::Result<()> {
    // The generator panics where it cannot write, so it writes to memory.
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut gpt2, NAME, &mut script);
    Ok(output::stdout().write_all(&script)?)
}

pub(crate) fn man(args: &ManArgs, mut gpt2: clap::Command) -> anyhow::Result<()> {
    // Gives every command the options that are global.
    gpt2.build();
    let page = match &args.command {
        None => gpt2,
        Some(name) => {
            let found = gpt2.find_subcommand(name).ok_or_else(|| {
                let names: Vec<_> = gpt2.get_subcommands().map(clap::Command::get_name).collect();
                anyhow!("gpt2 has no command {name:?}: it has {}", names.join(", "))
            })?;
            found.clone()
        }
    };
    let has_colors = |command: &clap::Command| command.get_arguments().any(|arg| arg.get_id() == "color");
    let no_color = if has_colors(&page) || page.get_subcommands().any(has_colors) { NO_COLOR } else { "" };
    let mut text = vec![];
    clap_mangen::Man::new(page).source(format!("{NAME} {}", env!("CARGO_PKG_VERSION"))).render(&mut text)?;
    let text = String::from_utf8(text)?.replace(TITLES.0, TITLES.1);
    Ok(write!(output::stdout(), "{text}{ENDINGS}{no_color}")?)
}
