//! Attention with everything that other models than GPT-2 need of it, alone and together, against its definition in f64 and
//! against what PyTorch computes: shared keys, windows, soft caps, ALiBi, added scores, other widths of values.

use crate::common::{Result, cases, data, largest, test_device};
use crate::random;
use candle_core::{D, DType, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Auto, Eager, Fused};
use candle_fused::attention::{Chosen, HeadLayout, Hidden, Inputs, Mask, Sdpa, Wanted, Window};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Debug, Clone)]
struct Case {
    b: usize,
    key_heads: usize,
    group: usize,
    t: usize,
    s: usize,
    d: usize,
    dv: usize,
    window: Window,
    softcap: Option<f64>,
    alibi: bool,
    /// Whether scores are added for all rows and heads alike, or for each.
    added: Option<bool>,
    padded: bool,
    hidden: bool,
    /// Whether keys and queries belong to documents.
    documents: bool,
    dropping: bool,
    seed: u64,
}

impl Case {
    fn heads(&self) -> usize {
        self.key_heads * self.group
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(random(self.seed, name, 1., shape)?)
    }

    /// q (B, H, T, D), k (B, key heads, S, D), v (B, key heads, S, Dv)
    fn qkv(&self) -> Result<[Tensor; 3]> {
        let &Self { b, key_heads, t, s, d, dv, .. } = self;
        Ok([
            self.numbers("q", &[b, self.heads(), t, d])?,
            self.numbers("k", &[b, key_heads, s, d])?,
            self.numbers("v", &[b, key_heads, s, dv])?,
        ])
    }

    fn slopes(&self) -> Option<Arc<[f32]>> {
        self.alibi.then(|| (0..self.heads()).map(|h| 0.5 / (h + 1) as f32).collect())
    }

    fn added(&self) -> Result<Option<Tensor>> {
        let Some(each) = self.added else { return Ok(None) };
        let (b, h) = if each { (self.b, self.heads()) } else { (1, 1) };
        let added = self.numbers("added", &[b, h, self.t, self.s])?;
        // Some keys are hidden by -inf, from some queries all; some queries have the lowest finite number everywhere.
        let place = |n: usize| (n / self.s % self.t, n % self.s);
        let numbers =
            added.flatten_all()?.to_vec1::<f32>()?.into_iter().enumerate().map(|(n, x)| match place(n) {
                (i, _) if i % 7 == 3 => f32::NEG_INFINITY,
                (i, _) if i % 7 == 5 => f32::MIN,
                (i, j) if (i + j) % 5 == 1 => f32::NEG_INFINITY,
                _ => x,
            });
        Ok(Some(Tensor::from_iter(numbers, &test_device())?.reshape((b, h, self.t, self.s))?))
    }

    fn sees(&self, b: usize, j: usize) -> bool {
        !self.padded || (j + b) % 3 != 1
    }

    /// The first key of the document of query `i`: documents of 13 positions, which begin elsewhere in each row.
    fn first(&self, b: usize, i: usize) -> usize {
        let position = (self.s + i).saturating_sub(self.t);
        if self.documents { position.saturating_sub((position + 5 * b) % 13) } else { 0 }
    }

    fn hidden(&self) -> Vec<Hidden> {
        let places = (0..self.t).flat_map(|query| (0..self.s).map(move |key| (query, key)));
        let some = places.filter(|(i, j)| self.hidden && (i * 7 + j * 5) % 11 == 2);
        some.map(|(query, key)| Hidden { head: (key % 2 == 0).then_some(0), query, key }).collect()
    }

    fn attention(&self, implementation: Implementation) -> Result<Sdpa> {
        Ok(Sdpa {
            window: self.window,
            softcap: self.softcap,
            slopes: self.slopes(),
            dropout: self.dropping.then(|| Dropout::new(0.25, self.seed, 1)).transpose()?,
            implementation,
            ..Sdpa::default()
        })
    }

    /// The context (B, T, H, Dv), weights of two heads, summary, and gradients of q, k and v, all in f64.
    fn run(&self, dtype: DType, implementation: Implementation) -> Result<Vec<(&'static str, Tensor)>> {
        let variables = self.qkv()?.map(|x| x.to_dtype(dtype).and_then(|x| Var::from_tensor(&x)));
        let [q, k, v] = variables;
        let q = q?;
        let k = k?;
        let v = v?;
        let visible = (0..self.b).flat_map(|b| (0..self.s).map(move |j| u8::from(self.sees(b, j))));
        let padding = Tensor::from_iter(visible, &test_device())?.reshape((self.b, self.s))?;
        let hidden = self.hidden();
        let added = self.added()?;
        let starts = (0..self.b).flat_map(|b| (0..self.t).map(move |i| (b, i)));
        let starts = starts.map(|(b, i)| u32::try_from(self.first(b, i)));
        let starts = Tensor::new(starts.collect::<std::result::Result<Vec<_>, _>>()?, &test_device())?
            .reshape((self.b, self.t))?;
        let mask = Mask {
            padding: self.padded.then_some(&padding),
            hidden: &hidden,
            added: added.as_ref(),
            first: self.documents.then_some(&starts),
            ..Mask::default()
        };
        let attention = self.attention(implementation)?;
        let last = Chosen { heads: Some(vec![self.heads() - 1, 0]), queries: None };
        let wanted = Wanted { weights: &[last], summary: true, ..Wanted::default() };
        let attended = attention.attend(&q, &k, &v, mask, wanted)?;
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        let context = wide(&attended.context)?;
        let gradients = |loss: Tensor| -> Result<[Tensor; 2]> {
            let gradients = loss.backward()?;
            let of = |x: &Var| -> Result<Tensor> { Ok(wide(gradients.get(x).ok_or("no gradient")?)?) };
            Ok([of(&q)?, of(&k)?])
        };
        let loss = (&context * wide(&self.numbers("g", context.dims())?)?)?.sum_all()?;
        let of_weights = wide(&attended.weights[0])?;
        let weights_loss = (&of_weights * wide(&self.numbers("w", of_weights.dims())?)?)?.sum_all()?;
        let dv = wide(loss.backward()?.get(&v).ok_or("no gradient")?)?;
        let [dq, dk] = gradients(loss)?;
        let [weights_dq, weights_dk] = gradients(weights_loss)?;
        let summary = attended.summary.ok_or("a summary")?;
        Ok(vec![
            ("context", context.detach()),
            ("dq", dq),
            ("dk", dk),
            ("dv", dv),
            ("weights", of_weights.detach()),
            ("dq of weights", weights_dq),
            ("dk of weights", weights_dk),
            ("entropy", wide(&summary.entropy)?),
            ("distance", wide(&summary.mean_distance)?),
            ("on self", wide(&summary.on_self)?),
            ("on previous", wide(&summary.on_previous)?),
            ("on first", wide(&summary.on_first)?),
            ("largest", wide(&summary.max)?),
        ])
    }

    /// The definition, one number at a time: context (B, T, H, Dv) and weights (B, H, T, S), without dropout.
    fn by_definition(&self) -> Result<[Tensor; 2]> {
        let &Self { b, t, s, d, dv, key_heads, group, .. } = self;
        let h = self.heads();
        let [q, k, v] = self.qkv()?;
        let flat = |x: &Tensor| -> Result<Vec<f64>> { Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
        let q = flat(&q)?;
        let k = flat(&k)?;
        let v = flat(&v)?;
        let added = self.added()?.map(|x| x.broadcast_as((b, h, t, s))).transpose()?;
        let added = added.map(|x| flat(&x.contiguous()?)).transpose()?;
        let hidden = self.hidden();
        let slopes = self.slopes();
        let mut weights = vec![0.0; b * h * t * s];
        let mut context = vec![0.0; b * t * h * dv];
        for row in 0..b * h * t {
            let bi = row / (h * t);
            let hi = row / t % h;
            let i = row % t;
            let position = s.cast_signed() - t.cast_signed() + i.cast_signed();
            let near =
                |reach: Option<usize>, far: isize| reach.is_none_or(|reach| far <= reach.cast_signed());
            let sees = |&j: &usize| {
                near(self.window.left, position - j.cast_signed())
                    && near(self.window.right, j.cast_signed() - position)
                    && self.sees(bi, j)
                    && j >= self.first(bi, i)
                    && !hidden
                        .iter()
                        .any(|x| (x.query, x.key) == (i, j) && x.head.is_none_or(|head| head == hi))
            };
            let keys: Vec<usize> = (0..s).filter(sees).collect();
            let of_keys = (bi * key_heads + hi / group) * s;
            let score = |&j: &usize| {
                let key = &k[(of_keys + j) * d..][..d];
                let dot: f64 = q[row * d..][..d].iter().zip(key).map(|(a, b)| a * b).sum();
                let mut score = dot / (d as f64).sqrt();
                if let Some(cap) = self.softcap {
                    score = cap * (score / cap).tanh();
                }
                if let Some(slopes) = &slopes {
                    score -= f64::from(slopes[hi]) * (position - j.cast_signed()).abs() as f64;
                }
                score + added.as_ref().map_or(0.0, |added| added[row * s + j])
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if highest == f64::NEG_INFINITY {
                continue;
            }
            let total: f64 = scores.iter().map(|x| (x - highest).exp()).sum();
            for (&j, x) in keys.iter().zip(&scores) {
                let weight = (x - highest).exp() / total;
                weights[row * s + j] = weight;
                for c in 0..dv {
                    context[((bi * t + i) * h + hi) * dv + c] += weight * v[(of_keys + j) * dv + c];
                }
            }
        }
        let weights = Tensor::from_vec(weights, (b, h, t, s), &test_device())?;
        Ok([Tensor::from_vec(context, (b, t, h, dv), &test_device())?, weights])
    }

    /// Eager in f64 is the definition, and fused is eager.
    fn check(&self) -> Result {
        let expected = self.run(DType::F64, Eager)?;
        if !self.dropping {
            let [context, weights] = self.by_definition()?;
            let last = Tensor::new(&[u32::try_from(self.heads())? - 1, 0], &test_device())?;
            for (what, by_definition) in [("context", context), ("weights", weights.index_select(&last, 1)?)]
            {
                let found = &expected.iter().find(|(name, _)| *name == what).ok_or(what)?.1;
                let error = distance(found, &by_definition)?;
                assert!(error < 1e-12, "eager {what} of {self:?}: {error}");
            }
        }
        for ((what, got), (_, expected)) in self.run(DType::F32, Fused)?.iter().zip(&expected) {
            // The largest numbers of a gradient are sums of terms that cancel where a weight is close to 1. Scores of 20 in
            // f32 have an error of 2e-6, and so have the weights.
            let error = distance(got, expected)?;
            assert!(error < 2e-5, "fused {what} of {self:?}: {error}");
        }
        Ok(())
    }
}

/// The largest difference, relative to the largest number where that is above 1.
fn distance(got: &Tensor, expected: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), expected.dims());
    let scale: f64 = expected.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar()?;
    Ok(largest((got - expected)?.abs()?.flatten_all()?.to_vec1::<f64>()?) / scale.max(1.0))
}

fn windows() -> impl Strategy<Value = Window> {
    let reach = || prop_oneof![Just(None), (0usize..6).prop_map(Some), (0usize..300).prop_map(Some)];
    prop_oneof![
        Just(Window::CAUSAL),
        Just(Window::ALL),
        (1usize..260).prop_map(Window::sliding),
        (reach(), reach()).prop_map(|(left, right)| Window { left, right }),
    ]
}

prop_compose! {
    fn any_case()(b in 1usize..3, key_heads in 1usize..3, group in 1usize..6, t in 1usize..120, s in 1usize..420,
                  d in 1usize..70, dv in prop::option::of(1usize..70), window in windows(), softcap in prop::option::of(0.5f64..30.),
                  alibi: bool, added in prop::option::weighted(0.3, any::<bool>()), padded: bool,
                  hidden in prop::bool::weighted(0.2), documents in prop::bool::weighted(0.2), dropping in prop::bool::weighted(0.3), seed in 0u64..100_000) -> Case {
        // A causal window needs as many keys as queries.
        let s = if window.is_causal() { s.max(t) } else { s };
        Case { b, key_heads, group, t, s, d, dv: dv.unwrap_or(d), window, softcap, alibi, added, padded, hidden, documents, dropping, seed }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]

    #[test]
    fn any_features_together_follow_the_definition(case in any_case()) {
        case.check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    /// A step of decoding, or a few.
    #[test]
    fn so_do_a_few_queries_over_a_cache(case in any_case(), t in 1usize..5, s in 4usize..900) {
        let case = Case { t, s, ..case };
        case.check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// The kernel computes it for the context, plain operations for weights.
#[test]
fn what_is_added_gets_its_gradient() -> Result {
    let normal = candle_nn::Init::Randn { mean: 0., stdev: 1. };
    let vb = gpt2_model::init::seeded(1, DType::F64, &test_device());
    let numbers = |name: &str, shape: &[usize]| vb.get_with_hints(shape, name, normal);
    let q = numbers("q", &[2, 4, 9, 8])?;
    let k = numbers("k", &[2, 2, 12, 8])?;
    let added = Var::from_tensor(&numbers("added", &[1, 4, 9, 12])?)?;
    let gradients = |dtype, implementation| -> Result<[Tensor; 2]> {
        let q = q.to_dtype(dtype)?;
        let k = k.to_dtype(dtype)?;
        let added_then = added.to_dtype(dtype)?;
        let mask = Mask { added: Some(&added_then), ..Mask::default() };
        let attention = Sdpa { implementation, ..Sdpa::default() };
        let wanted = Wanted { weights: &[Chosen::default()], summary: true, ..Wanted::default() };
        let attended = attention.attend(&q, &k, &k, mask, wanted)?;
        let of = |x: &Tensor| -> Result<Tensor> {
            let gradients = x.sqr()?.sum_all()?.backward()?;
            Ok(gradients.get(&added).ok_or("no gradient")?.clone())
        };
        Ok([of(&attended.context)?, of(&attended.weights[0])?])
    };
    let expected = gradients(DType::F64, Eager)?;
    for implementation in [Fused, Auto] {
        for (got, expected) in gradients(DType::F32, implementation)?.iter().zip(&expected) {
            assert!(distance(got, expected)? < 1e-5, "{implementation:?}");
            assert!(expected.abs()?.max_all()?.to_scalar::<f64>()? > 0.01);
        }
    }
    Ok(())
}

#[test]
fn which_code_runs_is_known_without_tensors() -> Result {
    let of = |dtype| Inputs::new(&test_device(), dtype, HeadLayout::grouped(4, 2, 8), 2, 3, 5);
    let all_there = Inputs {
        padding: true,
        hidden: true,
        first: true,
        ranges: true,
        added: true,
        gradient: true,
        ..of(DType::F16)
    };
    let half_keys = Inputs { dtypes: [DType::F32, DType::F16, DType::F16], ..of(DType::F32) };
    for (inputs, expected) in [
        (of(DType::F32), Fused),
        (of(DType::BF16), Fused),
        (all_there, Fused),
        (half_keys, Fused),
        (of(DType::F64), Eager),
        (Inputs { added: true, added_gradient: true, ..of(DType::F32) }, Fused),
    ] {
        assert_eq!(Sdpa::default().code_for(&inputs)?, expected, "{inputs:?}");
        let eager = Sdpa { implementation: Eager, ..Sdpa::default() };
        assert_eq!(eager.code_for(&inputs)?, Eager);
    }
    Ok(())
}

/// The files, and what `scripts/make_attention_reference.py` gave PyTorch for each.
const PYTORCH: [(&str, Window, Option<f64>); 9] = [
    ("grouped", Window::CAUSAL, None),
    ("single_key_head", Window::CAUSAL, None),
    ("full", Window::ALL, None),
    ("sliding", Window { left: Some(15), right: Some(0) }, None),
    ("both_sides", Window { left: Some(9), right: Some(4) }, None),
    ("added", Window::ALL, None),
    ("softcap", Window::CAUSAL, Some(1.5)),
    ("alibi", Window::CAUSAL, None),
    ("softcap_alibi_sliding", Window { left: Some(20), right: Some(0) }, Some(2.0)),
];

/// `scaled_dot_product_attention` and `flex_attention`, with gradients.
#[test]
fn context_and_gradients_are_pytorchs() -> Result {
    for (name, window, softcap) in PYTORCH {
        let file = data("attention").join(format!("{name}.safetensors"));
        let stored = candle_core::safetensors::load(file, &test_device())?;
        let get = |name: &str| stored.get(name).ok_or_else(|| format!("no {name}"));
        let slopes: Option<Arc<[f32]>> =
            stored.get("slopes").map(Tensor::to_vec1::<f32>).transpose()?.map(Arc::from);
        for (implementation, dtype, tolerance) in [(Eager, DType::F64, 1e-7), (Fused, DType::F32, 3e-6)] {
            let variable =
                |name: &str| -> Result<Var> { Ok(Var::from_tensor(&get(name)?.to_dtype(dtype)?)?) };
            let q = variable("q")?;
            let k = variable("k")?;
            let v = variable("v")?;
            let sdpa = Sdpa { window, softcap, slopes: slopes.clone(), implementation, ..Sdpa::default() };
            let mask = Mask { added: stored.get("added"), ..Mask::default() };
            let context = sdpa.forward(&q, &k, &v, mask)?.transpose(1, 2)?; // (B, H, T, Dv)
            let gradients = (&context * get("grad")?.to_dtype(dtype)?)?.sum_all()?.backward()?;
            let of = |x: &Var| gradients.get(x).cloned().ok_or("no gradient");
            for (what, got) in [("context", context), ("dq", of(&q)?), ("dk", of(&k)?), ("dv", of(&v)?)] {
                let expected = get(what)?.to_dtype(DType::F64)?;
                let error = (got.to_dtype(DType::F64)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                let error = error / expected.abs()?.max_all()?.to_scalar::<f64>()?;
                assert!(error < tolerance, "{what} of {name}, {implementation:?}: {error}");
            }
        }
    }
    Ok(())
}
