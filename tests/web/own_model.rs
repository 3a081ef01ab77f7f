//! Another model than the demo model in the page, from its start or chosen there.

use crate::common::Result;
use crate::page::{enter, expected_of, labels, look, open, open_on, settled};
use gpt2_loader::{Checkpoint, Files, GgufType, Source, Tokenizer, save_gguf};
use gpt2_web::Live;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model from files on disk, as a browser hands them over.
fn opened(name: &str, files: &[&Path]) -> Result<Live> {
    let content = |path: &&Path| -> Result<(String, Vec<u8>)> {
        let name = path.file_name().ok_or("a name")?.to_string_lossy().into_owned();
        Ok((name, std::fs::read(path)?))
    };
    let files: BTreeMap<_, _> = files.iter().map(content).collect::<Result<_>>()?;
    Ok(Live::open(&Files::in_memory(name, files)?)?)
}

/// The folder of the demo model.
pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-shakespeare")
}

/// Writes the demo model in 8 bits.
pub(crate) fn write_quantized(path: &Path) -> Result {
    let files = Source::directory(demo()).open()?;
    let checkpoint = Checkpoint::open(&files)?;
    let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
    Ok(save_gguf(path, &checkpoint, &tokenizer, GgufType::Q8_0, &mut |_, _, _| Ok(()))?)
}

/// A page may come with another model than the demo model: one GGUF file, or the files of a folder.
#[test]
fn the_page_opens_on_the_model_that_is_in_it() -> Result {
    const TEXT: &str = "O Romeo, Romeo!";
    let folder = tempfile::tempdir()?;
    let gguf = folder.path().join("small.gguf");
    write_quantized(&gguf)?;
    for (files, caption) in [
        (Files::open_gguf(&gguf)?, "f32 in this browser, weights in q8_0, fused attention"),
        (Source::directory(demo()).open()?, "f32 in this browser, fused attention"),
    ] {
        open_on(Some(&files), TEXT, |page| {
            let (tokens, kinds) = expected_of(&Live::open(&files)?, &look(TEXT))?;
            assert_eq!(page.text("#about")?, format!("{tokens} tokens, 16 heads"));
            assert_eq!((labels(page)?, &*page.text("#caption")?), (kinds, caption));
            assert_ne!(page.text("#title")?, "tiny-shakespeare (built in)");
            page.click("#live-next")?;
            settled(page)?;
            assert_ne!(page.get("document.getElementById('live-text').value")?, TEXT, "a token is drawn");
            Ok(())
        })?;
    }
    Ok(())
}

/// The demo model's first block alone, as the files of a folder.
fn one_block(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut config: Value = serde_json::from_slice(&std::fs::read(demo().join("config.json"))?)?;
    config["n_layer"] = 1.into();
    let mut tensors =
        candle_core::safetensors::load(demo().join("model.safetensors"), &candle_core::Device::Cpu)?;
    tensors.retain(|name, _| !(1..4).any(|layer| name.contains(&format!("h.{layer}."))));
    let paths = ["config.json", "model.safetensors", "tokenizer.json"].map(|name| folder.join(name));
    std::fs::write(&paths[0], config.to_string())?;
    candle_core::safetensors::save(&tensors, &paths[1])?;
    std::fs::copy(demo().join("tokenizer.json"), &paths[2])?;
    Ok(paths.to_vec())
}

/// Another model may lack the head that the way of a token is open on, or a change that is set.
#[test]
fn a_smaller_model_takes_the_place_of_a_larger_one() -> Result {
    const TEXT: &str = "O Romeo, Romeo!";
    let folder = tempfile::tempdir()?;
    let paths = one_block(folder.path())?;
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    open(TEXT, |page| {
        page.head("3.3")?;
        page.click("#live-way")?;
        page.until("document.querySelectorAll('#way-stages details').length > 0")?;
        page.click("#live-ablate")?;
        settled(page)?;
        page.choose("#live-files", &paths)?;
        page.until("document.getElementById('about').textContent === '7 tokens, 4 heads'")?;
        page.until("document.getElementById('way-of').textContent.includes('head 0.')")?;
        assert_eq!(page.texts("#live-changes button")?, [""; 0]);
        assert_eq!(page.get("document.getElementById('live-status').classList.contains('wrong')")?, false);
        Ok(())
    })
}

#[test]
fn a_model_of_the_readers_own_runs_in_the_page() -> Result {
    const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";
    let folder = tempfile::tempdir()?;
    let source = demo();
    let gguf = folder.path().join("small.gguf");
    write_quantized(&gguf)?;
    let names = ["config.json", "model.safetensors", "tokenizer.json"];
    let parts: Vec<PathBuf> = names.iter().map(|name| source.join(name)).collect();
    let parts: Vec<&Path> = parts.iter().map(PathBuf::as_path).collect();
    let damaged = folder.path().join("damaged.gguf");
    let whole = std::fs::read(&gguf)?;
    std::fs::write(&damaged, &whole[..whole.len() / 2])?;

    open(TEXT, |page| {
        let shows = |live: &Live, caption: &str| -> Result {
            let (tokens, kinds) = expected_of(live, &look(TEXT))?;
            assert_eq!(page.text("#about")?, format!("{tokens} tokens, 16 heads"));
            assert_eq!(labels(page)?, kinds);
            assert_eq!(page.text("#caption")?, caption);
            let status = page.text("#live-status")?;
            assert!(status.starts_with(&format!("{tokens} tokens, ")), "{status}");
            Ok(())
        };
        page.click("#live-ablate")?;
        settled(page)?;
        page.choose("#live-files", &[&gguf])?;
        settled(page)?;
        let quantized = opened("small.gguf", &[&gguf])?;
        shows(&quantized, "f32 in this browser, weights in q8_0, fused attention")?;
        assert_eq!(page.texts("#live-changes button")?, [""; 0], "changes of the model before");
        // What cannot be read is said, and the model stays.
        for (files, says) in [
            (&[&*damaged][..], "damaged.gguf: damaged or not a GGUF file"),
            (&[&gguf, &damaged], "your files: weights in several files"),
            (&[&parts[0].with_file_name("README.md")], "README.md: no model. It is one GGUF file"),
            (&parts[..1], "config.json: no weights here"),
            (&parts[1..2], "model.safetensors: no config.json here"),
            (&parts[..2], "your files: no tokenizer here"),
        ] {
            page.choose("#live-files", files)?;
            settled(page)?;
            let status = page.text("#live-status")?;
            assert!(status.starts_with(says), "{status}");
            page.click("#live-next")?;
            settled(page)?;
            assert_ne!(page.get("document.getElementById('live-text').value")?, TEXT, "a token is drawn");
            enter(page, TEXT)?;
            shows(&quantized, "f32 in this browser, weights in q8_0, fused attention")?;
        }
        page.choose("#live-files", &parts)?;
        settled(page)?;
        shows(&opened("your files", &parts)?, "f32 in this browser, fused attention")?;
        // What was said of one model does not hide that the next one opened.
        page.choose("#live-files", &[&damaged])?;
        settled(page)?;
        page.choose("#live-files", &parts)?;
        settled(page)?;
        shows(&opened("your files", &parts)?, "f32 in this browser, fused attention")?;
        // A model that is chosen while another question is on its way is opened after it.
        page.get("(() => { const t = document.getElementById('live-text'); t.dispatchEvent(new Event('input')) })()")?;
        page.choose("#live-files", &[&gguf])?;
        settled(page)?;
        shows(&quantized, "f32 in this browser, weights in q8_0, fused attention")
    })
}

/// With another model, the lessons name the heads that they find in it, and say where there is none. One click leads back.
#[test]
fn lessons_look_for_heads_in_any_model_and_one_click_leads_back() -> Result {
    let folder = tempfile::tempdir()?;
    let gguf = folder.path().join("small.gguf");
    write_quantized(&gguf)?;
    let small = one_block(folder.path())?;
    let small: Vec<&Path> = small.iter().map(PathBuf::as_path).collect();
    open("O Romeo", |page| {
        let lesson = |number: usize| -> Result<Vec<String>> {
            page.get("document.getElementById('live').dataset.lesson = ''")?;
            page.get(&format!("(() => {{ const menu = document.getElementById('lesson-choice'); menu.value = {number}; menu.dispatchEvent(new Event('change')) }})()"))?;
            page.until("document.getElementById('live').dataset.lesson === 'ready'")?;
            page.texts("#lesson-text p")
        };
        assert_eq!(page.get("document.getElementById('live-back').hidden")?, true);
        page.choose("#live-files", &[&gguf])?;
        settled(page)?;
        page.click("#live-lessons")?;
        let words = lesson(5)?;
        assert!(words[0].starts_with("Of all heads of this model, 0.3 gives"), "{words:?}");
        page.until("document.documentElement.dataset.shown === '0.3'")?;
        page.click("#live-ablate")?;
        page.until("!document.getElementById('lesson-done').hidden")?;
        let words = lesson(7)?;
        assert!(words[0].contains("Here head 0.3, "), "{words:?}");
        assert_eq!(page.texts("#live-changes button")?, ["ablate 0.3 ✕"]);
        page.click("#live-changes button")?;
        page.until("!document.getElementById('lesson-done').hidden")?;
        // The first block alone has no head that finds what followed last time.
        page.choose("#live-files", &small)?;
        page.until("document.getElementById('about').textContent.endsWith(' 4 heads')")?;
        settled(page)?;
        page.click("#live-lessons")?;
        let words = lesson(6)?;
        assert!(
            words[0].starts_with("On this text, this model has no head whose pattern is “induction”."),
            "{words:?}"
        );
        assert!(!words.concat().contains("HEAD"), "{words:?}");
        page.click("#live-back")?;
        page.until("document.getElementById('about').textContent.endsWith(' 16 heads')")?;
        assert_eq!(page.text("#title")?, "tiny-shakespeare (built in)");
        assert_eq!(page.get("document.getElementById('live-back').hidden")?, true);
        page.click("#live-lessons")?;
        let words = lesson(5)?;
        assert!(words[0].starts_with("Head 0.3 has a single pattern"), "{words:?}");
        Ok(())
    })
}
