//! The live page in a browser: the model runs in it, and shows the numbers that it has elsewhere.

use crate::browser::{Browser, browse};
use crate::common::Result;
use gpt2_loader::{Checkpoint, Files, GgufType, Source, Tokenizer, save_gguf};
use gpt2_web::{Live, LiveFile, Look};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Opens the page on a text. Without the module for the browser, this fails under CI, and elsewhere says that it was skipped.
fn open(text: &str, test: impl FnOnce(&Browser) -> Result) -> Result {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/web/page");
    let Ok(module) = std::fs::read(folder.join("gpt2_web_bg.wasm")) else {
        let remedy = "the module for the browser is needed; run: scripts/web.sh";
        if std::env::var_os("CI").is_some() {
            return Err(remedy.into());
        }
        // Bypass the capture of output: a test that did not run must not look like one that did.
        writeln!(std::io::stderr(), "SKIPPED the live page: {remedy}")?;
        return Ok(());
    };
    let glue = std::fs::read_to_string(folder.join("gpt2_web.js"))?;
    let mut file = tempfile::Builder::new().suffix(".html").tempfile()?;
    let first = Look { text: text.to_owned(), ..Look::default() };
    LiveFile { module: &module, glue: &glue }.write(&first, &mut file)?;
    file.flush()?;
    browse(file.path(), |page| {
        page.get("document.getElementById('guide-close').click()")?;
        test(page)
    })
}

/// Types a text as a whole and waits for its page.
fn enter(page: &Browser, text: &str) -> Result {
    page.get(&format!(
        "(() => {{ const t = document.getElementById('live-text'); t.value = {}; t.dispatchEvent(new Event('input')) }})()",
        serde_json::to_string(text)?
    ))?;
    settled(page)
}

/// Waits until the page belongs to the last question.
fn settled(page: &Browser) -> Result {
    page.until("document.getElementById('live').dataset.state !== 'asked'")
}

/// What the page's parts should show: the number of tokens, and the kind of each head.
fn expected(look: &Look) -> Result<(usize, Vec<String>)> {
    expected_of(&Live::demo()?, look)
}

fn expected_of(live: &Live, look: &Look) -> Result<(usize, Vec<String>)> {
    let shown = live.look(look)?;
    let layers = shown.page.lines().filter_map(|line| line.strip_prefix("layer\t"));
    let mut kinds = vec![];
    for layer in layers {
        let layer: Value = serde_json::from_str(layer)?;
        let heads = layer["heads"].as_array().ok_or("heads")?;
        kinds.extend(heads.iter().filter_map(|head| head["kind"].as_str()).map(str::to_owned));
    }
    Ok((shown.ids.len(), kinds))
}

fn look(text: &str) -> Look {
    Look { text: text.to_owned(), ..Look::default() }
}

#[test]
fn the_page_follows_the_text() -> Result {
    open("O Romeo, Romeo", |page| {
        let follows = |text: &str| -> Result {
            let (tokens, kinds) = expected(&look(text))?;
            assert_eq!(page.text("#about")?, format!("{tokens} tokens, 16 heads"), "{text:?}");
            assert_eq!(page.texts("#overview small")?, kinds, "{text:?}");
            Ok(())
        };
        follows("O Romeo, Romeo")?;
        for text in ["O Romeo, Romeo! wherefore art thou Romeo?", "To be, or not to be", "日本 👩‍👧 <b>x</b>"]
        {
            enter(page, text)?;
            follows(text)?;
        }
        // With real keys; the field keeps the focus.
        enter(page, "O")?;
        page.click("#live-text")?;
        page.keys(" Romeo, O")?;
        page.until("document.getElementById('about').textContent === '5 tokens, 16 heads'")?;
        assert_eq!(page.get("document.activeElement.id")?, "live-text");
        Ok(())
    })
}

#[test]
fn the_chosen_head_stays_and_is_switched_off_and_on() -> Result {
    open("O Romeo, Romeo! wherefore", |page| {
        page.head("0.3")?;
        assert_eq!(page.text("#live-ablate")?, "Switch off head 0.3");
        page.click("#live-ablate")?;
        settled(page)?;
        assert_eq!(page.texts("#runs span")?, ["plain", "ablate 0.3", "both", "difference"]);
        assert_eq!(page.get("document.documentElement.dataset.shown")?, "0.3", "the choice stays");
        assert_eq!(page.text("#live-ablate")?, "Switch on head 0.3");
        page.click("#live-compare")?;
        settled(page)?;
        assert_eq!(page.text("#caption")?, "f32 in this browser, fused attention; ablate 0.3");
        let changed = Look { changes: vec!["ablate 0.3".into()], ..look("O Romeo, Romeo! wherefore") };
        let (_, kinds) = expected(&changed)?;
        let shown = page.texts("#overview small")?;
        assert_eq!(shown.len(), kinds.len());
        assert!(shown.iter().zip(&kinds).all(|(shown, kind)| shown.starts_with(kind)), "{shown:?}");
        page.click("#live-changes button")?;
        settled(page)?;
        assert_eq!(page.text("#caption")?, "f32 in this browser, fused attention");
        // A link that is cut: the cell of token 3 and token 1.
        page.mouse(page.cell(9, 9, (3, 1))?, true)?;
        page.until("!document.getElementById('live-cut').hidden")?;
        page.click("#live-cut")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, ["block 3:1 ✕"]);
        assert_eq!(page.text("#live-cut")?, "Join 3 → 1", "the cell stays chosen");
        page.click("#live-cut")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, [""; 0]);
        Ok(())
    })
}

#[test]
fn fields_take_their_own_keys_and_refuse_what_is_no_value() -> Result {
    open("O Romeo, Romeo", |page| {
        page.head("0.3")?;
        page.get("document.getElementById('live-factor').select()")?;
        page.keys("0.75")?;
        assert_eq!(page.get("document.getElementById('live-factor').value")?, "0.75");
        page.click("#live-scale")?;
        settled(page)?;
        assert_eq!(page.texts("#live-changes button")?, ["scale 0.3=0.75 ✕"]);
        page.get("document.getElementById('live-top-k').focus()")?;
        page.keys("0")?;
        let status = page.text("#live-status")?;
        assert!(status.starts_with("top-k: "), "{status}");
        // What somebody searches stays while the text changes.
        page.get("document.getElementById('live-top-k').value = ''")?;
        page.click("#search")?;
        page.keys("rome")?;
        enter(page, "O Romeo, Romeo, Romeo")?;
        assert_eq!(page.text("#found")?, "3 found");
        Ok(())
    })
}

#[test]
fn tokens_are_drawn_as_generate_draws_them() -> Result {
    open("ROMEO:", |page| {
        let live = Live::demo()?;
        let mut look = look("ROMEO:");
        let mut text = live.look(&look)?;
        look.prompt = Some(text.ids.len());
        for _ in 0..8 {
            page.click("#live-next")?;
            settled(page)?;
            look.ids = [text.ids, vec![text.next.ok_or("a token")?.id]].concat();
            text = live.look(&look)?;
            assert_eq!(page.get("document.getElementById('live-text').value")?, *text.text);
        }
        let next = text.next.ok_or("a token")?;
        assert_eq!(page.texts("#live-from .drawn span")?, [&*next.token]);
        // A run goes on until it is stopped.
        page.click("#live-run")?;
        page.until("document.getElementById('live-text').value.length > 60")?;
        page.click("#live-run")?;
        assert_eq!(page.text("#live-run")?, "Run");
        Ok(())
    })
}

#[test]
fn what_the_model_cannot_read_is_said_and_the_page_stays() -> Result {
    open("O Romeo", |page| {
        for (text, says) in [("", "type a few words"), (&*"word ".repeat(400), "256")] {
            enter(page, text)?;
            let status = page.text("#live-status")?;
            assert!(status.contains(says), "{status}");
            assert_eq!(page.text("#about")?, "3 tokens, 16 heads");
        }
        for text in
            ["\u{0}\u{1b}[31m", "</textarea><script>alert(1)</script>", "\u{202e}x", "\u{fffe} ", "👩‍👩‍👧"]
        {
            enter(page, text)?;
            let (tokens, _) = expected(&look(text))?;
            let about = page.text("#about")?;
            assert_eq!(
                about,
                format!("{tokens} token{}, 16 heads", if tokens == 1 { "" } else { "s" }),
                "{text:?}"
            );
        }
        assert_eq!(page.get("document.querySelectorAll('main').length")?, 1);
        // After a text that was refused, there is nothing to continue.
        enter(page, "")?;
        page.click("#live-next")?;
        assert_eq!(page.get("document.getElementById('live-text').value")?, "");
        Ok(())
    })
}

/// A model from files on disk, as a browser hands them over.
fn opened(name: &str, files: &[&Path]) -> Result<Live> {
    let content = |path: &&Path| -> Result<(String, Vec<u8>)> {
        let name = path.file_name().ok_or("a name")?.to_string_lossy().into_owned();
        Ok((name, std::fs::read(path)?))
    };
    let files: BTreeMap<_, _> = files.iter().map(content).collect::<Result<_>>()?;
    Ok(Live::open(&Files::in_memory(name, files)?)?)
}

#[test]
fn a_model_of_the_readers_own_runs_in_the_page() -> Result {
    const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-shakespeare");
    let gguf = folder.path().join("small.gguf");
    let files = Source::directory(&source).open()?;
    let checkpoint = Checkpoint::open(&files)?;
    let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
    save_gguf(&gguf, &checkpoint, &tokenizer, GgufType::Q8_0, &mut |_, _, _| {})?;
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
            assert_eq!(page.texts("#overview small")?, kinds);
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
