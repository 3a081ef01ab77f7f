//! Every example that help, README.md and the pages of docs/ give runs. They are gathered from the text itself, so a new one
//! cannot escape: a line in a block of code is run, or stands in [`ELSEWHERE`] with the one who runs it.
//!
//! The commands run in a shell, as a person would paste them, in a folder that has the files which they name, with a Hub on
//! the loopback interface. What takes a GPU, another model or minutes is changed first, by [`REPLACED`]. The blocks marked
//! `console` belong to `documents`, which also compares what is printed.

use crate::common::{Result, data};
use crate::documents::{PAGES, words};
use crate::hub::server::{COMMIT, Server};
use crate::{DEMO, Run, command, copy_demo, launched, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const TRAIN: &str = "gpt2 train ";

/// A text of an example, the text that the test runs instead, and why.
const REPLACED: &[(&str, &str, &str)] = &[
    ("target/release/gpt2", "gpt2", "the tested binary, wherever it was built"),
    ("cargo run --release --", "gpt2", "the tested binary, wherever it was built"),
    ("gpt2 verify ", "gpt2-help verify ", "half a minute, which `bench` takes once"),
    ("--device cuda", "--device cpu", "needs a GPU"),
    ("--isa avx2", "--isa portable", "needs AVX2"),
    ("--batch 2048 ", "", "the text is short"),
    ("--accumulate 4 --batch 256", "--accumulate 4", "the text is short"),
    ("--batch 256 --accumulate 8", "--accumulate 8", "the text is short"),
    ("gpt2 train-features activations", "gpt2 train-features activations --batch 64", "the text is short"),
    ("gpt2 bench", "gpt2 bench --runs 1", "up to a minute"),
    ("--tokens 1024", "--tokens 8", "up to a minute"),
    ("--tokens 900", "--tokens 8", "up to a minute"),
    ("--tokens 512", "--tokens 8", "up to a minute"),
    ("--steps 2000", "--steps 3", "minutes"),
    ("--steps 300", "--steps 3", "minutes"),
    ("--steps 200 ", "--steps 3 ", "half a minute"),
    ("--val-fraction 0.01 ", "--val-fraction 0.1 ", "the text is short"),
    ("--val-fraction 0.02 ", "--val-fraction 0.1 ", "the text is short"),
    ("--model gpt2 --epochs 2", "--model gpt2 --steps 3", "minutes"),
    ("--epochs 3 ", "--steps 3 ", "minutes"),
    (
        "data shakespeare --out shakespeare.txt",
        "data shakespeare --out all.txt",
        "training on all of it takes minutes",
    ),
    (TRAIN, "gpt2 train --steps 3 ", "minutes; only where the line has no --steps of its own"),
    ("gpt2-xl", "gpt2", "the test's Hub has one model"),
    ("microsoft/DialoGPT-small", "openai-community/gpt2", "the test's Hub has one model"),
    ("owner/name/FILE.gguf", "openai-community/gpt2/FILE.gguf", "the test's Hub has one model"),
    ("--adapter owner/name", "--adapter plays", "the test's Hub has one model"),
    ("distilgpt2 --revision 2290a62682d06624634c1f46a6ad5be0f47f38aa", "gpt2 --revision COMMIT", "the same"),
    ("pairs ioi", "pairs induction", "the model in GPT-2's place spells names in several tokens"),
    ("circuits 5.1", "circuits 3.1", "the model in GPT-2's place has 4 layers"),
    ("\" Paris\"", "\" king\"", "the model in GPT-2's place spells it in three tokens"),
    ("John gave", "king gave", "the model in GPT-2's place spells names in several tokens"),
    ("Mary gave", "lord gave", "the same"),
    ("\" Mary\" --against \" John\"", "\" king\" --against \" lord\"", "the same"),
    ("15496,11", "154,11", "the model in GPT-2's place has 1024 tokens"),
    ("--metrics loss.csv --resume", "--metrics loss.csv --overwrite", "`train` stops and resumes a run"),
    (
        "lambada_openai hellaswag --model gpt2",
        "quiz.jsonl --model gpt2",
        "the test's Hub has one model and no data set",
    ),
    ("--jsonl scores.jsonl --resume", "--jsonl scores.jsonl --overwrite", "`score` does"),
];

/// Lines in blocks of code that are no commands of ours: how they begin, and who runs them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cargo test --release", "this is one of those tests"),
    ("cargo build --release --features cuda", "scripts/check.sh lints it; building needs CUDA"),
    ("cargo install gpt2-cli", "the package's build"),
    ("cargo run --release --example walkthrough", "scripts/check.sh runs it"),
    ("cargo run --release --manifest-path examples/Cargo.toml", "scripts/check.sh runs it"),
    ("scripts/cuda/toolkit.sh", "scripts/check.sh runs it where the toolkit is, and under CI"),
    ("scripts/cuda/build.sh", "takes the toolkit and many minutes; run by hand"),
    ("scripts/cuda/on-cpu.sh", "builds for many minutes; run by hand"),
    ("scripts/cuda/on_device.py", "the same"),
    ("scripts/cuda/check.sh on-cpu", "the same"),
    ("pip install gpt2_candle", "takes a wheel that scripts/release.sh wrote"),
    ("pip install ziglang", "for the next line"),
    ("cargo-zigbuild check", "type-checks for macOS by hand"),
    ("scripts/check-gpu.sh", "scripts/gpu/selftest runs it with stand-ins"),
    ("srun ", "needs Slurm: the page says that it was not tried"),
    ("import json", "needs safetensors for Python, which the gate has not; run by hand"),
    ("from safetensors.numpy import", "the same"),
    ("python -c \"import json; from circuit_tracer", "needs circuit-tracer; run by hand"),
    ("for number in range(len(json.load(", "the same"),
    ("values = load_file(", "the same"),
];

/// Programs that stand in for those that a test cannot start: a browser, a launcher whose options differ between
/// machines (`parallel` runs the real ones), and a pager. `gpt2-help` reads all options, and then runs nothing.
const STAND_INS: &[(&str, &str)] = &[
    ("xdg-open", "exit 0"),
    ("mpirun", "shift 2; exec \"$@\""),
    ("man", "exec cat"),
    ("gpt2-help", "exec gpt2 \"$@\" --help"),
];

/// A text that is long enough to train on.
const TEXT: &str = include_str!("../../docs/tutorial.md");

/// The seconds that an example may take. One that takes longer needs a line in [`REPLACED`].
const LIMIT: &str = "100";

/// The folders that the examples write into.
const FOLDERS: [&str; 5] = [
    ".zfunc",
    ".local/share/bash-completion/completions",
    ".config/fish/completions",
    ".local/share/man/man1",
    "cache",
];

/// Commands of one block, in one folder, in order.
struct Block {
    page: String,
    lines: Vec<String>,
}

/// The lines of a text without comments, those that a backslash breaks joined.
fn joined(text: &str) -> Vec<String> {
    let lines = text.replace("\\\n", " ");
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// The commands that a page of help lists.
fn commands(path: &[&str]) -> Result<Vec<String>> {
    let help = stdout(&[&["help"], path].concat())?;
    let Some((_, list)) = help.split_once("Commands:\n") else { return Ok(vec![]) };
    let names = list.lines().take_while(|line| line.starts_with("  "));
    let names =
        names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| *name != "help").map(str::to_owned).collect())
}

/// The examples in the help of a command, and of those below it.
fn of_help(path: &[&str], blocks: &mut Vec<Block>) -> Result {
    let help = stdout(&[&["help"], path].concat())?;
    let page = format!("gpt2 help {}", path.join(" "));
    let (_, examples) = help.split_once("\nExample").unwrap_or_else(|| panic!("no example in {page}"));
    let (_, list) = examples.split_once(":\n").ok_or("a list")?;
    let list: Vec<&str> = list.lines().take_while(|line| line.starts_with("  ")).collect();
    let lines = joined(&list.join("\n"));
    blocks.push(Block { page, lines });
    for name in commands(path)? {
        of_help(&[path, &[name.as_str()]].concat(), blocks)?;
    }
    Ok(())
}

/// The pages of Markdown whose examples run.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    for entry in std::fs::read_dir(Path::new(ROOT).join("docs"))? {
        pages.push(entry?.path());
    }
    for entry in std::fs::read_dir(Path::new(ROOT).join("crates"))? {
        pages.push(entry?.path().join("README.md"));
    }
    pages.retain(|page| page.extension().is_some_and(|end| end == "md") && page.exists());
    pages.sort();
    Ok(pages)
}

/// Whether a line of a block starts this program, perhaps behind another one.
fn is_ours(line: &str) -> bool {
    let programs = ["gpt2 ", "target/release/gpt2 ", "cargo run --release -- ", "mpirun -n 4 gpt2 "];
    line.split(['|', ';']).any(|part| programs.iter().any(|program| part.trim_start().starts_with(program)))
}

fn of_page(path: &Path, blocks: &mut Vec<Block>) -> Result {
    let page = path.strip_prefix(ROOT)?.display().to_string();
    let text = std::fs::read_to_string(path)?;
    let mut parts = text.split("\n```");
    parts.next(); // before the first block
    while let Some(block) = parts.next() {
        let (kind, content) = block.split_once('\n').unwrap_or((block, ""));
        match kind {
            // `documents` runs these, and rustdoc compiles those in Rust.
            "console" if PAGES.iter().any(|(name, _)| page == format!("docs/{name}")) => {}
            "rust" | "rust,no_run" => {}
            // `tests/python/test_documents.py` runs these.
            "python" => assert!(
                ["README.md", "crates/python/README.md", "docs/python.md"].contains(&page.as_str()),
                "{page}: add it to PAGES in tests/python/test_documents.py"
            ),
            "" | "console" | "text" => {
                let mut lines = joined(content);
                let drawing =
                    !lines.iter().any(|line| is_ours(line)) && lines.iter().any(|line| !line.is_ascii());
                let elsewhere = |line: &str| ELSEWHERE.iter().any(|(start, _)| line.starts_with(start));
                lines.retain(|line| !drawing && !elsewhere(line));
                if let Some(line) = lines.iter().find(|line| !is_ours(line)) {
                    panic!(
                        "{page}: {line:?} is no command of gpt2's: say in ELSEWHERE who runs it, or draw it as text"
                    );
                }
                blocks.push(Block { page: page.clone(), lines });
            }
            other => panic!("{page}: a block of {other:?}: who runs it?"),
        }
        parts.next(); // between two blocks
    }
    Ok(())
}

fn of_pages() -> Result<Vec<Block>> {
    let mut blocks = vec![];
    for page in pages()? {
        of_page(&page, &mut blocks)?;
    }
    Ok(blocks)
}

fn without_comment(line: &str) -> &str {
    line.split_once(" # ").map_or(line, |(command, _)| command.trim())
}

/// The line that runs instead of an example.
fn replaced(line: &str) -> String {
    let mut line = format!("{} ", without_comment(line));
    for (from, to, _) in REPLACED {
        if *from != TRAIN || !line.contains("--steps") {
            line = line.replace(from, to);
        }
    }
    line.replace("COMMIT", COMMIT)
}

/// A folder in which the commands of a block run.
struct World {
    folder: tempfile::TempDir,
    endpoint: String,
}

impl World {
    fn new(endpoint: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in FOLDERS.iter().chain(&["bin"]) {
            std::fs::create_dir_all(folder.path().join(name))?;
        }
        for (name, script) in STAND_INS {
            crate::install_script(script, &folder.path().join("bin").join(name))?;
        }
        Ok(Self { folder, endpoint: endpoint.to_owned() })
    }

    /// Runs a line in a shell, which fails if any part of a pipe does.
    fn shell(&self, line: &str) -> Result<Run> {
        let mut command = launched(Command::new("timeout"), &[LIMIT, "bash", "-o", "pipefail", "-c", line]);
        let binary = Path::new(crate::GPT2).parent().ok_or("a folder")?.to_path_buf();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders =
            [self.folder.path().join("bin"), binary].into_iter().chain(std::env::split_paths(&path));
        command.current_dir(self.folder.path()).env("PATH", std::env::join_paths(folders)?);
        command.env("HOME", self.folder.path()).env("TMPDIR", self.folder.path());
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_HUB_CACHE", self.folder.path().join("cache"));
        Run::of(command)
    }

    /// Makes what a line names and does not make itself.
    fn supply(&self, line: &str) -> Result {
        let words = words(line);
        let made = |name: &str| {
            words
                .windows(2)
                .any(|pair| ["--out", "--html", "--jsonl"].contains(&pair[0].as_str()) && pair[1] == name)
        };
        let named = |name: &str| {
            let is = |word: &String| word.trim_start_matches("./").split('=').next() == Some(name);
            words.iter().any(is) && !self.folder.path().join(name).exists()
        };
        let path = |name: &str| self.folder.path().join(name);
        let long = [
            "notes.txt",
            "lines.txt",
            "poems.txt",
            "shakespeare.txt",
            "plays.html",
            "plays.txt",
            "licenses.txt",
        ]
        .map(|name| (name, TEXT));
        let short = [("prompt.txt", "O Romeo, Romeo\n"), ("prompts.txt", "O Romeo\nTo be, or not to be\n")];
        for (name, text) in long.into_iter().chain(short) {
            if named(name) {
                std::fs::write(path(name), text)?;
            }
        }
        for (name, field) in [("prompts.jsonl", "text"), ("stories.jsonl", "story")] {
            if named(name) {
                std::fs::write(path(name), format!("{{\"{field}\": \"O Romeo, Romeo\"}}\n").repeat(2))?;
            }
        }
        for (name, file) in [("quiz.jsonl", "quiz.jsonl"), ("validation.jsonl", "hellaswag.jsonl")] {
            if line.contains(name) {
                std::fs::copy(data("eval").join(file), path(name))?;
            }
        }
        if named("chats.jsonl") {
            let line = |i| format!("{{\"prompt\": \"O {i}\", \"completion\": \" Romeo {i}\"}}\n");
            std::fs::write(path("chats.jsonl"), (0..20).map(line).collect::<String>())?;
        }
        if named("texts/") {
            std::fs::create_dir(path("texts"))?;
            std::fs::write(path("texts/a.txt"), "O Romeo, Romeo")?;
            std::fs::write(path("texts/b.txt"), "To be, or not to be")?;
        }
        for name in ["path/to/gpt2", "models/tiny-shakespeare", "my-model"] {
            if named(name) && !made(name) {
                std::fs::create_dir_all(path(name))?;
                copy_demo(&path(name))?;
            }
        }
        for (name, file) in [("out/ckpt.pt", "ckpt.pt"), ("gpt2_124M.bin", "llmc.bin")] {
            if named(name) && !made(name) {
                std::fs::create_dir_all(path("out"))?;
                std::fs::copy(data("brought").join(file), path(name))?;
            }
        }
        for (name, format) in [("gpt2-q8_0.gguf", "q8_0"), ("gpt2-q4_0.gguf", "q4_0")] {
            if named(name) && !made(name) {
                self.shell(&format!("gpt2 quantize --to {format} --out {name}"))?.succeeded();
            }
        }
        if named("activations") && !made("activations") {
            std::fs::write(path("recorded.txt"), TEXT)?;
            let record = "gpt2 record recorded.txt --points blocks.2.hook_resid_post --out activations";
            self.shell(record)?.succeeded();
        }
        for layer in 0..4 {
            let name = format!("t{layer}");
            let used = words.iter().any(|word| word.split(',').any(|part| part == name));
            if used && !made(&name) && !path(&name).exists() {
                std::fs::write(path("recorded.txt"), TEXT)?;
                let points =
                    format!("--point blocks.{layer}.mlp.hook_in --writes blocks.{layer}.hook_mlp_out");
                let sizes = "--sparsity jumprelu --features 64 -k 4 --batch 64 --epochs 1";
                self.shell(&format!("gpt2 train-features recorded.txt {points} {sizes} --out {name}"))?
                    .succeeded();
            }
        }
        if named("sae") {
            std::fs::create_dir(path("sae"))?;
            for name in ["cfg.json", "sae_weights.safetensors"] {
                std::fs::copy(data("features/demo").join(name), path("sae").join(name))?;
            }
        }
        for name in ["poems", "plays"] {
            if named(name) && !made(name) {
                let text = path("of-an-adapter.txt");
                std::fs::write(&text, TEXT)?;
                let train = "--lora 2 --steps 1 --batch 1 --window 32 --text of-an-adapter.txt";
                self.shell(&format!("gpt2 train --model {DEMO} --out {name} {train}"))?.succeeded();
            }
        }
        Ok(())
    }
}

fn run(blocks: &[Block]) -> Result {
    let mut files: Vec<(String, Vec<u8>)> = crate::hub::repository();
    let gguf = tempfile::tempdir()?;
    let path = gguf.path().join("model.gguf");
    Run::of(command(&["quantize", "--to", "q4_0", "--out"]).arg(&path))?.succeeded();
    files.push(("FILE.gguf".into(), std::fs::read(path)?));
    let hub = Server::start(files);
    let endpoint = hub.endpoint();
    // Two at a time, since many of the commands wait, or run on one core.
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut failed = vec![];
        while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
            match failures(block, &endpoint) {
                Ok(found) => failed.extend(found),
                Err(error) => failed.push(format!("{}: {error}", block.page)),
            }
        }
        failed
    };
    let failed = std::thread::scope(|scope| {
        let other = scope.spawn(worker);
        let mut failed = worker();
        failed.extend(other.join().expect("no panic"));
        failed
    });
    assert!(failed.is_empty(), "{} examples fail\n\n{}", failed.len(), failed.join("\n"));
    Ok(())
}

/// Runs a block; what fails, in words.
fn failures(Block { page, lines }: &Block, endpoint: &str) -> Result<Vec<String>> {
    let world = World::new(endpoint)?;
    if lines.iter().any(|line| line.contains("verify-cache")) {
        world.shell("gpt2 download gpt2")?.succeeded();
    }
    let mut failed = vec![];
    for line in lines {
        let instead = replaced(line);
        world.supply(&instead)?;
        let run = world.shell(&instead)?;
        if run.code != 0 {
            failed.push(format!("{page}: {line}\n  as {instead}\n  exits with {}: {}", run.code, run.stderr));
        }
    }
    Ok(failed)
}

#[test]
fn every_example_of_the_help_runs() -> Result {
    let mut blocks = vec![];
    of_help(&[], &mut blocks)?;
    assert!(blocks.len() > 20, "{} pages of help", blocks.len());
    run(&blocks)
}

#[test]
fn every_example_of_the_pages_runs() -> Result {
    let blocks = of_pages()?;
    let lines: usize = blocks.iter().map(|block| block.lines.len()).sum();
    assert!(lines > 40, "{lines} examples");
    run(&blocks)
}

#[test]
fn no_replacement_is_left_over() -> Result {
    let mut blocks = of_pages()?;
    of_help(&[], &mut blocks)?;
    let all = blocks.iter().flat_map(|block| &block.lines).map(|line| format!("{} ", without_comment(line)));
    let all: Vec<String> = all.collect();
    for (from, ..) in REPLACED {
        assert!(all.iter().any(|line| line.contains(from)), "no example has {from:?}");
    }
    Ok(())
}

/// Commands in running text name commands and options that exist.
#[test]
fn commands_in_the_text_exist() -> Result {
    let names = commands(&[])?;
    let mut seen = 0;
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        // Every second part of a page stands in a block.
        let prose: Vec<&str> = text.split("\n```").step_by(2).collect();
        for span in prose.join("\n").replace('\n', " ").split('`').skip(1).step_by(2) {
            let Some(line) = span.split("gpt2 ").nth(1).filter(|_| span.starts_with("gpt2 ")) else {
                continue;
            };
            let words = words(line);
            let Some(name) = words.first().filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            assert!(
                names.contains(name) || name == "help",
                "{}: no command {name:?} in {span:?}",
                page.display()
            );
            let help = if name == "help" { continue } else { stdout(&["help", name])? };
            for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let option = option.split(['=', '[']).next().unwrap_or_default();
                let has = help.split_whitespace().any(|word| {
                    word.strip_prefix("--")
                        .is_some_and(|word| word.split(['=', '[', ',']).next() == Some(option))
                });
                assert!(has, "{}: gpt2 {name} has no --{option}, which {span:?} names", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} commands");
    Ok(())
}
