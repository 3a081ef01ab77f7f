//! Signals and commands: whatever ends a run, it says so, and leaves nothing half written.

#![allow(clippy::print_stdout)] // the table of signals and commands: cargo test -- signals --nocapture

mod cases;

use super::hub::repository;
use super::hub::server::{At, Fault, Server};
use super::stdin_stdout::into_nothing;
use super::{DEMO, GPT2, Run, command, gpt2, json, launched, signal, spawn};
use crate::common::{Result, data};
use crate::folder::{Folder, Tensors, assert_says, serialized, zeros};
use cases::{CASES, Ready};
use safetensors::Dtype;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The signals that end a run, and their numbers.
const ENDING: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("HUP", 1)];
const POINT: &str = "blocks.2.hook_resid_post";
/// The sizes of a model that takes some seconds to write.
const WIDE: (usize, usize) = (1024, 4);

/// The files that the commands read, made once.
struct World {
    folder: Folder,
    server: Server,
}

impl World {
    fn new() -> Result<Self> {
        let folder = Folder::empty()?;
        let line = "O Romeo, Romeo! wherefore art thou Romeo?\n";
        folder.write("long.txt", line.repeat(40_000))?;
        folder.write("short.txt", line.repeat(300))?;
        folder.write("page.txt", line.repeat(10))?;
        gpt2(&[
            "record",
            &folder.at("short.txt"),
            "--points",
            POINT,
            "--shard-tokens",
            "256",
            "--out",
            &folder.at("store"),
        ])?
        .succeeded();
        let store = folder.at("store");
        let usual = ["--features", "64", "-k", "4", "--batch", "32", "--epochs", "1", "--out"];
        gpt2(&[&["train-features", &store][..], &usual, &[&folder.at("sae")]].concat())?.succeeded();
        long_store(&folder)?;
        let pairs = gpt2(&["pairs", "induction", "--count", "200"])?.succeeded().stdout;
        folder.write("pairs.jsonl", pairs)?;
        let question = "{\"context\": \"O Romeo, Romeo! wherefore\", \"choices\": [\" art thou Romeo?\", \" am I\"], \"answer\": 0}\n";
        folder.write("quiz.jsonl", question.repeat(20_000))?;
        let example = "{\"prompt\": \"O Romeo,\", \"completion\": \" Romeo!\"}\n";
        folder.write("chats.jsonl", example.repeat(2000))?;
        folder.write("ids.bin", (0..20_000u16).flat_map(|n| (n % 300).to_le_bytes()).collect::<Vec<u8>>())?;
        std::fs::copy(data("eval").join("answers.json"), folder.file("answers.json"))?;
        wide(&folder.file("wide"))?;
        let server = Server::start(repository());
        server.fault(At::Get("model.safetensors"), Fault::Drip(40, Duration::from_millis(100)), None);
        Ok(Self { folder, server })
    }

    /// The arguments, with `@name` for a path in the folder.
    fn args(&self, line: &str) -> Vec<String> {
        let path = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.folder.at(name),
            None => word.to_owned(),
        };
        line.split_whitespace().map(path).collect()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = hearing(&self.args(line));
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HUB_CACHE", self.folder.file("cache"));
        command
    }

    /// Removes all that the runs wrote.
    fn clear(&self) -> Result {
        for name in ["out", "cache"] {
            let path = self.folder.file(name);
            if path.exists() {
                std::fs::remove_dir_all(&path)?;
            }
        }
        std::fs::create_dir(self.folder.file("out"))?;
        Ok(())
    }

    /// All files below `out`.
    fn left(&self) -> Result<Vec<String>> {
        let mut found = vec![];
        let mut folders = vec![self.folder.file("out")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    found.push(name_of(&path, &self.folder) + "/");
                    folders.push(path);
                } else {
                    found.push(name_of(&path, &self.folder));
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

/// The binary as a person starts it. Under `nohup`, or behind a script's `&`, the tests ignore signals, and so would their children.
fn hearing(args: &[String]) -> Command {
    if cfg!(target_os = "linux") {
        let mut env = Command::new("env");
        env.args(["--default-signal=HUP,INT,TERM", GPT2]);
        return launched(env, args);
    }
    command(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The exit code of a run that was sent a signal, which it must obey within a minute.
fn code_of(what: &str, child: &mut Child) -> Result<Option<i32>> {
    let sent = Instant::now();
    while sent.elapsed() < Duration::from_mins(1) {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    Err(format!("{what}: goes on as if there had been no signal").into())
}

/// A store that takes some seconds to read: one shard, under many names.
fn long_store(folder: &Folder) -> Result {
    const SHARDS: usize = 500;
    let text = folder.at("short.txt");
    let out = folder.at("values");
    gpt2(&["record", &text, "--points", POINT, "--out", &out])?.succeeded();
    let path = folder.file("values/store.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let tokens = index["shards"][0].clone();
    index["shards"] = vec![tokens; SHARDS].into();
    std::fs::write(&path, index.to_string())?;
    for number in 1..SHARDS {
        let shard = |number: usize| folder.file(&format!("values/{number:05}.safetensors"));
        std::fs::hard_link(shard(0), shard(number))?;
    }
    Ok(())
}

fn name_of(path: &Path, folder: &Folder) -> String {
    path.strip_prefix(folder.file("out")).unwrap_or(path).display().to_string()
}

/// A model of zeros, large enough that writing it takes time.
fn wide(folder: &Path) -> Result {
    let (c, layers) = WIDE;
    std::fs::create_dir(folder)?;
    std::fs::copy(Path::new(DEMO).join("tokenizer.json"), folder.join("tokenizer.json"))?;
    let text = std::fs::read(Path::new(DEMO).join("config.json"))?;
    let mut config: Value = serde_json::from_slice(&text)?;
    let size =
        |config: &Value, name: &str| config[name].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let (v, n) = (size(&config, "vocab_size"), size(&config, "n_positions"));
    for (name, value) in [("n_embd", c), ("n_layer", layers), ("n_head", 8), ("n_inner", 4 * c)] {
        config[name] = value.into();
    }
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(format!("transformer.{name}"), zeros(Dtype::F16, shape));
    };
    add("wte.weight".into(), &[v, c]);
    add("wpe.weight".into(), &[n, c]);
    for i in 0..layers {
        for (name, n_in, n_out) in [
            ("attn.c_attn", c, 3 * c),
            ("attn.c_proj", c, c),
            ("mlp.c_fc", c, 4 * c),
            ("mlp.c_proj", 4 * c, c),
        ] {
            add(format!("h.{i}.{name}.weight"), &[n_in, n_out]);
            add(format!("h.{i}.{name}.bias"), &[n_out]);
        }
        for name in ["ln_1", "ln_2"] {
            add(format!("h.{i}.{name}.weight"), &[c]);
            add(format!("h.{i}.{name}.bias"), &[c]);
        }
    }
    add("ln_f.weight".into(), &[c]);
    add("ln_f.bias".into(), &[c]);
    Ok(std::fs::write(folder.join("model.safetensors"), serialized(&tensors)?)?)
}

/// Waits until the run is in the middle, or has ended.
fn wait(world: &World, ready: &Ready, log: &Path, child: &mut Child) -> Result {
    let started = Instant::now();
    let is_ready = || -> Result<bool> {
        Ok(match ready {
            // A temporary file that is empty only tries whether the folder can be written to.
            Ready::Has(start) => world.left()?.iter().any(|name| {
                let size =
                    std::fs::metadata(world.folder.file("out").join(name)).map_or(0, |found| found.len());
                name.starts_with(start) && (size > 0 || !start.contains(".gpt2-"))
            }),
            Ready::Lines(name, lines) => {
                let text = std::fs::read_to_string(world.folder.file("out").join(name)).unwrap_or_default();
                text.lines().count() >= *lines
            }
            Ready::Says(text) => std::fs::read_to_string(log)?.contains(text),
            Ready::After(millis) => started.elapsed() > Duration::from_millis(*millis),
        })
    };
    while !is_ready()? && child.try_wait()?.is_none() {
        assert!(started.elapsed() < Duration::from_mins(1), "{}: never in the middle", log.display());
        std::thread::sleep(Duration::from_millis(2));
    }
    // `train-features` listens right after it has made its folder.
    std::thread::sleep(Duration::from_millis(if matches!(ready, Ready::Has("f")) { 500 } else { 0 }));
    Ok(())
}

#[test]
fn a_signal_ends_every_command_with_its_number_and_leaves_nothing_half_written() -> Result {
    let world = World::new()?;
    let mut hits = 0;
    let mut table = vec![];
    for case in &CASES {
        for (name, number) in ENDING {
            world.clear()?;
            let log = world.folder.file("stderr");
            let mut run = world.command(case.line);
            run.stdout(std::process::Stdio::null()).stderr(std::fs::File::create(&log)?);
            let mut child = run.spawn()?;
            wait(&world, &case.ready, &log, &mut child)?;
            signal(name, child.id()).ok(); // it may have ended
            let what = format!("{} x SIG{name}", case.line);
            let code = code_of(&what, &mut child)?;
            let stderr = std::fs::read_to_string(&log)?;
            let left = world.left()?;
            table.push(format!("{what}: {code:?}, left {left:?}, {:?}", stderr.lines().last()));
            assert!(!left.iter().any(|name| name.contains(".gpt2-")), "{what}: {left:?}");
            // A short one may have been faster.
            if code == Some(0) {
                continue;
            }
            hits += 1;
            assert_eq!(code, Some(128 + number), "{what}: {stderr}");
            assert_says(&what, &stderr, case.says);
            let shards = |name: &&String| !name.starts_with("r/0") && *name != "r/store.json";
            let left: Vec<&String> = left.iter().filter(shards).collect();
            assert_eq!(left, case.left.iter().collect::<Vec<_>>(), "{what}: {stderr}");
        }
    }
    assert!(hits > 36, "only {hits} runs were hit in the middle:\n{}", table.join("\n"));
    Ok(())
}

/// An adapter of the wide model, of zeros.
fn adapter(folder: &Folder) -> Result<String> {
    let c = WIDE.0;
    let path = folder.file("lora");
    std::fs::create_dir_all(&path)?;
    let config = r#"{"peft_type": "LORA", "r": 2, "target_modules": ["h.0.attn.c_proj"]}"#;
    std::fs::write(path.join("adapter_config.json"), config)?;
    let name = |factor: &str| format!("base_model.model.transformer.h.0.attn.c_proj.lora_{factor}.weight");
    let tensors: Tensors =
        [(name("A"), zeros(Dtype::F32, &[2, c])), (name("B"), zeros(Dtype::F32, &[c, 2]))].into();
    std::fs::write(path.join("adapter_model.safetensors"), serialized(&tensors)?)?;
    Ok(path.display().to_string())
}

/// A merge that replaces a model leaves the old one or the new one, and says which.
#[test]
fn a_merge_that_is_stopped_leaves_the_old_model_whole() -> Result {
    let world = World { folder: Folder::empty()?, server: Server::start(repository()) };
    wide(&world.folder.file("wide"))?;
    adapter(&world.folder)?;
    for (name, number) in ENDING {
        world.clear()?;
        let old = world.folder.file("out/m");
        std::fs::create_dir(&old)?;
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(Path::new(DEMO).join(file), old.join(file))?;
        }
        let line = "merge --model @wide --adapter @lora --out @out/m --overwrite";
        let mut child = spawn(world.command(line))?;
        let log = world.folder.file("none");
        wait(&world, &Ready::Has("m/.gpt2-"), &log, &mut child)?;
        signal(name, child.id())?;
        let run = Run::end_of(child)?;
        assert_eq!(run.code, 128 + number, "{run:?}");
        assert_says(name, &run.stderr, &["stopped by ", "model.safetensors is as it was before"]);
        assert_eq!(world.left()?, ["m/", "m/config.json", "m/model.safetensors", "m/tokenizer.json"]);
        for file in ["config.json", "model.safetensors"] {
            assert!(
                std::fs::read(old.join(file))? == std::fs::read(Path::new(DEMO).join(file))?,
                "{name}: {file}"
            );
        }
    }
    Ok(())
}

/// A merge that is killed leaves the old model whole, or no model that a reader would take for one, and the next run mends it.
#[test]
fn a_merge_that_is_killed_leaves_no_mixture() -> Result {
    let world = World { folder: Folder::empty()?, server: Server::start(repository()) };
    wide(&world.folder.file("wide"))?;
    adapter(&world.folder)?;
    let line = "merge --model @wide --adapter @lora --out @out/m --overwrite";
    let out = world.folder.file("out/m");
    let read = |name: &str| std::fs::read(out.join(name)).ok();
    let old = ["config.json", "model.safetensors", "tokenizer.json"];
    let before = |name: &str| std::fs::read(Path::new(DEMO).join(name)).ok();
    let fresh = |world: &World| -> Result {
        world.clear()?;
        std::fs::create_dir(&out)?;
        for name in old {
            std::fs::copy(Path::new(DEMO).join(name), out.join(name))?;
        }
        Ok(())
    };
    fresh(&world)?;
    let began = Instant::now();
    Run::of(world.command(line))?.succeeded();
    let lasts = began.elapsed();
    let after: Vec<_> = old.iter().map(|name| read(name)).collect();
    // From the beginning to the end; most of the time goes into writing, and the last part into renaming.
    for step in 1..=10u32 {
        fresh(&world)?;
        let mut child = spawn(world.command(line))?;
        std::thread::sleep(lasts * step / 10);
        child.kill()?;
        child.wait()?;
        let now: Vec<_> = old.iter().map(|name| read(name)).collect();
        let is_old = old.iter().zip(&now).all(|(name, now)| *now == before(name));
        let is_new = now == after;
        let is_none = now[0].is_none();
        assert!(is_old || is_new || is_none, "{step} of 10: a mixture of two models");
        if is_none {
            let refused = gpt2(&["inspect", &out.display().to_string()])?;
            refused.refused(1, &["no config.json here"]);
        }
    }
    // Whatever the killed runs left, the next one writes the whole model.
    Run::of(world.command(line))?.succeeded();
    assert!(old.iter().map(|name| read(name)).eq(after), "the next run wrote another model");
    Ok(())
}

/// A write fails and is told where a file may not grow any further, like on a full disk.
#[test]
fn a_limit_on_the_size_of_files_is_an_error() -> Result {
    let world = World::new()?;
    adapter(&world.folder)?;
    for line in [
        "score @long.txt --by line --jsonl @out/s.jsonl",
        "eval @quiz.jsonl --limit 300 --samples --out @out/e.json",
        "quantize @wide --to q4_0 --out @out/w.gguf",
        "merge --model @wide --adapter @lora --out @out/m",
        "train --text @short.txt --out @out/t --steps 2 --eval-every 1",
        "train-features @store --features 4096 -k 4 --batch 32 --epochs 1 --out @out/f",
        "record @short.txt --points blocks.2.hook_resid_post --shard-tokens 65536 --out @out/r",
        "attention --file @page.txt --export @out/x.safetensors",
        "attention O --html @out/x.html",
        "download gpt2",
        "import @wide --out @out/m",
        "live --out @out/l.html",
        "train --ids @ids.bin --vocab-size 300 --out @out/t --steps 2 --eval-every 1",
    ] {
        world.clear()?;
        let mut shell = Command::new("sh");
        // 64 blocks of 512 bytes.
        shell.args(["-c", "ulimit -f 64; exec \"$0\" \"$@\"", GPT2]);
        let mut shell = launched(shell, &world.args(line));
        shell.env("HF_ENDPOINT", world.server.endpoint()).env("HF_HUB_CACHE", world.folder.file("cache"));
        let run = Run::of(shell)?;
        assert_eq!(run.code, 1, "{line}: {run:?}");
        assert_says(line, &run.stderr, &["error: ", "too large"]);
        let left = world.left()?;
        assert!(!left.iter().any(|name| name.contains(".gpt2-")), "{line}: {left:?}");
        assert!(!left.iter().any(|name| name.ends_with(".safetensors")), "{line}: {left:?}");
    }
    Ok(())
}

/// A reader of the result that goes away is no error, and what the run writes to files is there.
#[test]
fn a_reader_that_goes_away_loses_no_file() -> Result {
    let world = World::new()?;
    adapter(&world.folder)?;
    for (line, files) in [
        ("score @short.txt --by line --jsonl @out/s.jsonl", &["s.jsonl"][..]),
        ("eval @quiz.jsonl --limit 2 --out @out/e.json", &["e.json"]),
        ("quantize --to q4_0 --out @out/w.gguf", &["w.gguf"]),
        ("train --text @short.txt --out @out/t --steps 2", &["t/model.safetensors"]),
        ("train-features @store --features 64 -k 4 --batch 32 --epochs 1 --out @out/f", &["f/cfg.json"]),
        (
            "record @short.txt --points blocks.2.hook_resid_post --out @out/r",
            &["r/store.json", "r/00000.safetensors"],
        ),
        ("import @wide --out @out/m", &["m/model.safetensors", "m/config.json"]),
        ("live --out @out/l.html", &["l.html"]),
        ("verify --published --answers @answers.json", &[]),
        ("features --store @store --dictionary @sae", &[]),
        ("generate O -n 20", &[]),
        ("merge --model @wide --adapter @lora --out @out/m", &["m/model.safetensors"]),
        ("discover --pairs @pairs.jsonl --out @out/c.json --edges 10", &["c.json"]),
    ] {
        world.clear()?;
        let args = world.args(line);
        let run = into_nothing(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
        assert_eq!(run.code, 0, "{line}: {run:?}");
        assert!(!run.stderr.to_lowercase().contains("error"), "{line}: {run:?}");
        let left = world.left()?;
        assert!(files.iter().all(|file| left.iter().any(|name| name == file)), "{line}: {left:?}");
        assert!(!left.iter().any(|name| name.contains(".gpt2-")), "{line}: {left:?}");
    }
    Ok(())
}

/// A terminal that is closed ends no run that nohup started.
#[test]
#[cfg(target_os = "linux")]
fn a_run_under_nohup_goes_on_when_its_terminal_is_closed() -> Result {
    let folder = Folder::empty()?;
    folder.write("text.txt", "O Romeo, Romeo!\n".repeat(2000))?;
    let text = folder.at("text.txt");
    let args = ["score", &text, "--by", "line", "--json"];
    let mut nohup = Command::new("nohup");
    nohup.arg(GPT2);
    let child = spawn(launched(nohup, &args))?;
    std::thread::sleep(Duration::from_millis(300));
    signal("HUP", child.id())?;
    let found: Value = serde_json::from_str(&Run::end_of(child)?.succeeded().stdout)?;
    assert_eq!(found, json(&args)?);
    Ok(())
}
