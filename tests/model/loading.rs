//! A model finds its tensors, and refuses a config that it cannot run.

use crate::common::{Result, assert_close, some_ids, test_device};
use crate::models::random_model;
use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use gpt2_model::config::TokenIds;
use gpt2_model::linear::{Linear, Weight, WeightLayout};
use gpt2_model::{Config, Embedding, ForwardArgs, Gpt2LMHeadModel, LmHead};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// The tensors of a model under names with this prefix; its tables, if they are there, multiplied by a factor.
fn tensors(
    model: &Gpt2LMHeadModel,
    prefix: &str,
    [wte, head]: [Option<f64>; 2],
) -> Result<HashMap<String, Tensor>> {
    let mut all = HashMap::new();
    for (name, values) in model.named_parameters() {
        all.insert(format!("{prefix}{name}"), values.tensor()?);
    }
    let table = all.remove(&format!("{prefix}wte.weight")).ok_or("a table")?;
    if let Some(factor) = wte {
        all.insert(format!("{prefix}wte.weight"), (&table * factor)?);
    }
    if let Some(factor) = head {
        all.insert("lm_head.weight".into(), (&table * factor)?);
    }
    Ok(all)
}

#[test]
fn both_tables_are_found_under_either_form_of_the_names() -> Result {
    let model = random_model(2, 4, 8)?;
    let ids = some_ids(6, 1)?;
    let table = model.transformer.wte.weight()?;
    let cases = [
        (true, [Some(1.), None], Some((true, [1., 1.]))),
        (true, [None, Some(2.)], Some((true, [2., 2.]))),
        (true, [Some(2.), Some(2.)], Some((true, [2., 2.]))),
        (true, [Some(1.), Some(2.)], Some((false, [1., 2.]))),
        (false, [Some(1.), Some(2.)], Some((false, [1., 2.]))),
        (false, [Some(2.), Some(2.)], Some((false, [2., 2.]))),
        (false, [Some(1.), None], None),
        (false, [None, Some(1.)], None),
    ];
    for prefix in ["", "transformer."] {
        for (says_tied, tables, expected) in cases {
            let what = format!("{prefix:?}, {says_tied}, {tables:?}");
            let config = Config { tie_word_embeddings: says_tied, ..model.config().clone() };
            let held = tensors(&model, prefix, tables)?;
            let loaded =
                Gpt2LMHeadModel::load(VarBuilder::from_tensors(held, DType::F32, &test_device()), &config);
            let Some((is_tied, [wte, head])) = expected else {
                assert!(loaded.is_err(), "{what}: a table is missing");
                continue;
            };
            let loaded = loaded.map_err(|e| format!("{what}: {e}"))?;
            assert_eq!(loaded.is_tied(), is_tied, "{what}");
            let mut same = model.clone();
            same.transformer.wte = Embedding::new((&table * wte)?)?;
            same.lm_head = LmHead::new((&table * head)?)?;
            let run = |model: &Gpt2LMHeadModel| model.forward(&ids, ForwardArgs::default());
            assert_close(&what, &run(&loaded)?.logits, &run(&same)?.logits, 1e-6);
        }
    }
    Ok(())
}

#[test]
fn a_source_of_weights_is_asked_for_each_by_its_name_and_shape() -> Result {
    let model = random_model(2, 4, 8)?;
    let held = tensors(&model, "transformer.", [Some(1.), Some(2.)])?;
    let vb = || VarBuilder::from_tensors(held.clone(), DType::F32, &test_device());
    let asked = RefCell::new(BTreeSet::new());
    Gpt2LMHeadModel::load_with(vb(), model.config(), &|name, shape| {
        asked.borrow_mut().insert((name.to_owned(), shape));
        Ok(None)
    })?;
    let mut expected = BTreeSet::from([("wte.weight".into(), (8, 37)), ("lm_head.weight".into(), (8, 37))]);
    for layer in 0..2 {
        for (name, shape) in [
            ("attn.c_attn", (8, 24)),
            ("attn.c_proj", (8, 8)),
            ("mlp.c_fc", (8, 32)),
            ("mlp.c_proj", (32, 8)),
        ] {
            expected.insert((format!("h.{layer}.{name}.weight"), shape));
        }
    }
    assert_eq!(asked.into_inner(), expected);

    let zeros = |shape: (usize, usize)| {
        Weight::plain(Tensor::zeros(shape, DType::F32, &test_device())?, WeightLayout::InOut)
    };
    let with = |shape: (usize, usize)| {
        Gpt2LMHeadModel::load_with(vb(), model.config(), &|name, _| {
            Ok(if name == "h.1.mlp.c_fc.weight" { Some(zeros(shape)?) } else { None })
        })
    };
    let given = with((8, 32))?;
    assert!(given.transformer.h[1].mlp.c_fc.weight()?.abs()?.max_all()?.to_scalar::<f32>()? == 0.0);
    assert!(given.transformer.h[0].mlp.c_fc.weight()?.abs()?.max_all()?.to_scalar::<f32>()? > 0.0);
    let error = with((32, 8)).expect_err("turned").to_string();
    assert!(
        error.contains("h.1.mlp.c_fc.weight: expected a weight (8, 32) (in, out), got (32, 8)"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_model_that_its_checkpoint_cannot_hold_is_named_by_its_first_difference() -> Result {
    let model = random_model(2, 4, 8)?;
    model.check_layers()?;
    let mut narrow = model.clone();
    narrow.transformer.wpe = narrow.transformer.wpe.narrow(0, 0, 7)?;
    let error = narrow.check_layers().expect_err("7 positions").to_string();
    assert!(error.contains("wpe.weight is not [8, 8]"), "{error}");
    let mut turned = model.clone();
    let layer = &mut turned.transformer.h[1].attn.c_proj;
    let weight = Weight::plain(layer.weight()?.t()?.contiguous()?, WeightLayout::OutIn)?;
    *layer = Linear::new(weight, layer.bias().cloned())?.into();
    let error = turned.check_layers().expect_err("a turned weight").to_string();
    assert!(error.contains("h.1.attn.c_proj.weight is OutIn, but the checkpoint stores InOut"), "{error}");
    let half = Gpt2LMHeadModel::load(
        gpt2_model::init::seeded(7, DType::F16, &test_device()),
        &Config { n_embd: 64, ..model.config().clone() },
    )?;
    let error = half.quantize(gpt2_model::linear::BlockFormat::Q8_0).expect_err("a half").to_string();
    assert!(error.contains("this model is in f16"), "{error}");
    Ok(())
}

/// FNV-1a over the config, the names and the bits of the values.
#[test]
fn the_fingerprint_is_of_the_config_the_names_and_the_values() -> Result {
    let model = random_model(2, 4, 8)?;
    let mut parts: Vec<u32> = format!("{:?}", model.config()).bytes().map(u32::from).collect();
    for (name, values) in model.named_parameters() {
        parts.extend(name.bytes().map(u32::from));
        parts.extend(values.tensor()?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits));
    }
    let (mut hash, prime) = (14_695_981_039_346_656_037u64, 1_099_511_628_211);
    for part in parts {
        hash = (hash ^ u64::from(part)).wrapping_mul(prime);
    }
    assert_eq!(model.fingerprint()?, hash);
    Ok(())
}

/// The file of GPT-2 small, with transformers' defaults for the fields that it leaves out.
const GPT2: &str = r#"{
  "activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
  "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 1024,
  "resid_pdrop": 0.1, "vocab_size": 50257, "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
  "reorder_and_upcast_attn": false, "add_cross_attention": false, "tie_word_embeddings": true
}"#;

#[test]
fn the_default_config_is_that_of_gpt2_small() -> Result {
    let config: Config = serde_json::from_str(GPT2)?;
    assert_eq!(config, Config::default());
    assert!(config.is_eos(50256) && !config.is_eos(50255));
    assert_eq!((config.head_dim(), config.inner_dim(), config.key_heads()), (64, 3072, 12));
    assert_eq!(Config { n_head: 1, ..config.clone() }.head_dim(), 768);
    let several = Config { eos_token_id: Some(TokenIds::Many(vec![3, 5])), ..config };
    assert_eq!([3, 4, 5].map(|id| several.is_eos(id)), [true, false, true]);
    Ok(())
}

#[test]
fn sizes_are_allowed_up_to_their_limits() {
    type Change = fn(&mut Config, usize);
    let base = Config { n_embd: 1, n_head: 1, ..Config::gpt2() };
    let sizes: [(&str, usize, Change); 5] = [
        ("vocab_size", 16_777_216, |config, size| config.vocab_size = size),
        ("n_positions", 16_777_216, |config, size| config.n_positions = size),
        ("n_embd", 65_536, |config, size| config.n_embd = size),
        ("n_layer", 1024, |config, size| config.n_layer = size),
        ("n_inner", 262_144, |config, size| config.n_inner = Some(size)),
    ];
    // The first line, without a backtrace.
    let refusal = |config: &Config| {
        let error = config.validate().map_err(|e| e.to_string()).err().unwrap_or_default();
        error.lines().next().unwrap_or_default().to_owned()
    };
    for (name, limit, change) in sizes {
        for (size, is_fine) in [(1, true), (limit, true), (0, false), (limit + 1, false)] {
            let mut config = Config { n_inner: Some(4), ..base.clone() };
            change(&mut config, size);
            let expected = format!("config: {name} is {size}, expected 1 to {limit}");
            assert_eq!(refusal(&config), if is_fine { String::new() } else { expected });
        }
    }
    let heads = |n_head| Config { n_embd: 65_536, n_head, n_inner: Some(4), ..Config::gpt2() };
    assert_eq!(refusal(&heads(65_536)), "");
    assert_eq!(refusal(&heads(0)), "config: n_head is 0, expected 1 to 65536");
    assert!(refusal(&heads(65_537)).starts_with("config: n_head is 65537, expected 1 to 65536"));
    for (rate, is_fine) in [(0.0, true), (0.99, true), (1.0, false), (-0.1, false), (f64::NAN, false)] {
        let config = Config { embd_pdrop: rate, ..base.clone() };
        assert_eq!(refusal(&config).is_empty(), is_fine, "{rate}");
    }
    for (value, is_fine) in [(0.0, true), (f64::INFINITY, false), (-1e-9, false)] {
        let config = Config { initializer_range: value, ..base.clone() };
        assert_eq!(refusal(&config).is_empty(), is_fine, "{value}");
    }
}
