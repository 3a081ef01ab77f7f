//! The model of the live page answers with the numbers that the libraries compute.

use crate::common::Result;
use candle_core::{DType, Device, Module};
use gpt2_loader::{Checkpoint, Source, Tokenizer};
use gpt2_model::{ForwardArgs, Generation, Gpt2LMHeadModel, Sampling};
use gpt2_web::{DEMO, DrawSettings, Live, PageRequest};
use serde_json::Value;

/// The demo model, loaded as any other.
fn demo() -> Result<(Gpt2LMHeadModel, Tokenizer)> {
    let files = Source::Embedded(DEMO).open()?;
    let checkpoint = Checkpoint::open(&files)?;
    let tokenizer = Tokenizer::open(&files, checkpoint.config().vocab_size)?;
    Ok((checkpoint.load_model(DType::F32, &Device::Cpu)?, tokenizer))
}

fn look(text: &str) -> PageRequest {
    PageRequest { text: text.to_owned(), ..PageRequest::default() }
}

/// The JSON of each block of a kind.
fn blocks(page: &str, kind: &str) -> Result<Vec<Value>> {
    let lines = page.lines().filter_map(|line| line.split_once('\t')).filter(|(of, _)| *of == kind);
    Ok(lines.map(|(_, json)| serde_json::from_str(json)).collect::<serde_json::Result<_>>()?)
}

const TEXT: &str = "O Romeo, Romeo! wherefore art thou Romeo?";

#[test]
fn ids_predictions_and_the_lens_are_the_models() -> Result {
    let (live, (model, tokenizer)) = (Live::demo()?, demo()?);
    let shown = live.look(&look(TEXT))?;
    assert_eq!((&shown.ids, &*shown.text), (&tokenizer.encode(TEXT)?, TEXT));
    let args = ForwardArgs { output_hidden_states: true, ..ForwardArgs::default() };
    let output = model.transform(&model.ids(&shown.ids)?, args)?;
    let logits = model.lm_head.forward(&output.last_hidden_state.squeeze(0)?)?;
    let probabilities = candle_nn::ops::softmax_last_dim(&logits)?.to_vec2::<f32>()?;
    let predictions = &blocks(&shown.page, "predictions")?[0]["data"];
    for (i, row) in probabilities.iter().enumerate() {
        let (best, p) = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).ok_or("a vocabulary")?;
        let [token, likely] = [0, 1].map(|part| &predictions[i]["likely"][0][part]);
        let spelled = tokenizer.spelled(&[u32::try_from(best)?]).concat();
        assert_eq!(token.as_str(), Some(&*gpt2_view::visible_token(&spelled)), "position {i}");
        assert!((likely.as_f64().ok_or("a number")? - f64::from(*p)).abs() < 1e-6);
        let actual = predictions[i]["actual"].as_f64();
        let expected = shown.ids.get(i + 1).map(|&id| f64::from(row[id as usize]));
        assert!(actual.zip(expected).map_or(actual == expected, |(a, b)| (a - b).abs() < 1e-6));
    }
    let lens = blocks(&shown.page, "lens")?;
    assert_eq!(lens.len(), model.config().n_layer);
    for (layer, of_layer) in lens.iter().enumerate() {
        let hidden = output.hidden_states[layer + 1].squeeze(0)?;
        // The last one is normalized already.
        let rows = if layer + 1 == lens.len() { hidden } else { model.transformer.ln_f.forward(&hidden)? };
        let rows = candle_nn::ops::softmax_last_dim(&model.lm_head.forward(&rows)?)?.to_vec2::<f32>()?;
        for (row, likely) in rows.iter().zip(of_layer["likely"].as_array().ok_or("a list")?) {
            let p = f64::from(row.iter().copied().fold(0.0, f32::max));
            assert!((likely[1].as_f64().ok_or("a number")? - p).abs() < 2e-5, "layer {layer}: {likely} {p}");
        }
    }
    Ok(())
}

#[test]
fn a_text_drawn_token_by_token_is_that_of_generate() -> Result {
    let (live, (model, tokenizer)) = (Live::demo()?, demo()?);
    let draws = [
        DrawSettings { temperature: 0.0, ..DrawSettings::default() },
        DrawSettings { seed: 1, ..DrawSettings::default() },
        DrawSettings { temperature: 0.7, top_k: Some(20), seed: 2, ..DrawSettings::default() },
        DrawSettings { temperature: 1.3, top_p: Some(0.9), seed: 1 << 40, ..DrawSettings::default() },
    ];
    for (prompt, draw) in ["ROMEO:", "To be, or not", "My lord", "日本"].into_iter().zip(draws) {
        let ids = tokenizer.encode(prompt)?;
        let DrawSettings { temperature, top_k, top_p, seed } = draw;
        let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::default() };
        let mut generation = Generation::new(&model, std::slice::from_ref(&ids), sampling.clone(), 20)?;
        while generation.next().transpose()?.is_some() {}
        let mut look = PageRequest { draw, prompt: Some(ids.len()), ..look(prompt) };
        let mut text = ids;
        for _ in 0..20 {
            let next = live.look(&look)?.next.ok_or("room for a token")?;
            let input = model.ids(&text)?;
            let logits = model.forward(&input, ForwardArgs::default())?.logits.squeeze(0)?;
            let from = sampling.probabilities(&logits.get(text.len() - 1)?.to_vec1::<f32>()?)?;
            assert_eq!(next.count, from.len());
            assert_eq!(next.from.len(), from.len().min(8));
            for ((token, p), (id, expected)) in next.from.iter().zip(&from) {
                assert_eq!(*token, gpt2_view::visible_token(&tokenizer.spelled(&[*id]).concat()));
                assert!((p - expected).abs() < 1e-6, "{token}: {p}, {expected}");
            }
            assert_eq!(next.place, from.iter().take(8).position(|(id, _)| *id == next.id));
            assert_eq!(next.is_end, model.config().is_eos(next.id));
            text.push(next.id);
            look.ids.clone_from(&text);
        }
        assert_eq!(text, generation.texts()[0], "{prompt}");
        // At once, or from the middle on.
        for ids in [vec![], text[..text.len() - 15].to_vec()] {
            let count = if ids.is_empty() { 20 } else { 15 };
            assert_eq!(live.go_on(&PageRequest { ids, ..look.clone() }, count)?, text, "{prompt}");
        }
        assert_eq!(live.look(&look)?.text, tokenizer.decode(&text));
    }
    Ok(())
}

#[test]
fn changes_act_and_stand_beside_the_plain_run() -> Result {
    let live = Live::demo()?;
    let changed = PageRequest { changes: vec!["ablate 0.3".into(), "block 5:1".into()], ..look(TEXT) };
    let plain = live.look(&look(TEXT))?;
    let alone = live.look(&changed)?;
    let both = live.look(&PageRequest { compare: true, ..changed })?;
    let weights = |page: &str, run: usize| -> Result<Vec<String>> {
        let layers = blocks(page, "layer")?;
        let runs = layers.iter().flat_map(|layer| vec![layer["run"].as_u64(); 4]);
        let codes = page.lines().filter_map(|line| line.strip_prefix("weights\t"));
        Ok(runs.zip(codes).filter(|(of, _)| *of == Some(run as u64)).map(|(_, code)| code.into()).collect())
    };
    assert_eq!(weights(&both.page, 0)?, weights(&plain.page, 0)?);
    assert_eq!(weights(&both.page, 1)?, weights(&alone.page, 0)?);
    assert_ne!(weights(&plain.page, 0)?, weights(&alone.page, 0)?);
    assert_eq!(
        blocks(&both.page, "header")?[0]["runs"],
        serde_json::json!(["plain", "ablate 0.3, block 5:1"])
    );
    assert_eq!(blocks(&plain.page, "header")?[0]["runs"], serde_json::json!([]));
    let silenced = &blocks(&alone.page, "layer")?[0]["heads"][3]["silenced"];
    assert_eq!(silenced, "ablated");
    // Without a change, there is nothing to compare with.
    let none = live.look(&PageRequest { compare: true, ..look(TEXT) })?;
    assert_eq!(none.page, plain.page);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    let live = Live::demo()?;
    let refused = |look: PageRequest, part: &str| {
        let error = format!("{:#}", live.look(&look).expect_err(part));
        assert!(error.contains(part), "{error}");
    };
    refused(look(""), "type a few words");
    refused(look(&"O Romeo ".repeat(200)), "256");
    refused(look(&"日".repeat(100_000)), "256");
    refused(PageRequest { ids: vec![1, 5000], ..PageRequest::default() }, "5000");
    refused(PageRequest { ids: vec![1; 257], ..PageRequest::default() }, "257 tokens");
    for (change, part) in [
        ("ablate 9.9", "layers 0 to 3"),
        ("ablate 3.9", "heads 0 to 3"),
        ("ablate x", "LAYER.HEAD"),
        ("nothing", "expected"),
        ("scale 0.3=NaN", "LAYER.HEAD=FACTOR"),
    ] {
        refused(PageRequest { changes: vec![change.into()], ..look(TEXT) }, part);
    }
    for draw in [
        DrawSettings { temperature: f64::NAN, ..DrawSettings::default() },
        DrawSettings { temperature: -1.0, ..DrawSettings::default() },
        DrawSettings { top_k: Some(0), ..DrawSettings::default() },
        DrawSettings { top_p: Some(0.0), ..DrawSettings::default() },
    ] {
        refused(PageRequest { draw, ..look(TEXT) }, "expected");
    }
    // With and without room for another token, which would be drawn from numbers that are not finite.
    for length in [5, 256] {
        let ids = vec![1; length];
        refused(
            PageRequest { ids, changes: vec!["scale 0.1=1e39".into()], ..PageRequest::default() },
            "not finite",
        );
    }
    refused(PageRequest { prompt: Some(0), ..look(TEXT) }, "a prompt of 0 tokens");
    refused(PageRequest { prompt: Some(15), ..look(TEXT) }, "a prompt of 15 tokens");
    // A full context has no next token, and the page all the same.
    let full = live.look(&PageRequest { ids: vec![1; 256], ..PageRequest::default() })?;
    assert_eq!((full.next, full.ids.len()), (None, 256));
    Ok(())
}

#[test]
fn any_text_has_a_page() -> Result {
    let live = Live::demo()?;
    let hostile = [
        "</script><script>alert(1)</script>",
        "\0\u{1b}]0;x\u{7}",
        "👩‍👩‍👧 e\u{301} \u{202e}",
        "\t\r\n  ",
        "<!--",
        "\u{fffe}",
    ];
    for text in hostile {
        let shown = live.look(&look(text))?;
        assert!(!shown.page.contains('<') && !shown.page.contains('\0'), "{text:?}");
        for line in shown.page.lines() {
            let (kind, block) = line.split_once('\t').ok_or("a kind")?;
            assert!(kind.ends_with("weights") || serde_json::from_str::<Value>(block).is_ok(), "{kind}");
        }
        assert_eq!(
            blocks(&shown.page, "header")?[0]["texts"].as_array().map(Vec::len),
            Some(shown.ids.len())
        );
    }
    Ok(())
}

/// Values kept from one look to the next never show: each answer is that of a model that was asked nothing before.
#[test]
fn an_answer_does_not_depend_on_the_questions_before() -> Result {
    let live = Live::demo()?;
    let changes = |changes: &[&str]| changes.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
    let texts = [
        "O Romeo",
        "O Romeo, Romeo",
        "O Romeo, Romeo! wherefore",
        "O Juliet, Romeo! wherefore",
        "O",
        TEXT,
        TEXT,
    ];
    for (i, text) in texts.iter().enumerate() {
        for (changes, compare) in [
            (changes(&[]), false),
            (changes(&["ablate 0.3"]), false),
            (changes(&["ablate 0.3"]), true),
            (changes(&["mean-ablate 1.1"]), true),
        ] {
            let look = PageRequest { changes, compare, ..look(text) };
            let got = live.look(&look)?;
            let expected = Live::demo()?.look(&look)?;
            assert!(got.page == expected.page, "text {i}, {:?}", look.changes);
            assert_eq!(got.next, expected.next, "text {i}");
        }
    }
    // A refused question leaves nothing behind that a later one would show.
    assert!(live.look(&PageRequest { changes: changes(&["scale 0.1=1e39"]), ..look(TEXT) }).is_err());
    assert!(live.look(&look(TEXT))?.page == Live::demo()?.look(&look(TEXT))?.page);
    Ok(())
}
