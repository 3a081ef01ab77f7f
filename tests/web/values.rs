//! The module in a browser answers what the same code answers here, up to the last digits, and refuses what it refuses.

use crate::browser::{Browser, browse, browse_in_firefox};
use crate::common::Result;
use crate::own_model::{demo, write_quantized};
use crate::page::{built, odd_texts};
use base64::{Engine, prelude::BASE64_STANDARD};
use gpt2_loader::{Files, Source};
use gpt2_web::{DEMO, Live, PageRequest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

/// A page that has the module and nothing else, in both browsers.
fn in_module(test: impl Fn(&Browser) -> Result) -> Result {
    let (module, loader) = built()?;
    let demo = Source::Embedded(DEMO).open()?;
    let mut given = String::new();
    for (name, bytes) in demo.contents().ok_or("files")? {
        write!(given, "demo.add('{name}', bytesOf('{}')); ", BASE64_STANDARD.encode(&bytes[..]))?;
    }
    let mut file = tempfile::Builder::new().suffix(".html").tempfile()?;
    write!(
        file,
        "<!doctype html><meta charset=utf-8><script>{loader}</script><script>
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
let model = null;
const files = {{}};
window.answer = (look) => {{ try {{ return model.look(look) }} catch (error) {{ return 'error: ' + error.message }} }};
window.keep = (set, name, text) => {{ (files[set] ??= {{}})[name] = bytesOf(text) }};
window.changed = (set, name, length, at, byte) => {{
  const given = new wasm_bindgen.ModelFiles();
  for (const [other, whole] of Object.entries(files[set])) {{
    const bytes = other === name ? whole.slice(0, length) : whole;
    if (other === name && at < length) bytes[at] = byte;
    given.add(other, bytes);
  }}
  try {{ wasm_bindgen.Model.open('yours', given).free(); return 'opened' }} catch (error) {{ return error.message }}
}};
const packed = new Blob([bytesOf('{}')]).stream().pipeThrough(new DecompressionStream('deflate'));
const unpacked = new Response(packed, {{ headers: {{ 'Content-Type': 'application/wasm' }} }});
wasm_bindgen({{ module_or_path: unpacked }}).then(() => {{
  const demo = new wasm_bindgen.ModelFiles();
  {given}
  model = wasm_bindgen.Model.open('{}', demo);
  performance.mark('ready');
}});
</script>",
        module,
        demo.name
    )?;
    file.flush()?;
    browse(file.path(), &test)?;
    browse_in_firefox(file.path(), test)
}

/// The data of a page has five decimals, of which the last may differ by one.
const CLOSE: f64 = 1.001e-5;

/// Two values, of which numbers may differ in their last digits: by 1e-5, or that part of the largest number of their list.
fn agree(ours: &Value, theirs: &Value, close: f64, at: &str) {
    match (ours, theirs) {
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{at}");
            let numbers = |list: &[Value]| list.iter().filter_map(Value::as_f64).collect::<Vec<_>>();
            let x = numbers(a);
            let y = numbers(b);
            if x.len() == a.len() && y.len() == b.len() {
                let largest = y.iter().fold(1.0, |most: f64, y| most.max(y.abs()));
                for (x, y) in x.iter().zip(&y) {
                    assert!((x - y).abs() <= close * largest, "{at}: {x} and {y}");
                }
                return;
            }
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                agree(a, b, close, &format!("{at}[{n}]"));
            }
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{at}");
            for (name, a) in a {
                if name != "caption" {
                    agree(a, &b[name], close, &format!("{at}.{name}"));
                }
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            let a = a.as_f64().unwrap_or(f64::NAN);
            let b = b.as_f64().unwrap_or(f64::NAN);
            assert!((a - b).abs() <= close * b.abs().max(1.0), "{at}: {a} and {b}");
        }
        (Value::String(a), Value::String(b)) if at.rsplit('.').next() == Some("norms") => {
            let numbers = |text: &str| -> Value {
                let bytes = BASE64_STANDARD.decode(text).unwrap_or_default();
                let number = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap_or_default());
                bytes.chunks_exact(4).map(number).collect()
            };
            agree(&numbers(a), &numbers(b), close, "norms");
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

/// Weights as codes of 16 bits, all high bytes first, or of 8.
fn codes(block: &str, levels: u64) -> Result<Vec<i32>> {
    let bytes = BASE64_STANDARD.decode(block)?;
    if levels < 256 {
        return Ok(bytes.into_iter().map(i32::from).collect());
    }
    let (high, low) = bytes.split_at(bytes.len() / 2);
    Ok(high.iter().zip(low).map(|(&h, &l)| i32::from(h) << 8 | i32::from(l)).collect())
}

/// Compares the lines of a page's data.
fn pages_agree(ours: &str, theirs: &str, text: &str) -> Result {
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{text:?}");
    let mut levels = vec![];
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        let ((kind, a), (of, b)) =
            (ours.split_once('\t').ok_or("a kind")?, theirs.split_once('\t').ok_or("a kind")?);
        assert_eq!(kind, of, "{text:?}");
        if kind == "weights" {
            let levels = levels.pop().ok_or("levels")?;
            for (a, b) in codes(a, levels)?.iter().zip(codes(b, levels)?) {
                assert!((a - b).abs() <= 1, "{text:?}: weights {a} and {b} of {levels}");
            }
            continue;
        }
        let (a, b): (Value, Value) = (serde_json::from_str(a)?, serde_json::from_str(b)?);
        if kind == "layer" {
            let heads = b["heads"].as_array().ok_or("heads")?;
            levels = heads.iter().rev().filter_map(|head| head["levels"].as_u64()).collect();
        }
        // Changes are those of the codes, which may differ by one.
        let close = if matches!(kind, "largest" | "changes" | "opens") { 5e-5 } else { CLOSE };
        agree(&a, &b, close, &format!("{text:?} {kind}"));
    }
    Ok(())
}

/// Texts as the model writes them, in all lengths, and odd ones.
fn texts(count: usize) -> Result<Vec<String>> {
    let live = Live::demo()?;
    let mut texts = odd_texts(count / 4);
    for seed in 0.. {
        if texts.len() >= count {
            break;
        }
        let mut look = PageRequest { text: "\n".into(), prompt: Some(1), ..PageRequest::default() };
        look.draw.seed = seed;
        let mut text = live.look(&look)?;
        for _ in 0..=seed % 40 {
            let Some(next) = text.next else { break };
            look.ids = [text.ids, vec![next.id]].concat();
            text = live.look(&look)?;
        }
        texts.push(text.text);
    }
    Ok(texts)
}

/// Ids, weights, summaries, predictions, lens, the drawn token, and every stage of a way, for 200 texts.
#[test]
fn the_module_computes_what_the_library_computes() -> Result {
    let texts = texts(200)?;
    let live = Live::demo()?;
    in_module(|page| {
        for (i, text) in texts.iter().enumerate() {
            let changes: &[&str] = [&[][..], &["ablate 0.3"], &["scale 1.2=0.5"]][i % 3];
            let ids = live
                .look(&PageRequest { text: text.clone(), ..PageRequest::default() })
                .map(|shown| shown.ids.len());
            let token = 7 * i % ids.unwrap_or(1);
            let look = json!({
                "text": text, "changes": changes, "compare": i % 2 == 0,
                "draw": { "temperature": 0.1 * (i % 15) as f64, "top_k": 40, "seed": i },
                "along": { "layer": i % 4, "head": i / 4 % 4, "token": token },
            })
            .to_string();
            let answer = page.get(&format!("answer({})", serde_json::to_string(&look)?))?;
            let answer = answer.as_str().ok_or("an answer")?;
            let shown = match live.look(&serde_json::from_str(&look)?) {
                Ok(shown) => shown,
                Err(error) => {
                    assert_eq!(answer, format!("error: {error:#}"));
                    continue;
                }
            };
            let (first, rest) = answer.split_once('\n').ok_or_else(|| format!("{text:?}: {answer}"))?;
            agree(&serde_json::from_str(first)?, &serde_json::to_value(&shown)?, CLOSE, &format!("{text:?}"));
            pages_agree(rest, &shown.page, text)?;
        }
        Ok(())
    })
}

/// Files that are cut short, or have a byte changed: the same message, or the same model.
#[test]
fn the_module_refuses_the_files_that_the_library_refuses() -> Result {
    let folder = tempfile::tempdir()?;
    let gguf = folder.path().join("small.gguf");
    write_quantized(&gguf)?;
    let files = std::fs::read_dir(demo())?;
    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for file in files {
        let path = file?.path();
        let name = path.file_name().ok_or("a name")?.to_string_lossy().into_owned();
        if name != "README.md" {
            contents.insert(name, std::fs::read(path)?);
        }
    }
    let gguf = BTreeMap::from([("small.gguf".to_owned(), std::fs::read(gguf)?)]);
    in_module(|page| {
        for (set, files) in [("folder", &contents), ("gguf", &gguf)] {
            for (name, bytes) in files {
                page.get(&format!("keep('{set}', '{name}', '{}')", BASE64_STANDARD.encode(bytes)))?;
            }
            let mut refused = 0;
            for (name, whole) in files {
                let all = whole.len();
                let cuts = [0, 1, 7, 8, 9, 100, all / 2, all - 1].map(|length| (length, all, 0));
                let heads =
                    (0..48).map(|n| (all, n * 37 % all.min(1500), u8::try_from(n * 83 % 256).unwrap_or(0)));
                for (length, at, byte) in cuts.into_iter().chain(heads) {
                    let mut changed = files.clone();
                    let bytes = changed.get_mut(name).ok_or("a file")?;
                    bytes.truncate(length);
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                    let ours = Files::in_memory("yours", changed).map_err(anyhow::Error::from);
                    let ours = match ours.and_then(|files| Live::open(&files)) {
                        Ok(_) => "opened".to_owned(),
                        Err(error) => format!("{error:#}"),
                    };
                    let theirs = page.get(&format!("changed('{set}', '{name}', {length}, {at}, {byte})"))?;
                    assert_eq!(theirs, *ours, "{name}, {length} bytes, byte {at} is {byte}");
                    refused += usize::from(ours != "opened");
                }
            }
            assert!(refused > 20, "{set}: {refused}");
        }
        // The module is as it was.
        let answer = page.get("answer(JSON.stringify({ text: 'O Romeo' })).slice(0, 20)")?;
        assert!(answer.as_str().is_some_and(|answer| answer.starts_with("{\"ids\"")), "{answer}");
        Ok(())
    })
}
