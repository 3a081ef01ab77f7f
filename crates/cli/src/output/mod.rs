//! Printing: results go to stdout, everything else to stderr.

mod bars;
pub(crate) mod progress;
mod pulse;
pub(crate) mod remedy;
pub(crate) mod rows;
mod screen;
pub(crate) mod terminal;
pub(crate) mod written_files;

pub(crate) use bars::{be_quiet, is_quiet};
pub(crate) use screen::note;

use gpt2_engine::open::TakenForHub;
use gpt2_view::{Color, Style, visible_lines};
use screen::tell;
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorArg {
    Auto,
    Always,
    Never,
}

/// The width of a table for a pipe, which has no width of its own; most readers can show it.
const PIPE_WIDTH: usize = 120;

/// Standard output. A closed pipe is an error here; [`is_closed_pipe`] recognizes it.
pub(crate) struct Stdout {
    out: std::io::StdoutLock<'static>,
    is_terminal: bool,
}

impl Stdout {
    /// Writes text of a model or a file: to a pipe or a file as it is, to a terminal without anything that it would act
    /// upon.
    pub(crate) fn write_text(&mut self, text: &str) -> std::io::Result<()> {
        if self.is_terminal {
            self.write_all(visible_lines(text).as_bytes())
        } else {
            self.write_all(text.as_bytes())
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_terminal
            && let Some(escaped) = escape_later_controls(bytes)
        {
            return self.out.write_all(escaped.as_bytes()).map(|()| bytes.len()).map_err(unprinted);
        }
        self.out.write(bytes).map_err(unprinted)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush().map_err(unprinted)
    }
}

/// `bytes` with delete and the C1 controls, such as U+009B, as `\u009b`; `None` if there are none. They occur only in JSON, which
/// escapes ASCII's first 32 controls itself, and to which both spellings are the same text.
fn escape_later_controls(bytes: &[u8]) -> Option<String> {
    let is_control = |c: char| matches!(c, '\x7f'..='\u{9f}');
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.contains(is_control))?;
    let spelled = |c: char| if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Some(text.chars().map(spelled).collect())
}

/// Adds what to do to a failure to print; leaves a closed pipe and an interruption as they are.
fn unprinted(error: std::io::Error) -> std::io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::Interrupted => error,
        kind => std::io::Error::new(
            kind,
            format!("cannot write to standard output: {error}; make room, or send the result elsewhere"),
        ),
    }
}

pub(crate) fn stdout() -> Stdout {
    screen::prints();
    let out = std::io::stdout();
    Stdout { is_terminal: out.is_terminal(), out: out.lock() }
}

/// Flushes stdout; fails if that cannot be written.
pub(crate) fn flush() -> anyhow::Result<()> {
    Ok(stdout().flush()?)
}

pub(crate) fn error(error: &anyhow::Error) {
    let mut message = String::new();
    let wanted = error.downcast_ref::<TakenForHub>().map(|taken| taken.kind);
    for cause in error.chain() {
        let text = remedy::text(cause, wanted);
        // Some errors already include their cause's text.
        if !message.contains(&text) {
            message += if message.is_empty() { "" } else { ": " };
            message += &text;
        }
    }
    tell(&format!("error: {message}"));
}

/// Whether the arguments hold nothing that a terminal would act upon, so that an error may repeat them in colors.
pub(crate) fn is_harmless_usage() -> bool {
    !std::env::args_os().any(|arg| arg.to_string_lossy().contains(char::is_control))
}

/// Prints the help, or the error about the arguments. Returns the exit code: not 0 if the help could not be written.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        if is_harmless_usage() {
            let _ = error.print(); // colored on a terminal, which may have gone away
        } else {
            tell(&error.render().ansi().to_string());
        }
        return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
    }
    let printed = error.print().and_then(|()| std::io::stdout().flush()).map_err(unprinted);
    match printed {
        Err(failed) if failed.kind() != ErrorKind::BrokenPipe => {
            self::error(&failed.into());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Whether the only failure was that a pipe's reader went away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(is)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|e| e.io_error_kind() == Some(std::io::ErrorKind::BrokenPipe))
    })
}

/// Prints a command's result: as JSON with `--json`, otherwise by calling `print`.
pub(crate) fn report<R: serde::Serialize>(
    as_json: bool,
    report: &R,
    print: impl FnOnce(&R) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if as_json { json(report) } else { print(report) }
}

pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = stdout();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// The style of tables and heat maps on stdout.
pub(crate) fn style(color: ColorArg) -> Style {
    let terminal = std::io::stdout().is_terminal();
    let color = resolve_color(color, terminal, |name| std::env::var_os(name));
    Style::default().with_color(color).with_width(width(terminal)).with_max_rows(48)
}

/// The columns that stdout has.
pub(crate) fn stdout_width() -> usize {
    width(std::io::stdout().is_terminal())
}

/// The columns of stdout: as many as `COLUMNS` says, else as many as the terminal has.
fn width(terminal: bool) -> usize {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse::<u16>().ok());
    let shown = || terminal_size::terminal_size().map(|(w, _)| usize::from(w.0)).filter(|_| terminal);
    asked.filter(|&columns| columns > 0).map(usize::from).or_else(shown).unwrap_or(PIPE_WIDTH)
}

/// The colors of stdout, where `env` looks up a variable.
fn resolve_color(color: ColorArg, terminal: bool, env: impl Fn(&str) -> Option<OsString>) -> Color {
    let text = |name| env(name).and_then(|value| value.into_string().ok()).unwrap_or_default();
    let depth = || match (text("COLORTERM").as_str(), text("TERM").as_str()) {
        ("truecolor" | "24bit", _) => Color::TrueColor,
        (_, "dumb") => Color::Plain,
        // A terminal of Windows has colors and no such variable.
        (_, "") if cfg!(not(windows)) => Color::Plain,
        _ => Color::Ansi256,
    };
    match color {
        ColorArg::Never => Color::Plain,
        ColorArg::Always => match depth() {
            Color::Plain => Color::Ansi256,
            depth => depth,
        },
        ColorArg::Auto if !terminal || env("NO_COLOR").is_some_and(|v| !v.is_empty()) => Color::Plain,
        ColorArg::Auto => depth(),
    }
}

/// A word as a shell takes it for one.
pub(crate) fn for_shell(word: &str) -> String {
    let is_special = |c: char| c.is_whitespace() || "'\"$`\\&;|<>()[]{}*?!#~".contains(c);
    if word.is_empty() || word.contains(is_special) {
        format!("'{}'", word.replace('\'', "'\\''"))
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_a_terminal_spells_the_controls_that_json_itself_leaves() {
        assert_eq!(escape_later_controls("é \x1b[1m\n".as_bytes()), None);
        let text = "a\x7fb\u{80}\u{9b}2J\u{9f}\u{a0}é";
        let json = serde_json::to_string(text).expect("a string");
        let escaped = escape_later_controls(json.as_bytes()).expect("it has some");
        assert_eq!(escaped, "\"a\\u007fb\\u0080\\u009b2J\\u009f\u{a0}é\"");
        assert_eq!(serde_json::from_str::<String>(&escaped).expect("JSON"), text);
    }

    #[test]
    fn colors_follow_the_option_then_the_terminal_then_the_environment() {
        use Color::{Ansi256, Plain, TrueColor};
        use ColorArg::{Always, Auto, Never};
        for (choice, terminal, variables, expected) in [
            (Auto, true, &[("TERM", "xterm")][..], Ansi256),
            #[cfg(not(windows))]
            (Auto, true, &[], Plain),
            (Auto, true, &[("COLORTERM", "truecolor")], TrueColor),
            (Auto, true, &[("COLORTERM", "24bit"), ("TERM", "dumb")], TrueColor),
            (Auto, true, &[("TERM", "dumb")], Plain),
            (Auto, true, &[("NO_COLOR", "1")], Plain),
            (Auto, true, &[("NO_COLOR", "0"), ("COLORTERM", "truecolor")], Plain),
            (Auto, true, &[("NO_COLOR", ""), ("TERM", "xterm")], Ansi256), // no-color.org: counts if not empty
            (Auto, false, &[], Plain),
            (Auto, false, &[("COLORTERM", "truecolor")], Plain),
            (Always, false, &[("NO_COLOR", "1")], Ansi256),
            (Always, false, &[("TERM", "dumb")], Ansi256),
            (Always, true, &[("COLORTERM", "truecolor")], TrueColor),
            (Never, true, &[("COLORTERM", "truecolor")], Plain),
        ] {
            let env = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| value.into())
            };
            assert_eq!(
                resolve_color(choice, terminal, env),
                expected,
                "{choice:?}, {terminal}, {variables:?}"
            );
        }
    }
}
