//! Softmax with its log-sums, which join attention over several sets of keys, with sinks, and with learned numbers added to
//! the scores: against the definition in f64 and the results of PyTorch, with all gradients.

use crate::common::{Result, cases, data, some_padding, test_device};
use crate::{random, relative_error, same_on_any_number_of_threads};
use candle_core::{DType, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{Inputs, Mask, Sdpa, Wanted, Window, quantize_rows, widen_rows};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    b: usize,
    key_heads: usize,
    group: usize,
    pub(crate) t: usize,
    pub(crate) s: usize,
    d: usize,
    dv: usize,
    window: Window,
    softcap: Option<f64>,
    padded: bool,
    sinks: bool,
    /// Whether scores are added for each row of the batch, and for each head.
    added: Option<[bool; 2]>,
    dropping: bool,
    /// Whether the loss depends on the context, and on the log-sums.
    of: [bool; 2],
    seed: u64,
}

type Named = Vec<(&'static str, Vec<f64>)>;

pub(crate) fn flat(x: &Tensor) -> Result<Vec<f64>> {
    Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

/// -inf, which has no difference, as 0.
pub(crate) fn finite(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| if *x == f64::NEG_INFINITY { 0.0 } else { *x }).collect()
}

impl Case {
    fn heads(&self) -> usize {
        self.key_heads * self.group
    }

    pub(crate) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(random(self.seed, name, 1., shape)?)
    }

    pub(crate) fn padding(&self) -> Vec<Vec<u8>> {
        let mut padding = some_padding(self.b, self.s, self.seed);
        if self.seed.is_multiple_of(3) {
            padding[0].fill(0);
        }
        padding
    }

    /// q (B, H, T, D), k (B, key heads, S, D), v (B, key heads, S, Dv)
    pub(crate) fn qkv(&self) -> Result<[Tensor; 3]> {
        let &Self { b, key_heads, t, s, d, dv, .. } = self;
        Ok([
            self.numbers("q", &[b, self.heads(), t, d])?,
            self.numbers("k", &[b, key_heads, s, d])?,
            self.numbers("v", &[b, key_heads, s, dv])?,
        ])
    }

    fn sinks(&self) -> Result<Option<Tensor>> {
        let sinks = || Ok((self.numbers("sinks", &[self.heads()])? * 2.)?);
        self.sinks.then(sinks).transpose()
    }

    /// (B or 1, H or 1, T, S); some keys are hidden by -inf, from some queries all.
    fn added(&self) -> Result<Option<Tensor>> {
        let Some([rows, heads]) = self.added else { return Ok(None) };
        let b = if rows { self.b } else { 1 };
        let h = if heads { self.heads() } else { 1 };
        let shape = [b, h, self.t, self.s];
        let numbers = self.numbers("added", &shape)?.flatten_all()?.to_vec1::<f32>()?;
        let hidden = |n: usize| n / self.s % self.t % 7 == 3 || n % 5 == 1;
        let numbers = numbers.into_iter().enumerate();
        let numbers = numbers.map(|(n, x)| if hidden(n) { f32::NEG_INFINITY } else { x });
        Ok(Some(Tensor::from_iter(numbers, &test_device())?.reshape(&shape)?))
    }

    /// The context, the log-sums, and the gradients of all that is learned, of inputs that are rounded to a dtype first.
    fn run(&self, rounded: DType, dtype: DType, implementation: Implementation) -> Result<Named> {
        let variable = |x: Tensor| Var::from_tensor(&x.to_dtype(rounded)?.to_dtype(dtype)?);
        let [q, k, v] = self.qkv()?.map(variable);
        let q = q?;
        let k = k?;
        let v = v?;
        // Beside halves, what else is learned is in f32.
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let sinks = self.sinks()?.map(|x| Var::from_tensor(&x.to_dtype(wide)?)).transpose()?;
        let added = self.added()?.map(|x| Var::from_tensor(&x.to_dtype(wide)?)).transpose()?;
        let padding = Tensor::new(self.padding(), &test_device())?;
        let mask = Mask {
            padding: self.padded.then_some(&padding),
            added: added.as_ref().map(Var::as_tensor),
            ..Mask::default()
        };
        assert_eq!(
            Sdpa { implementation, ..Sdpa::default() }.code_for(&Inputs::from_tensors(&q, &k, &v, mask))?,
            implementation
        );
        let attention = Sdpa {
            window: self.window,
            softcap: self.softcap,
            sinks: sinks.as_ref().map(|x| x.as_tensor().clone()),
            dropout: self.dropping.then(|| Dropout::new(0.25, self.seed, 1)).transpose()?,
            implementation,
            ..Sdpa::default()
        };
        let wanted = Wanted { lse: true, ..Wanted::default() };
        let attended = attention.attend(&q, &k, &v, mask, wanted)?;
        let lse = attended.lse.ok_or("log-sums")?;
        let wide = |x: &Tensor| x.to_dtype(DType::F64);
        assert_eq!((attended.context.dtype(), attended.context.is_contiguous()), (dtype, true));
        assert_eq!(lse.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
        assert_eq!(lse.dims(), [self.b, self.heads(), self.t]);
        let alone = attention.forward(&q, &k, &v, mask)?;
        assert_eq!(flat(&alone)?, flat(&attended.context)?, "log-sums change the context");
        // Where nothing is visible, -inf times 0 would be NaN.
        let seen = lse.ne(f64::NEG_INFINITY)?;
        let seen_lse = seen.where_cond(&lse, &lse.zeros_like()?)?;
        let of_context = (wide(&attended.context)? * wide(&self.numbers("g", attended.context.dims())?)?)?;
        let of_log_sums = (wide(&seen_lse)? * wide(&self.numbers("l", lse.dims())?)?)?;
        let losses = [of_context.sum_all()?, of_log_sums.sum_all()?];
        let losses: Vec<_> = losses.iter().zip(self.of).filter(|(_, of)| *of).map(|(loss, _)| loss).collect();
        let gradients = Tensor::stack(&losses, 0)?.sum_all()?.backward()?;
        let of = |x: &Var| -> Result<Vec<f64>> {
            // Plain operations know that log-sums do not depend on v.
            let Some(gradient) = gradients.get(x) else { return flat(&x.zeros_like()?) };
            assert_eq!((gradient.dims(), gradient.dtype()), (x.dims(), x.dtype()));
            flat(gradient)
        };
        let mut all = vec![
            ("context", flat(&attended.context)?),
            ("log-sums", flat(&lse)?),
            ("dq", of(&q)?),
            ("dk", of(&k)?),
            ("dv", of(&v)?),
        ];
        if let Some(added) = &added {
            all.push(("gradient of what is added", of(added)?));
        }
        if let Some(sinks) = &sinks {
            all.push(("gradient of the sinks", of(sinks)?));
        }
        Ok(all)
    }

    /// The log-sums (B, H, T), one number at a time.
    fn log_sums_by_definition(&self) -> Result<Vec<f64>> {
        let &Self { b, t, s, d, key_heads, group, .. } = self;
        let h = self.heads();
        let [q, k, _] = self.qkv()?;
        let q = flat(&q)?;
        let k = flat(&k)?;
        let padding = self.padding();
        let sinks = self.sinks()?.map(|x| flat(&x)).transpose()?;
        let added = self.added()?.map(|x| x.broadcast_as((b, h, t, s))?.contiguous()).transpose()?;
        let added = added.map(|x| flat(&x)).transpose()?;
        let row = |row: usize| {
            let bi = row / (h * t);
            let hi = row / t % h;
            let i = row % t;
            let keys = self.window.keys(i, t, s).filter(|&j| !self.padded || padding[bi][j] == 1);
            let score = |j: usize| {
                let key = &k[((bi * key_heads + hi / group) * s + j) * d..][..d];
                let dot: f64 = q[row * d..][..d].iter().zip(key).map(|(a, b)| a * b).sum();
                let score = dot / (d as f64).sqrt();
                let score = self.softcap.map_or(score, |cap| cap * (score / cap).tanh());
                score + added.as_ref().map_or(0.0, |added| added[row * s + j])
            };
            let of_sink = sinks.as_ref().map_or(0.0, |sinks| sinks[hi].exp());
            (keys.map(|j| score(j).exp()).sum::<f64>() + of_sink).ln()
        };
        Ok((0..b * h * t).map(row).collect())
    }

    fn check(&self) -> Result {
        let expected = self.run(DType::F32, DType::F64, Eager)?;
        let by_definition = self.log_sums_by_definition()?;
        let hidden = |x: &[f64]| x.iter().map(|x| *x == f64::NEG_INFINITY).collect::<Vec<_>>();
        let error = relative_error(&finite(&expected[1].1), &finite(&by_definition));
        assert!(error < 1e-12, "eager log-sums of {self:?}: {error}");
        // With halves, the context and its gradient are rounded, and dv products with them are summed: their error grows with √dv. The
        // largest seen is 11 roundings (2^-11 in f16), for dv = 26.
        let roundings = (4.0 * (self.dv as f64).sqrt()).max(8.0);
        for (dtype, tolerance) in [
            (DType::F32, 1e-5),
            (DType::F16, roundings * 2f64.powi(-11)),
            (DType::BF16, roundings * 2f64.powi(-8)),
        ] {
            let expected = self.run(dtype, DType::F64, Eager)?;
            for ((what, got), (_, expected)) in self.run(dtype, dtype, Fused)?.iter().zip(&expected) {
                assert_eq!(hidden(got), hidden(expected), "{what} of {self:?}");
                let got = finite(got);
                let expected = finite(expected);
                // Small numbers may be sums of large terms.
                let largest = expected.iter().fold(1e-30, |a: f64, x| a.max(x.abs()));
                let error = relative_error(&got, &expected) * largest.min(1.0);
                assert!(error < tolerance, "{what} in {dtype:?} of {self:?}: {error}");
            }
        }
        Ok(())
    }
}

fn windows() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::CAUSAL),
        Just(Window::ALL),
        (1usize..260).prop_map(Window::sliding),
        (0usize..9, 0usize..300).prop_map(|(left, right)| Window { left: Some(left), right: Some(right) }),
    ]
}

prop_compose! {
    fn any_case()(b in 1usize..3, key_heads in 1usize..3, group in 1usize..4, t in prop_oneof![1usize..5, 1usize..100],
                  s in 1usize..300, d in 1usize..50, dv in 1usize..50, window in windows(),
                  softcap in prop::option::weighted(0.2, 0.5f64..30.), padded: bool, sinks: bool,
                  added in prop::option::of(any::<[bool; 2]>()), dropping in prop::bool::weighted(0.2),
                  of in 1usize..4, seed in 0u64..100_000) -> Case {
        Case { b, key_heads, group, t, s, d, dv, window, softcap, padded, sinks, added, dropping, of: [of & 1 > 0, of & 2 > 0], seed }
    }
}

pub(crate) fn some_case() -> Case {
    Case {
        b: 2,
        key_heads: 2,
        group: 2,
        t: 70,
        s: 90,
        d: 12,
        dv: 20,
        window: Window::ALL,
        softcap: None,
        padded: true,
        sinks: true,
        added: Some([false; 2]),
        dropping: false,
        of: [true; 2],
        seed: 8,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(32)))]

    #[test]
    fn log_sums_and_gradients_follow_the_definition(case in any_case()) {
        case.check().map_err(|e| TestCaseError::fail(e.to_string()))?;
    }
}

/// Heads and rows of the batch that share added numbers sum their gradient in one order.
#[test]
fn no_bit_depends_on_the_number_of_threads() -> Result {
    for added in [[false, false], [false, true], [true, false], [true, true]] {
        let case = Case { added: Some(added), ..some_case() };
        same_on_any_number_of_threads(|| {
            let all = case.run(DType::F32, DType::F32, Fused)?;
            Ok(all.into_iter().flat_map(|(_, numbers)| numbers).collect())
        })?;
    }
    Ok(())
}

/// Backward passes on several threads through one graph, each of another loss, do not mix.
#[test]
fn passes_at_the_same_time_have_their_own_gradients() -> Result {
    let [q, k, v] = some_case().qkv()?;
    let added = Var::from_tensor(&random(1, "added", 1., (1, 1, 70, 90))?)?;
    let mask = Mask { added: Some(&added), ..Mask::default() };
    let sums = Sdpa::default().forward(&q, &k, &v, mask)?.sqr()?.sum_all()?;
    let gradient = |factor: f64| -> Result<Vec<f64>> {
        let gradients = (&sums * factor)?.backward()?;
        flat(gradients.get(&added).ok_or("no gradient")?)
    };
    let one = gradient(1.)?;
    std::thread::scope(|scope| {
        let start = |factor: f64| {
            let one = &one;
            let gradient = &gradient;
            let run = move || {
                (0..5).try_for_each(|_| {
                    let expected: Vec<f64> = one.iter().map(|x| x * factor).collect();
                    (gradient(factor).ok()? == expected).then_some(())
                })
            };
            scope.spawn(run)
        };
        let threads = [1., 2., 4., 8.].map(start);
        assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|same| same.is_some())));
    });
    Ok(())
}

/// Keys and values in 8 bits and in halves are widened when the numbers added to their scores are learned, and a broadcast view has a
/// gradient of its base.
#[test]
fn narrow_keys_and_views_have_gradients_of_what_is_added() -> Result {
    let [q, k, _] = Case { dv: 12, ..some_case() }.qkv()?;
    let base = Var::from_tensor(&random(1, "added", 1., (1, 4, 1, 90))?)?;
    let [codes, halves] = [quantize_rows(&k)?, k.to_dtype(DType::BF16)?];
    for (narrow, wide) in [(&codes, widen_rows(&codes)?), (&halves, halves.to_dtype(DType::F32)?)] {
        let gradient = |q: &Tensor, k: &Tensor, implementation| -> Result<Vec<f64>> {
            let added = base.to_dtype(q.dtype())?.broadcast_as((2, 4, 70, 90))?;
            let mask = Mask { added: Some(&added), ..Mask::default() };
            let attention = Sdpa { implementation, ..Sdpa::default() };
            let gradients = attention.forward(q, k, k, mask)?.sqr()?.sum_all()?.backward()?;
            flat(gradients.get(&base).ok_or("no gradient")?)
        };
        let expected = gradient(&q.to_dtype(DType::F64)?, &wide.to_dtype(DType::F64)?, Eager)?;
        assert!(relative_error(&gradient(&q, narrow, Fused)?, &expected) < 1e-5);
    }
    Ok(())
}

/// Sinks, log-sums and added scores, all with gradients: `scripts/make_attention_reference.py`.
#[test]
fn all_is_what_pytorch_computes() -> Result {
    let file = data("attention").join("extras.safetensors");
    let stored = candle_core::safetensors::load(file, &test_device())?;
    let get = |name: &str| stored.get(name).ok_or_else(|| format!("no {name}"));
    for (implementation, dtype, tolerance) in [(Eager, DType::F64, 1e-7), (Fused, DType::F32, 3e-6)] {
        let variable = |name: &str| -> Result<Var> { Ok(Var::from_tensor(&get(name)?.to_dtype(dtype)?)?) };
        let names = ["q", "k", "v", "added", "sinks"];
        let [q, k, v, added, sinks] = names.map(variable);
        let q = q?;
        let k = k?;
        let v = v?;
        let added = added?;
        let sinks = sinks?;
        let window = Window { left: Some(12), right: Some(0) };
        let attention =
            Sdpa { window, sinks: Some(sinks.as_tensor().clone()), implementation, ..Sdpa::default() };
        let mask = Mask { added: Some(&added), ..Mask::default() };
        let attended = attention.attend(&q, &k, &v, mask, Wanted { lse: true, ..Wanted::default() })?;
        let context = attended.context.transpose(1, 2)?;
        let lse = attended.lse.ok_or("log-sums")?;
        let of =
            |x: &Tensor, grad: &str| -> Result<Tensor> { Ok((x * get(grad)?.to_dtype(dtype)?)?.sum_all()?) };
        let gradients = (of(&context, "grad")? + of(&lse, "lse_grad")?)?.backward()?;
        let mut found = vec![("context".to_owned(), context), ("lse".to_owned(), lse)];
        for (name, x) in names.iter().zip([&q, &k, &v, &added, &sinks]) {
            found.push((format!("d{name}"), gradients.get(x).ok_or("no gradient")?.clone()));
        }
        for (what, got) in found {
            let error = relative_error(&flat(&got)?, &flat(get(&what)?)?);
            assert!(error < tolerance, "{what}, {implementation:?}: {error}");
        }
    }
    Ok(())
}

/// A view would keep the memory of the context.
#[test]
fn log_sums_that_do_not_learn_have_memory_of_their_own() -> Result {
    let q = random(1, "q", 1., (2, 3, 5, 8))?;
    let wanted = Wanted { lse: true, ..Wanted::default() };
    let of = |q: &Tensor| -> Result<Tensor> {
        let attended =
            Sdpa { implementation: Fused, ..Sdpa::default() }.attend(q, q, q, Mask::default(), wanted)?;
        Ok(attended.lse.ok_or("log-sums")?)
    };
    assert_eq!(of(&q)?.layout().start_offset(), 0);
    let learned = Var::from_tensor(&q)?;
    assert_eq!(flat(&of(&learned)?)?, flat(&of(&q)?)?);
    Ok(())
}
