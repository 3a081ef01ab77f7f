//! Input and output: the prompt as an argument, a file, a pipe or ids; characters that must never reach a terminal; readers
//! that go away, and disks that are full.

use super::{
    GPT2, ODD, Run, comma_separated, command, copy_demo, demo_tokenizer, gpt2, gpt2_with_pipe, launched,
    stdout,
};
use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, assert_says, read, zeros};
use safetensors::Dtype;
use serde_json::Value;

#[test]
fn every_way_of_giving_it_is_the_same_prompt() -> Result {
    let text = "ROMEO:\nBut soft! — é";
    let folder = Folder::empty()?;
    folder.write("prompt.txt", format!("{text}\n"))?;
    folder.write("bare.txt", text)?;
    let file = folder.at("prompt.txt");
    let bare = folder.at("bare.txt");
    let expected = stdout(&["forward", "--json", text])?;
    for (what, run) in [
        ("a file", gpt2(&["forward", "--json", "--file", &file])?),
        ("a file without a newline at its end", gpt2(&["forward", "--json", "-f", &bare])?),
        ("a pipe", gpt2_with_pipe(&["forward", "--json"], &format!("{text}\n"))?),
        ("a pipe without a newline at its end", gpt2_with_pipe(&["forward", "--json"], text)?),
    ] {
        assert_eq!(run.succeeded().stdout, expected, "{what}");
    }
    // An argument counts as it is; a file loses only one newline.
    let run = gpt2_with_pipe(&["forward", "--json"], &format!("{text}\n\n"))?.succeeded();
    assert_eq!(stdout(&["forward", "--json", &format!("{text}\n")])?, run.stdout);
    assert_ne!(run.stdout, expected);
    // An argument comes before a pipe.
    let run = gpt2_with_pipe(&["forward", "--json", text], "something else")?.succeeded();
    assert_eq!(run.stdout, expected);
    Ok(())
}

#[test]
fn ids_are_the_prompt_of_their_text() -> Result {
    let text = "What light through yonder window breaks?";
    let ids = comma_separated(&demo_tokenizer()?.encode(text)?);
    for name in ["forward", "attention"] {
        let expected = stdout(&[name, "--json", text])?;
        assert_eq!(stdout(&[name, "--json", "--ids", &ids])?, expected, "{name}");
        assert_eq!(gpt2(&[name, "--json", "--ids", &ids.replace(',', " ")])?.code, 2, "{name}: one argument");
    }
    Ok(())
}

#[test]
fn an_empty_prompt_is_refused_wherever_it_comes_from() -> Result {
    let folder = Folder::empty()?;
    folder.write("empty.txt", "\n")?;
    let file = folder.at("empty.txt");
    for name in ["forward", "attention", "generate"] {
        let parts = ["the prompt is empty", "at least one token"];
        gpt2(&[name, ""])?.refused(1, &parts);
        gpt2(&[name])?.refused(1, &parts);
        gpt2(&[name, "--file", &file])?.refused(1, &parts);
        gpt2_with_pipe(&[name], "")?.refused(1, &parts);
    }
    Ok(())
}

#[test]
fn a_prompt_that_cannot_be_read_is_named() -> Result {
    let folder = Folder::empty()?;
    folder.write("latin1.txt", b"caf\xe9")?;
    for (file, reason) in [("nowhere.txt", "os error 2"), ("latin1.txt", "UTF-8"), ("", "folder")] {
        let path = folder.at(file);
        gpt2(&["forward", "--file", &path])?.refused(1, &["cannot read the prompt from", &path, reason]);
    }
    Ok(())
}

#[test]
fn text_for_a_model_without_a_tokenizer_is_refused_with_the_way_out() -> Result {
    for name in ["forward", "attention", "generate"] {
        let run = gpt2(&[name, "--model", ODD, "some text"])?;
        run.refused(1, &[ODD, "no tokenizer", "tokenizer.json", "token ids"]);
    }
    Ok(())
}

#[test]
fn another_kind_of_tokenizer_is_refused_with_the_way_out() -> Result {
    let folder = Folder::of("odd")?;
    folder.write("spiece.model", "x")?;
    let model = folder.dir();
    gpt2(&["forward", "--model", &model, "some text"])?
        .refused(1, &["spiece.model", "SentencePiece", "token ids instead of text (--ids)"]);
    gpt2(&["forward", "--model", &model, "--ids", "1,2"])?.succeeded();
    let out = folder.at("out.gguf");
    let run = gpt2(&["quantize", &model, "--to", "q8_0", "--out", &out])?;
    run.refused(1, &["SentencePiece", "a GGUF file holds the tokenizer", "tokenizer.json"]);
    assert!(!run.stderr.contains("token ids"), "{}", run.stderr);
    let run = gpt2(&["quantize", ODD, "--to", "q8_0", "--out", &out])?;
    run.refused(1, &[ODD, "no tokenizer here", "tokenizer.json", "into the folder"]);
    assert!(!run.stderr.contains("token ids"), "{}", run.stderr);
    Ok(())
}

/// The note about settings that are not used comes once, and not with -q.
#[test]
fn an_unused_setting_is_noted_once() -> Result {
    let folder = Folder::empty()?;
    copy_demo(folder.path())?;
    let model = folder.dir();
    folder.write(
        "tokenizer_config.json",
        r#"{"add_prefix_space": true, "auto_map": {"AutoTokenizer": ["a.B", null]}}"#,
    )?;
    let run = gpt2(&["forward", "--model", &model, "Romeo"])?.succeeded();
    assert_eq!(run.stderr.matches("auto_map is not used").count(), 1, "{}", run.stderr);
    let run = gpt2(&["forward", "--model", &model, "Romeo", "-q", "--json"])?.succeeded();
    assert_eq!(run.stderr, "");
    let with: Value = serde_json::from_str(&run.stdout)?;
    let spaced: Value = serde_json::from_str(&gpt2(&["forward", " Romeo", "--json"])?.succeeded().stdout)?;
    assert_eq!(with["provenance"]["ids"], spaced["provenance"]["ids"]);
    Ok(())
}

/// The demo model with a vocabulary that lacks the tokens in `without`.
fn demo_without(without: &[&str]) -> Result<Folder> {
    let folder = Folder::empty()?;
    copy_demo(folder.path())?;
    let mut file: Value = serde_json::from_slice(&std::fs::read(folder.file("tokenizer.json"))?)?;
    let lacks = |token: &Value| without.iter().any(|w| token.as_str() == Some(w));
    let merges = file["model"]["merges"].as_array_mut().ok_or("merges")?;
    merges.retain(|pair| !lacks(&pair[0]) && !lacks(&pair[1]));
    let vocab = file["model"]["vocab"].as_object_mut().ok_or("vocab")?;
    vocab.retain(|token, _| !without.contains(&token.as_str()));
    folder.write("tokenizer.json", file.to_string())?;
    Ok(folder)
}

#[test]
fn characters_that_the_vocabulary_cannot_spell_are_told_and_nothing_left_is_refused() -> Result {
    let folder = demo_without(&["¤", "Z"])?; // the letter that stands for a byte of ä, and a plain letter
    let model = folder.dir();
    let run = gpt2(&["forward", "--model", &model, "Fäll Z ä"])?.succeeded();
    assert_says("left out", &run.stderr, &["cannot spell 3 characters of the prompt", "'ä' (2), 'Z'"]);
    let run = gpt2(&["forward", "--model", &model, "--quiet", "Fäll Z ä"])?.succeeded();
    assert!(!run.stderr.contains("spell"), "{}", run.stderr);
    let run = gpt2(&["forward", "--model", &model, "Fall"])?.succeeded();
    assert!(!run.stderr.contains("spell"), "{}", run.stderr);
    let nothing = &["tokenizer.json", "no tokens", "'Z' (3)"];
    gpt2(&["forward", "--model", &model, "ZZZ"])?.refused(1, nothing);
    Ok(())
}

#[test]
fn a_prompt_far_longer_than_the_model_reads_is_refused_before_it_is_tokenized() -> Result {
    let folder = Folder::empty()?;
    folder.write("long.txt", "a ".repeat(5_000_000))?;
    let file = folder.at("long.txt");
    let start = std::time::Instant::now();
    gpt2(&["forward", "--file", &file])?.refused(1, &["10000000 characters", "n_positions", "shorten"]);
    assert!(start.elapsed() < std::time::Duration::from_secs(3), "{:?}", start.elapsed());
    Ok(())
}

const ESCAPES: &str = "\x1b[31mred\x1b]0;title\x07 \u{9b}2J\r\x08\u{202e}";

/// Fails if any control character is left; in JSON, only ASCII's count.
#[track_caller]
fn assert_harmless(args: &[&str], text: &str) {
    let json = args.contains(&"--json");
    let raw = |c: char| c != '\n' && (c.is_ascii_control() || c.is_control() && !json);
    assert!(!text.contains(raw), "{args:?}: {text:?}");
}

#[test]
fn escapes_in_a_prompt_never_reach_the_terminal() -> Result {
    for args in [
        &["attention"][..],
        &["attention", "--layer", "0"],
        &["attention", "--json"],
        &["forward"],
        &["forward", "--json"],
    ] {
        let run = gpt2(&[args, &[ESCAPES]].concat())?.succeeded();
        assert_harmless(args, &run.stdout);
        assert_harmless(args, &run.stderr);
    }
    let run = gpt2(&["forward", ESCAPES])?.succeeded();
    assert!(run.stdout.contains('␛') && run.stdout.contains('␍'), "{}", run.stdout);
    Ok(())
}

/// `odd` with a tensor whose name repaints the screen.
fn painted() -> Result<Folder> {
    let mut tensors: Tensors = read(&data("odd").join("model.safetensors"))?;
    tensors.insert("evil\x1b[31m\u{9b}2J".into(), zeros(Dtype::F32, &[1]));
    Folder::with_tensors("odd", &tensors)
}

#[test]
fn escapes_in_a_checkpoint_never_reach_the_terminal() -> Result {
    let folder = painted()?;
    let model = folder.dir();
    for args in
        [&["inspect"][..], &["inspect", "--json"], &["forward", "--ids", "1"], &["generate", "--ids", "1"]]
    {
        let run = gpt2(&[args, &["--model", &model]].concat())?;
        // The tensor is not used, which is no error: its name is in a note.
        assert_eq!(run.code, 0, "{run:?}");
        assert_says("a tensor that is not used", &(run.stdout.clone() + &run.stderr), &["evil"]);
        assert_harmless(args, &run.stdout);
        assert_harmless(args, &run.stderr);
    }
    Ok(())
}

/// Runs with a stdout whose reader has gone away before the start.
#[track_caller]
pub(crate) fn into_nothing(args: &[&str]) -> Result<Run> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    Run::of(command(args).stdout(writer))
}

/// Runs with a stdout on a disk that is full.
#[cfg(target_os = "linux")]
#[track_caller]
pub(crate) fn onto_a_full_disk(args: &[&str]) -> Result<Run> {
    Run::of(command(args).stdout(std::fs::File::options().write(true).open("/dev/full")?))
}

#[test]
fn a_closed_pipe_ends_every_subcommand_quietly() -> Result {
    for args in [
        &["generate", "--ids", "1,2,3", "--model", ODD][..],
        &["generate", "--json", "--ids", "1,2,3", "--model", ODD],
        &["forward", "--ids", "1,2,3", "--model", ODD],
        &["forward", "--json", "--ids", "1,2,3", "--model", ODD],
        &["attention", "--ids", "1,2,3", "--model", ODD],
        &["attention", "--json", "--ids", "1,2,3", "--model", ODD],
        &["attention", "--layer", "0", "--ids", "1,2,3", "--model", ODD],
        &["generate", "O Romeo"],
        &["inspect"],
        &["inspect", "--json"],
        &["inspect", ODD],
        &["bench", "forward", "-t4", "-r1", "--model", ODD],
        &["bench", "forward", "-t4", "-r1", "--json", "--model", ODD],
        &["--help"],
    ] {
        let run = into_nothing(args)?;
        assert_eq!(run.code, 0, "{args:?}: {}", run.stderr);
        assert!(!run.stderr.to_lowercase().contains("error"), "{args:?}: {}", run.stderr);
        assert!(!run.stderr.to_lowercase().contains("broken pipe"), "{args:?}: {}", run.stderr);
    }
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() -> Result {
    for args in [
        &["forward", "--ids", "1", "--model", ODD][..],
        &["inspect", ODD],
        &["attention", "O Romeo", "--json"],
    ] {
        onto_a_full_disk(args)?.refused(1, &["No space left"]);
    }
    Ok(())
}

/// Runs with a terminal for stdin, stdout and stderr, and returns all that the terminal gets.
#[cfg(target_os = "linux")]
#[track_caller]
fn on_a_terminal(args: &[&str]) -> Result<String> {
    // The program's own command line is a line for a shell.
    let line: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", &format!("'{GPT2}' {}", line.join(" ")), "/dev/null"]);
    let run = Run::of(launched(terminal, &[""; 0]))?.succeeded();
    // A terminal starts each line at its left edge.
    Ok(run.stdout.replace("\r\n", "\n"))
}

#[test]
#[cfg(target_os = "linux")]
fn a_generated_text_is_exact_in_a_pipe_and_harmless_on_a_terminal() -> Result {
    let prompt = "A\x1b]0;title\x07B\u{9b}2J\r\x08\x7f\u{202e}C\n\tD";
    // So hot that the model itself writes control characters.
    let args = ["-q", "generate", prompt, "-n", "200", "-t", "50", "-k", "0"];
    let written = stdout(&args)?;
    let new = written.strip_prefix(prompt).ok_or("the prompt as it is")?;
    assert!(new.contains(|c: char| c.is_control() && c != '\n'), "{new:?}");
    let shown = on_a_terminal(&args)?;
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
    assert!(shown.starts_with("A␛]0;title␇B\\u{9b}2J␍␈␡\\u{202e}C\n\tD"), "{shown:?}");
    // What is not a control character is the same.
    let letters = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    assert_eq!(letters(&shown), letters(&gpt2_view::visible_lines(&written)));
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn json_on_a_terminal_is_harmless_and_the_same() -> Result {
    let args = ["-q", "forward", "A\x7fB\x1b", "--json"];
    let written = stdout(&args)?;
    assert!(written.contains('\x7f'), "as JSON leaves it: {written}");
    let shown = on_a_terminal(&args)?;
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    let parsed = |text: &str| serde_json::from_str::<Value>(text);
    assert_eq!(parsed(&shown)?, parsed(&written)?);
    Ok(())
}
