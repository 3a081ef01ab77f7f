//! The folders of `gpt2 features --pages` and `--neuronpedia`: whole or not at all, and no harm to what the run reads.

use super::{Run, command, copy_demo, gpt2, launched};
use crate::common::Result;
use crate::folder::{Folder, assert_says, names_in};
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// A store of the demo model's values, in a folder of its own.
struct Corpus {
    folder: Folder,
    store: String,
}

impl Corpus {
    fn new() -> Result<Self> {
        let folder = Folder::empty()?;
        folder.write("text.txt", "I love thee, and thou art fair\n".repeat(4))?;
        let store = folder.at("store");
        let point = "blocks.2.hook_resid_post";
        gpt2(&["record", &folder.at("text.txt"), "--points", point, "--out", &store])?.succeeded();
        Ok(Self { folder, store })
    }

    fn at(&self, name: &str) -> String {
        self.folder.at(name)
    }

    /// The arguments of a run over the store with the demo dictionary.
    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["features", "--store", &self.store, "--dictionary", "demo", "-k", "2"][..], more].concat()
    }

    fn run(&self, more: &[&str]) -> Result<Run> {
        gpt2(&self.args(more))
    }

    /// Fails unless a run is refused with `says`, and leaves the folder as it was.
    #[track_caller]
    fn refused(&self, more: &[&str], says: &[&str]) -> Result {
        let before = tree(self.folder.path())?;
        self.run(more)?.refused(1, says);
        assert_eq!(tree(self.folder.path())?, before, "{more:?}");
        Ok(())
    }
}

/// All paths below a folder, with the content of files.
fn tree(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = vec![];
    for name in names_in(folder)? {
        let path = folder.join(&name);
        if path.is_dir() {
            found.push((format!("{}/", path.display()), vec![]));
            found.extend(tree(&path)?);
        } else {
            found.push((path.display().to_string(), std::fs::read(&path)?));
        }
    }
    Ok(found)
}

/// A dictionary with many features that all fire everywhere.
fn wide_dictionary(folder: &Folder, features: usize) -> Result<String> {
    let path = folder.at("wide");
    std::fs::create_dir(&path)?;
    let config = serde_json::json!({
        "architecture": "standard", "d_in": 128, "d_sae": features, "dtype": "float32", "apply_b_dec_to_input": true,
        "normalize_activations": "none", "reshape_activations": "none",
        "metadata": {
            "model_name": "tiny-shakespeare", "hook_name": "blocks.2.hook_resid_post", "prepend_bos": false,
            "sae_lens_version": "6.54.12",
        },
    });
    std::fs::write(format!("{path}/cfg.json"), config.to_string())?;
    let device = &Device::Cpu;
    let filled = |shape: &[usize]| -> Result<Tensor> {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| ((i * 7919) % 1000) as f32 * 1e-6 - 5e-4).collect();
        Ok(Tensor::from_vec(values, shape, device)?)
    };
    let tensors: HashMap<&str, Tensor> = [
        ("W_enc", filled(&[128, features])?),
        ("W_dec", filled(&[features, 128])?),
        ("b_enc", Tensor::ones(features, candle_core::DType::F32, device)?),
        ("b_dec", Tensor::zeros(128, candle_core::DType::F32, device)?),
    ]
    .into();
    candle_core::safetensors::save(&tensors, format!("{path}/sae_weights.safetensors"))?;
    Ok(path)
}

/// Hundreds of files take no more open files than one.
#[cfg(unix)]
#[test]
fn many_files_need_few_open_ones() -> Result {
    const FEATURES: usize = 8192;
    let corpus = Corpus::new()?;
    let dictionary = wide_dictionary(&corpus.folder, FEATURES)?;
    let pages = corpus.at("pages");
    let upload = corpus.at("upload");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]);
    let args = ["features", "--store", &corpus.store, "--dictionary", &dictionary, "-k", "1"];
    let folders = ["--pages", &pages, "--neuronpedia", &upload, "--neuronpedia-id", "tiny/2-wide"];
    let program = command(&[]);
    let program =
        program.get_program().to_str().into_iter().chain(program.get_args().filter_map(|arg| arg.to_str()));
    let all: Vec<&str> = program.chain(args).chain(folders).collect();
    let run = Run::of(launched(shell, &all))?.succeeded();
    assert_eq!(run.stderr.matches("wrote ").count(), 2, "{}", run.stderr);
    assert_eq!(names_in(Path::new(&upload))?.len(), 1 + FEATURES / 128);
    assert_eq!(names_in(&Path::new(&pages).join("features"))?.len(), 1 + 64);
    assert_eq!(names_in(Path::new(&pages))?, ["features", "index.html"]);
    Ok(())
}

#[test]
fn folders_that_meet_are_refused() -> Result {
    let corpus = Corpus::new()?;
    let id = ["--neuronpedia-id", "tiny/2-mine"];
    for (pages, upload) in [
        ("new/out", "new/out"),
        ("new/out", "new/out/features"),
        ("new/out/pages", "new/out"),
        ("new", "x/../new"),
    ] {
        let pages = corpus.at(pages);
        let upload = corpus.at(upload);
        std::fs::create_dir_all(corpus.at("x"))?;
        let both = ["--pages", &pages, "--neuronpedia", &upload];
        corpus.refused(&[&both[..], &id].concat(), &["--neuronpedia", "--pages", "lies in the other"])?;
    }
    // Beside one another they are fine, and a failure takes both back.
    let pages = corpus.at("new/out/a");
    let upload = corpus.at("new/out/b");
    let both = [&["--pages", &pages, "--neuronpedia", &upload][..], &id].concat();
    corpus.refused(&[&both[..], &["--model", "./none"]].concat(), &["none"])?;
    corpus.run(&both)?.succeeded();
    corpus.refused(&both, &["--pages", "is there already", "--overwrite"])?;
    corpus.refused(&[&both[..], &["--overwrite"]].concat(), &["--neuronpedia", "holds files already"])?;
    Ok(())
}

#[test]
fn inputs_are_no_outputs() -> Result {
    let corpus = Corpus::new()?;
    let pages = corpus.at("pages");
    corpus.run(&["--pages", &pages])?.succeeded();
    let explanations = "{\"index\": \"713\", \"description\": \"thou\"}\n";
    // One that would be replaced, one that would be removed, and one that only lies there.
    for name in ["features/0.js", "features/99.js", "mine.jsonl"] {
        let file = corpus.at(&format!("pages/{name}"));
        std::fs::write(&file, explanations)?;
        let with = ["--pages", &pages, "--overwrite", "--explanations", &file];
        corpus.refused(&with, &["--pages", "a file of explanations", name, "this run reads"])?;
        std::fs::remove_file(&file)?;
    }
    corpus.refused(&["--pages", &corpus.folder.dir()], &["--pages", "a file of the store"])?;
    let model = corpus.at("outer/model");
    std::fs::create_dir_all(&model)?;
    copy_demo(model.as_ref())?;
    let of_model = ["--model", &model, "--pages"];
    corpus.refused(&[&of_model[..], &[&model]].concat(), &["--pages", "is the folder of the model"])?;
    let outer = corpus.at("outer");
    corpus.refused(
        &[&of_model[..], &[&outer]].concat(),
        &["--pages", "holds", "outer/model", "this run reads"],
    )?;
    let dictionary = wide_dictionary(&corpus.folder, 8)?;
    let with = ["features", "--store", &corpus.store, "--dictionary", &dictionary, "--pages", &dictionary];
    gpt2(&with)?.refused(1, &["--pages", "a file of the dictionary", "cfg.json"]);
    assert_eq!(names_in(Path::new(&dictionary))?.len(), 2);
    let cache = corpus.at("cache/models--x--y");
    std::fs::create_dir_all(&cache)?;
    corpus.refused(
        &["--cache-dir", &corpus.at("cache"), "--pages", &cache],
        &["--pages", "cache of the Hub"],
    )?;
    Ok(())
}

#[test]
fn what_cannot_be_a_folder_is_refused_before_the_work() -> Result {
    let corpus = Corpus::new()?;
    corpus.folder.write("file", "x")?;
    let id = ["--neuronpedia-id", "tiny/2-mine"];
    let file = corpus.at("file");
    // A model that is not there would be the next error.
    let none = ["--model", "./none"];
    corpus.refused(
        &[&["--pages", &file][..], &none].concat(),
        &["--pages", "file: is a file; name a folder"],
    )?;
    corpus.refused(
        &[&["--neuronpedia", &file][..], &id, &none].concat(),
        &["--neuronpedia", "file: is a file; name a folder"],
    )?;
    let data = corpus.at("pages/features");
    for (name, says) in [("features", "is a file"), ("features/5.js/x", "5.js: is a folder")] {
        std::fs::create_dir_all(corpus.folder.file("pages").join(name).parent().ok_or("a folder")?)?;
        std::fs::write(corpus.folder.file("pages").join(name), "x")?;
        let with = ["--pages", &corpus.at("pages"), "--overwrite"];
        corpus.refused(&[&with[..], &none].concat(), &["--pages", says])?;
        std::fs::remove_file(&data).or_else(|_| std::fs::remove_dir_all(&data))?;
    }
    Ok(())
}

#[test]
fn a_smaller_run_takes_away_the_files_of_a_larger_one() -> Result {
    let corpus = Corpus::new()?;
    let pages = corpus.at("pages");
    corpus.run(&["--pages", &pages])?.succeeded();
    let data = corpus.folder.file("pages/features");
    assert_eq!(names_in(&data)?.len(), 13);
    for own in ["own.js", "7.json", "٣.js"] {
        std::fs::write(data.join(own), "the user's")?;
    }
    let before = tree(&corpus.folder.file("pages"))?;
    // One that fails changes nothing.
    let fewer = ["--pages", &pages, "--overwrite", "--feature", "7"];
    let run = corpus.run(&[&fewer[..], &["--explanations", "none.json"]].concat())?;
    run.refused(1, &["none.json"]);
    assert_eq!(tree(&corpus.folder.file("pages"))?, before);
    let run = corpus.run(&fewer)?.succeeded();
    assert_says("stderr", &run.stderr, &["wrote ", "pages/index.html"]);
    assert_eq!(names_in(&data)?, ["0.js", "7.json", "index.js", "own.js", "٣.js"]);
    assert_eq!(names_in(Path::new(&pages))?, ["features", "index.html"]);
    Ok(())
}
