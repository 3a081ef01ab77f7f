//! `--ablate`, `--mean-ablate`, `--scale` and `--block`: the same results as the library's for the same list.

use super::{assert_near, case, comma_separated, gpt2, json, log_softmax, some_ids};
use crate::common::Result;
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_model::hooks::{Head, Intervention, Interventions, KnockOut};
use gpt2_model::{ForwardArgs, Generation, Gpt2LMHeadModel, Sampling};

const FLAGS: [&str; 8] = [
    "--ablate",
    "0.1",
    "--mean-ablate=1.2",
    "--scale",
    "0.0=0.5,1.0=-2",
    "--block=7:4,1/9:3",
    "--block",
    "0.2/8:0",
];

fn list() -> Vec<Intervention> {
    let head = |layer, head| Head { layer, head };
    let block = |layer, head, query, key| Intervention::KnockOut(layer, KnockOut { head, query, key });
    vec![
        Intervention::ZeroAblate(head(0, 1)),
        Intervention::MeanAblate(head(1, 2)),
        Intervention::Scale(head(0, 0), 0.5),
        Intervention::Scale(head(1, 0), -2.0),
        block(None, None, 7, 4),
        block(Some(1), None, 9, 3),
        block(Some(0), Some(2), 8, 0),
    ]
}

fn changed(model: &Gpt2LMHeadModel, ids: &[u32]) -> Result<(Vec<f64>, Tensor)> {
    let changes = Interventions::new(list(), model.config())?;
    let args = ForwardArgs { hooks: Some(&changes), output_attentions: true, ..Default::default() };
    let output = model.forward(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?, args)?;
    let last = output.logits.squeeze(0)?.get(ids.len() - 1)?.to_dtype(DType::F64)?.to_vec1()?;
    Ok((log_softmax(&last), output.transformer.attentions[1].clone()))
}

#[test]
fn the_flags_do_what_the_library_does() -> Result {
    let (model, ids) = (load("odd", DType::F32)?, &some_ids()[..12]);
    let (log_probs, weights) = changed(&model, ids)?;
    let (name, listed) = (case("odd"), comma_separated(ids));
    let run = |command: &str| {
        json(&[&[command, "--model", &name, "--json", "--ids", &listed], &FLAGS[..]].concat())
    };
    for candidate in run("forward")?["next"].as_array().ok_or("next")? {
        let id = usize::try_from(candidate["id"].as_u64().ok_or("id")?)?;
        assert_near("log_prob", &candidate["log_prob"], log_probs[id], 1e-4);
    }
    let summaries = gpt2_view::summarize(&weights.squeeze(0)?)?;
    let heads = run("attention")?["layers"][1]["heads"].clone();
    for (got, expected) in heads.as_array().ok_or("heads")?.iter().zip(summaries) {
        assert_near("entropy", &got["summary"]["entropy"], f64::from(expected.entropy), 1e-4);
    }
    Ok(())
}

#[test]
fn generate_keeps_them_and_takes_the_means_of_the_prompt() -> Result {
    let (model, ids) = (load("odd", DType::F32)?, some_ids()[..12].to_vec());
    let input = Tensor::new(&ids[..], &Device::Cpu)?.unsqueeze(0)?;
    let changes = Interventions::new(list(), model.config())?.with_means_of(&model, &input)?;
    let mut generation =
        Generation::new(&model, std::slice::from_ref(&ids), Sampling::greedy(), 15)?.with_hooks(&changes);
    generation.by_ref().collect::<candle_core::Result<Vec<_>>>()?;
    let (name, listed) = (case("odd"), comma_separated(&ids));
    let args = ["generate", "--model", &name, "--json", "--greedy", "-n", "15", "--ids", &listed];
    let report = json(&[&args[..], &FLAGS].concat())?;
    let got: Vec<u64> =
        report["ids"].as_array().ok_or("ids")?.iter().filter_map(serde_json::Value::as_u64).collect();
    let expected: Vec<u64> = generation.texts()[0][12..].iter().map(|&id| u64::from(id)).collect();
    assert_eq!(got, expected);
    Ok(())
}

#[test]
fn what_is_not_there_is_named_with_what_is() -> Result {
    let name = case("odd");
    let run = |flags: &[&str]| gpt2(&[&["forward", "--model", &name, "--ids", "1,2,3"], flags].concat());
    run(&["--ablate", "0.3"])?.refused(1, &["head 3 of layer 0", "heads 0 to 2"]);
    run(&["--scale", "2.0=1"])?.refused(1, &["layer 2", "layers 0 to 1"]);
    run(&["--block", "3:1"])?.refused(1, &["position 3", "positions 0 to 2"]);
    run(&["--block", "1:2"])?.refused(1, &["from position 1 to 2", "0 to 1"]);
    run(&["--ablate", "5"])?.refused(2, &["--ablate", "LAYER.HEAD", "5.1"]);
    run(&["--scale", "0.1=much"])?.refused(2, &["--scale", "3.2=0.5"]);
    run(&["--scale", "0.1=inf"])?.refused(2, &["--scale", "3.2=0.5"]);
    for wrong in ["3", "x/3:1", "3:y", "1.2.3/3:1"] {
        run(&["--block", wrong])?.refused(2, &["--block", "3.2/7:4"]);
    }
    Ok(())
}

#[test]
fn bench_says_what_asking_costs() -> Result {
    let args = ["bench", "forward", "--model", &case("odd"), "--json", "--tokens", "33", "--runs", "3"];
    let report = json(&[&args[..], &["--summaries", "--weights-heads", "4"]].concat())?;
    for field in ["median_ms", "plain_median_ms", "ratio_to_plain"] {
        assert!(report[field].as_f64().is_some_and(|x| x > 0.0), "{field} in {report}");
    }
    gpt2(&["bench", "core", "--summaries"])?.refused(1, &["--summaries", "bench forward"]);
    gpt2(&[&args[..], &["--weights-heads", "7"]].concat())?.refused(1, &["--weights-heads", "6 heads"]);
    Ok(())
}
