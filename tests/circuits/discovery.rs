//! Edges, circuits and paths of a task, compared in f64 with what TransformerLens' hooks compute (tests/data/circuits).

use crate::common::{Result, of_transformer_lens as reference, relative_error};
use crate::models::load;
use candle_core::{DType, Device, Tensor};
use gpt2_circuits::discovery::{
    Edge, EdgeGradients, EdgeScores, EdgeScoring, EdgeSet, Freeze, Graph, Pair, Paths, Reader, Replacement,
    Study,
};
use gpt2_model::Gpt2LMHeadModel;
use gpt2_model::analysis::Metric;
use gpt2_model::hooks::{Head, Intervention, Interventions, KnockOut};
use std::collections::HashMap;

const PAIRS: usize = 5;

fn ids(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_dtype(DType::U32)?.to_vec1()?)
}

fn pairs(data: &HashMap<String, Tensor>) -> Result<Vec<Pair>> {
    let pair = |i: usize| {
        let of = |name: &str| ids(&data[&format!("{i}/{name}")]);
        let metric = Metric::LogitDifference { answers: of("answers")?, against: of("against")? };
        Ok(Pair { clean: of("clean")?, corrupt: of("corrupt")?, metric })
    };
    (0..PAIRS).map(pair).collect()
}

/// The metric of each pair under a name.
fn metrics(data: &HashMap<String, Tensor>, name: &str) -> Result<Vec<f64>> {
    (0..PAIRS).map(|i| Ok(data[&format!("{i}/{name}")].to_scalar()?)).collect()
}

#[track_caller]
fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let error = found.iter().zip(expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / largest;
    assert!(error < tolerance, "{what}: {error:e}");
}

/// The largest errors that we have seen are 4.8e-15 of the largest value in f64 and 1.2e-6 in f32.
const PRECISIONS: [(DType, f64); 2] = [(DType::F64, 1e-13), (DType::F32, 1e-5)];

fn model(dtype: DType) -> Result<Gpt2LMHeadModel> {
    load("circuits/model", dtype)
}

fn scores(study: &Study, scoring: impl Into<EdgeScoring>) -> Result<EdgeScores> {
    Ok(study.edge_scores(scoring, &mut |_, _| Ok(()))?)
}

#[test]
fn scores_of_all_edges_are_those_of_transformer_lens() -> Result {
    let data = reference("discovery.safetensors")?;
    let pairs = pairs(&data)?;
    for (dtype, tolerance) in PRECISIONS {
        let model = model(dtype)?;
        let study = Study::new(&model, &pairs)?;
        let graph = study.graph();
        let kinds = [
            ("clean", EdgeGradients::Clean),
            ("corrupt", EdgeGradients::Corrupt),
            ("integrated", EdgeGradients::Integrated { steps: 5 }),
            ("activations", EdgeGradients::IntegratedActivations { steps: 5 }),
        ];
        for ((name, gradients), qk_fix) in kinds.iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            let name = format!("{name}{}", if qk_fix { " fixed" } else { "" });
            let found = scores(&study, EdgeScoring { gradients: *gradients, qk_fix })?;
            let expected: Vec<Vec<f64>> = data[&format!("scores/{name}")].to_vec2()?;
            let all = graph.readers().zip(&expected).flat_map(|(to, row)| {
                graph
                    .writers()
                    .zip(row)
                    .take(graph.writers_before(to))
                    .map(move |(from, x)| (Edge { from, to }, *x))
            });
            let (edges, expected): (Vec<_>, Vec<_>) = all.unzip();
            assert_eq!(edges.len(), graph.edge_count());
            let found: Vec<_> = edges.iter().map(|&edge| found.of(edge).expect("an edge")).collect();
            assert_near(&name, &found, &expected, tolerance);
        }
    }
    Ok(())
}

#[test]
fn edges_between_heads_are_those_of_transformer_lens() -> Result {
    let data = reference("patching.safetensors")?;
    let first = |name: &str| ids(&data[&format!("ids/{name}")].flatten_all()?);
    let metric = Metric::difference(first("answer")?[0], first("against")?[0]);
    let pairs = [Pair { clean: first("clean")?, corrupt: first("corrupt")?, metric }];
    for (dtype, tolerance) in PRECISIONS {
        let model = model(dtype)?;
        let study = Study::new(&model, &pairs)?;
        for (name, gradients) in
            [("eap", EdgeGradients::Corrupt), ("eap-ig", EdgeGradients::Integrated { steps: 5 })]
        {
            let error = relative_error(&scores(&study, gradients)?.between_heads()?, &data[name])?;
            assert!(error < tolerance, "{name}: {error:e}");
        }
    }
    Ok(())
}

fn edges(graph: Graph, rows: &Tensor) -> Result<EdgeSet> {
    let rows: Vec<Vec<i64>> = rows.to_vec2()?;
    let of_row = |(to, row): (_, &Vec<i64>)| -> Vec<Edge> {
        graph.writers().zip(row).filter(|(_, has)| **has == 1).map(|(from, _)| Edge { from, to }).collect()
    };
    Ok(EdgeSet::of(graph, graph.readers().zip(&rows).flat_map(of_row))?)
}

#[test]
fn a_circuit_predicts_what_its_run_predicts_in_transformer_lens() -> Result {
    let data = reference("discovery.safetensors")?;
    let pairs = pairs(&data)?;
    for (dtype, tolerance) in PRECISIONS {
        let model = model(dtype)?;
        let study = Study::new(&model, &pairs)?;
        let circuits = (0..3).map(|i| edges(study.graph(), &data[&format!("edges/{i}")]));
        let circuits = circuits.collect::<Result<Vec<_>>>()?;
        let all: Vec<&EdgeSet> = circuits.iter().collect();
        for (name, replacement) in
            [("corrupted", Replacement::Corrupted), ("mean", Replacement::Mean), ("zero", Replacement::Zero)]
        {
            let found = study.measure(&all, replacement, &mut |_, _| Ok(()))?;
            for (i, found) in found.iter().enumerate() {
                let name = format!("circuit {i} {name}");
                assert_near(&name, found, &metrics(&data, &name)?, tolerance);
            }
        }
        let (clean, corrupt) = study.plain(&mut |_, _| Ok(()))?;
        let full = EdgeSet::all(study.graph());
        let none = EdgeSet::empty(study.graph());
        let mut calls = vec![];
        let found = study.measure(&[&full, &none], Replacement::Corrupted, &mut |done, total| {
            calls.push((done, total));
            Ok(())
        })?;
        assert_near("all edges", &found[0], &clean, tolerance);
        assert_near("no edge", &found[1], &corrupt, tolerance);
        assert_eq!(calls, [(1, 4), (2, 4), (3, 4), (4, 4)]); // two lengths
        // What is left out of a connected circuit makes no difference.
        for replacement in [Replacement::Corrupted, Replacement::Mean, Replacement::Zero] {
            let sparse = EdgeSet::random(study.graph(), 40, 5);
            let connected = sparse.connected(replacement);
            assert!(connected.len() < sparse.len());
            let found = study.measure(&[&sparse, &connected], replacement, &mut |_, _| Ok(()))?;
            assert_near("connected", &found[0], &found[1], tolerance);
        }
    }
    Ok(())
}

#[test]
fn paths_carry_what_three_runs_of_transformer_lens_say() -> Result {
    let data = reference("discovery.safetensors")?;
    let pairs = pairs(&data)?;
    let all = [
        (["0.1"].as_slice(), ["2.0.q", "2.1.v", "1.mlp"].as_slice()),
        (&["embed", "1.mlp"], &["logits", "2.2.k"]),
    ];
    let mut names = vec![];
    let mut paths = vec![];
    for (i, (senders, receivers)) in all.iter().enumerate() {
        for (name, freeze) in [("all", Freeze::All), ("heads", Freeze::Heads), ("nothing", Freeze::Nothing)] {
            names.push(format!("path {i} {name}"));
            paths.push(Paths {
                senders: senders.iter().map(|text| text.parse()).collect::<std::result::Result<_, _>>()?,
                receivers: receivers
                    .iter()
                    .map(|text| text.parse())
                    .collect::<std::result::Result<_, _>>()?,
                freeze,
            });
        }
    }
    for (dtype, tolerance) in PRECISIONS {
        let model = model(dtype)?;
        let found = Study::new(&model, &pairs)?.path_patching(&paths, &mut |_, _| Ok(()))?;
        for (name, found) in names.iter().zip(&found) {
            assert_near(name, found, &metrics(&data, name)?, tolerance);
        }
    }
    Ok(())
}

/// Interventions on heads hold in every run; changes of the stream beside its writers are refused.
#[test]
fn interventions_on_heads_count_and_others_are_refused() -> Result {
    let data = reference("discovery.safetensors")?;
    let model = model(DType::F64)?;
    let pairs = pairs(&data)?;
    let head = Head { layer: 1, head: 1 };
    let changed = |change: Intervention| Interventions::new([change], model.config());
    let hot = changed(Intervention::Temperature(head, 1e9))?;
    let study = Study::new(&model, &pairs)?.with_hooks(&hot)?;
    let (plain, found) =
        (scores(&Study::new(&model, &pairs)?, EdgeGradients::Clean)?, scores(&study, EdgeGradients::Clean)?);
    let largest = |scores: &EdgeScores, to: Reader| {
        let all = study.graph().writers().filter_map(|from| scores.of(Edge { from, to }));
        all.fold(0.0, |most: f64, score| most.max(score.abs()))
    };
    // With nearly equal attention to all keys, queries and keys no longer matter; values do.
    for to in [Reader::Query(head), Reader::Key(head)] {
        assert!(largest(&found, to) < 1e-8 * largest(&plain, to), "{to}");
    }
    assert!(largest(&found, Reader::Value(head)) > 1e-3 * largest(&plain, Reader::Value(head)));
    let fixed = EdgeScoring { gradients: EdgeGradients::Clean, qk_fix: true };
    // A position that the last one cannot attend to: nothing that its keys read matters.
    let pairs_of_two = [Pair { clean: vec![1, 2], corrupt: vec![3, 2], metric: Metric::difference(5, 6) }];
    let last_layer = Some(2);
    let block = KnockOut { head: None, query: 1, key: 0 };
    let blocked = changed(Intervention::KnockOut(last_layer, block))?;
    let of_two = |hooks: Option<&Interventions>| -> Result<f64> {
        let study = Study::new(&model, &pairs_of_two)?;
        let study = if let Some(hooks) = hooks { study.with_hooks(hooks)? } else { study };
        Ok(largest(&scores(&study, fixed)?, Reader::Key(Head { layer: 2, head: 0 })))
    };
    let free = of_two(None)?;
    let hidden = of_two(Some(&blocked))?;
    assert!(free > 1e-6 && hidden < 1e-12 * free, "{hidden:e}, without the knock-out {free:e}");
    let error = scores(&study, fixed).expect_err("other scores").to_string();
    assert!(error.contains("the QK fix computes attention again"), "{error}");
    let off = changed(Intervention::ZeroAblate(head))?;
    let study = Study::new(&model, &pairs)?.with_hooks(&off)?;
    let found = scores(&study, EdgeGradients::Integrated { steps: 2 })?;
    assert!(largest(&found, Reader::Value(head)) < f64::MIN_POSITIVE);
    let (clean, _) = study.plain(&mut |_, _| Ok(()))?;
    let all = study.measure(&[&EdgeSet::all(study.graph())], Replacement::Mean, &mut |_, _| Ok(()))?;
    assert_near("all edges", &all[0], &clean, 1e-13);
    let vector = Tensor::ones(24, DType::F64, &Device::Cpu)?;
    let steer = |layer| changed(Intervention::Add { layer, position: None, vector: vector.clone() });
    let study = |hooks: &Interventions| Study::new(&model, &pairs)?.with_hooks(hooks).map(drop);
    study(&steer(0)?)?;
    let error = study(&steer(1)?).expect_err("a change of the stream").to_string();
    assert!(error.contains("blocks.1.hook_resid_pre") && error.contains("no edge carries it"), "{error}");
    Ok(())
}

#[test]
fn the_largest_circuits_of_either_kind_are_the_whole_model() -> Result {
    let data = reference("discovery.safetensors")?;
    let model = model(DType::F64)?;
    let pairs = pairs(&data)?;
    let study = Study::new(&model, &pairs)?;
    let scores = scores(&study, EdgeGradients::Clean)?;
    let all = EdgeSet::all(study.graph());
    assert_eq!(scores.ranked(usize::MAX), all);
    assert_eq!(scores.greedy(usize::MAX), all);
    let sorted = scores.sorted();
    for count in [0, 1, 7, 40] {
        assert_eq!(
            scores.ranked(count),
            EdgeSet::of(study.graph(), sorted.iter().take(count).map(|(edge, _)| *edge))?
        );
        let greedy = scores.greedy(count);
        assert_eq!(greedy.len(), count);
        // Each part that is written to is heard by another one, or by the logits.
        for edge in greedy.iter() {
            let heard = |part| greedy.iter().any(|other| other.from == part);
            let part = match edge.to.to_string().rsplit_once('.') {
                Some((part, "q" | "k" | "v")) => Some(part.parse()?),
                Some(_) => Some(edge.to.to_string().parse()?),
                None => None,
            };
            assert!(part.is_none_or(heard), "{edge}");
        }
    }
    let first = scores.greedy(1).iter().next().expect("an edge");
    let into_logits = |edge: &&(Edge, f64)| edge.0.to.to_string() == "logits";
    assert_eq!(Some(first), sorted.iter().find(into_logits).map(|(edge, _)| *edge));
    Ok(())
}

#[test]
fn wrong_pairs_circuits_and_paths_are_refused() -> Result {
    let model = model(DType::F32)?;
    let good = Pair { clean: vec![1, 2, 3], corrupt: vec![1, 4, 3], metric: Metric::difference(5, 6) };
    let cases = [
        (
            Pair { corrupt: vec![1, 2], ..good.clone() },
            "pair 1: the clean text has 3 tokens and the corrupted one 2",
        ),
        (Pair { clean: vec![], corrupt: vec![], ..good.clone() }, "0 tokens, expected 1 to 128"),
        (Pair { clean: vec![1; 129], corrupt: vec![1; 129], ..good.clone() }, "129 tokens"),
        (Pair { clean: vec![1, 53, 3], ..good.clone() }, "token 53 is not in 0..53"),
        (Pair { metric: Metric::difference(5, 53), ..good.clone() }, "target 53 is not in 0..53"),
        (
            Pair { metric: Metric::LogitDifference { answers: vec![5], against: vec![] }, ..good.clone() },
            "at least one right and one wrong answer",
        ),
        (
            Pair { metric: Metric::difference(5, 5), ..good.clone() },
            "token 5 is both a right and a wrong answer",
        ),
        (
            Pair {
                metric: Metric::LogitDifference { answers: vec![5, 7, 5], against: vec![6] },
                ..good.clone()
            },
            "token 5 is an answer twice",
        ),
    ];
    for (pair, says) in cases {
        let error = Study::new(&model, &[good.clone(), pair]).map(drop).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(
        Study::new(&model, &[]).map(drop).expect_err("no pair").to_string().contains("at least one pair")
    );
    let pairs = [good];
    let study = Study::new(&model, &pairs)?;
    let none = study.edge_scores(EdgeGradients::Integrated { steps: 0 }, &mut |_, _| Ok(()));
    assert!(none.map(drop).expect_err("no step").to_string().contains("at least one step"));
    let shared = load("bigcode", DType::F32)?;
    let error = Study::new(&shared, &pairs).map(drop).expect_err("shared keys").to_string();
    assert!(error.contains("heads that share keys and values are not supported"), "{error}");
    let other = Graph::of(&gpt2_model::Config::gpt2())?;
    let error = study.measure(&[&EdgeSet::all(other)], Replacement::Zero, &mut |_, _| Ok(()));
    assert!(error.expect_err("another model").to_string().contains("another number of layers"));
    for (senders, receivers, says) in [
        ("2.0", "1.0.q", "no receiver comes after the sender 2.0"),
        ("3.0", "logits", "no sender 3.0: the model has layers 0 to 2"),
        ("0.0", "1.3.q", "no receiver 1.3.q: the model has layers 0 to 2 of 3 heads"),
    ] {
        let paths = Paths {
            senders: vec![senders.parse()?],
            receivers: vec![receivers.parse()?],
            freeze: Freeze::All,
        };
        let error = study.path_patching(&[paths], &mut |_, _| Ok(())).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    let stop = study
        .measure(&[&EdgeSet::all(study.graph())], Replacement::Zero, &mut |_, _| candle_core::bail!("stop"));
    assert!(stop.expect_err("stopped").to_string().contains("stop"));
    Ok(())
}
