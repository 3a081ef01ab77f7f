//! What else a softmax gives and takes: its log-sums, which join attention over several sets of keys, and sinks. Against the
//! definition in f64 and what PyTorch computes, with all gradients.

use crate::common::{Result, cases, some_padding};
use crate::{random, relative_error, same_on_any_number_of_threads};
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Dropout;
use candle_fused::Implementation::{self, Eager, Fused};
use candle_fused::attention::{Chosen, Mask, Sdpa, Wanted, Window, merge};
use proptest::prelude::*;

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
    padded: bool,
    sinks: bool,
    dropping: bool,
    /// Whether the loss depends on the context, and on the log-sums.
    of: [bool; 2],
    seed: u64,
}

type Named = Vec<(&'static str, Vec<f64>)>;

fn flat(x: &Tensor) -> Result<Vec<f64>> {
    Ok(x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

/// -inf, which has no difference, as 0.
fn finite(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| if *x == f64::NEG_INFINITY { 0.0 } else { *x }).collect()
}

impl Case {
    fn heads(&self) -> usize {
        self.key_heads * self.group
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(random(self.seed, name, 1., shape)?)
    }

    fn padding(&self) -> Vec<Vec<u8>> {
        let mut padding = some_padding(self.b, self.s, self.seed);
        if self.seed.is_multiple_of(3) {
            padding[0].fill(0);
        }
        padding
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

    fn sinks(&self) -> Result<Option<Tensor>> {
        let sinks = || Ok((self.numbers("sinks", &[self.heads()])? * 2.)?);
        self.sinks.then(sinks).transpose()
    }

    /// The context, the log-sums, and the gradients of all that is learned, of inputs that are rounded to a dtype first.
    fn run(&self, rounded: DType, dtype: DType, implementation: Implementation) -> Result<Named> {
        let variable = |x: Tensor| Var::from_tensor(&x.to_dtype(rounded)?.to_dtype(dtype)?);
        let [q, k, v] = self.qkv()?.map(variable);
        let (q, k, v) = (q?, k?, v?);
        // Beside halves, what else is learned is in f32.
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let sinks = self.sinks()?.map(|x| Var::from_tensor(&x.to_dtype(wide)?)).transpose()?;
        let padding = Tensor::new(self.padding(), &Device::Cpu)?;
        let mask = Mask { padding: self.padded.then_some(&padding), ..Mask::default() };
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
        let (q, k, padding) = (flat(&q)?, flat(&k)?, self.padding());
        let sinks = self.sinks()?.map(|x| flat(&x)).transpose()?;
        let row = |row: usize| {
            let (bi, hi, i) = (row / (h * t), row / t % h, row % t);
            let keys = self.window.keys(i, t, s).filter(|&j| !self.padded || padding[bi][j] == 1);
            let score = |j: usize| {
                let key = &k[((bi * key_heads + hi / group) * s + j) * d..][..d];
                let dot: f64 = q[row * d..][..d].iter().zip(key).map(|(a, b)| a * b).sum();
                let score = dot / (d as f64).sqrt();
                self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
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
        for (dtype, tolerance) in
            [(DType::F32, 1e-5), (DType::F16, 4. * 2f64.powi(-11)), (DType::BF16, 4. * 2f64.powi(-8))]
        {
            let expected = self.run(dtype, DType::F64, Eager)?;
            for ((what, got), (_, expected)) in self.run(dtype, dtype, Fused)?.iter().zip(&expected) {
                assert_eq!(hidden(got), hidden(expected), "{what} of {self:?}");
                let (got, expected) = (finite(got), finite(expected));
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
                  softcap in prop::option::weighted(0.2, 0.5f64..30.), padded: bool, sinks: bool, dropping in prop::bool::weighted(0.2),
                  of in 1usize..4, seed in 0u64..100_000) -> Case {
        Case { b, key_heads, group, t, s, d, dv, window, softcap, padded, sinks, dropping, of: [of & 1 > 0, of & 2 > 0], seed }
    }
}

fn some_case() -> Case {
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

#[test]
fn no_bit_depends_on_the_number_of_threads() -> Result {
    same_on_any_number_of_threads(|| {
        Ok(some_case()
            .run(DType::F32, DType::F32, Fused)?
            .into_iter()
            .flat_map(|(_, numbers)| numbers)
            .collect())
    })
}

/// Attention over three parts of the keys, merged, is attention over all, and so are the gradients. Some rows see keys of one
/// part only, some none.
#[test]
fn merged_parts_are_the_whole() -> Result {
    let case = some_case();
    let [q, k, v] = case.qkv()?.map(|x| Var::from_tensor(&x));
    let (q, k, v) = (q?, k?, v?);
    let numbers = (0..case.t * case.s).map(|n| match (n / case.s, n % case.s) {
        (i, _) if i % 7 == 3 => f32::NEG_INFINITY,
        (i, j) if i % 7 == 5 && j >= 30 => f32::NEG_INFINITY,
        _ => 0.0,
    });
    let added = Tensor::from_iter(numbers, &Device::Cpu)?.reshape((1, 1, case.t, case.s))?;
    for (implementation, dtype, tolerance) in
        [(Fused, DType::F32, 1e-5), (Eager, DType::F32, 1e-5), (Fused, DType::BF16, 3e-2)]
    {
        let attention = Sdpa { window: Window::ALL, implementation, ..Sdpa::default() };
        let run = |parts: &[usize]| -> Result<Vec<Vec<f64>>> {
            let mut first = 0;
            let mut attended = vec![];
            for &len in parts {
                let part = |x: &Var| x.to_dtype(dtype)?.narrow(2, first, len);
                let added = added.narrow(3, first, len)?;
                let mask = Mask { added: Some(&added), ..Mask::default() };
                let wanted = Wanted { lse: true, ..Wanted::default() };
                let one = attention.attend(&q.to_dtype(dtype)?, &part(&k)?, &part(&v)?, mask, wanted)?;
                attended.push((one.context, one.lse.ok_or("log-sums")?));
                first += len;
            }
            let parts: Vec<_> = attended.iter().map(|(context, lse)| (context, lse)).collect();
            let (context, lse) = merge(&parts)?;
            assert_eq!(context.dtype(), dtype);
            let seen = lse.ne(f64::NEG_INFINITY)?.where_cond(&lse, &lse.zeros_like()?)?;
            let of_lse = (seen * case.numbers("l", lse.dims())?)?.sum_all()?;
            let of_context =
                (context.to_dtype(DType::F32)? * case.numbers("g", context.dims())?)?.sum_all()?;
            let gradients = (of_lse + of_context)?.backward()?;
            let of = |x: &Var| flat(gradients.get(x).ok_or("no gradient")?);
            Ok(vec![flat(&context)?, finite(&flat(&lse)?), of(&q)?, of(&k)?, of(&v)?])
        };
        let whole = run(&[90])?;
        assert!(whole[0].chunks(4 * 20).nth(3).ok_or("row 3")?.iter().all(|x| *x == 0.0));
        for (n, (got, expected)) in run(&[30, 59, 1])?.iter().zip(&whole).enumerate() {
            let error = relative_error(got, expected);
            assert!(error < tolerance, "{n} of {implementation:?} in {dtype:?}: {error}");
        }
    }
    Ok(())
}

#[test]
fn parts_that_do_not_fit_are_refused() -> Result {
    let (context, lse) = (
        Tensor::zeros((1, 3, 2, 4), DType::F32, &Device::Cpu)?,
        Tensor::zeros((1, 2, 3), DType::F32, &Device::Cpu)?,
    );
    let turned = lse.transpose(1, 2)?;
    for (parts, says) in [
        (&[][..], "no part"),
        (&[(&context, &lse), (&context, &turned)], "[1, 3, 2]"),
        (&[(&context, &lse), (&context.to_dtype(DType::F16)?, &lse)], "f16"),
    ] {
        let message = merge(parts).err().ok_or(says)?.to_string();
        assert!(message.contains(says), "{message:?} does not say {says:?}");
    }
    Ok(())
}

#[test]
fn queries_without_keys_have_log_sums_of_minus_infinity() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    let none = Tensor::zeros((1, 2, 0, 8), DType::F32, &Device::Cpu)?;
    for implementation in [Fused, Eager] {
        let attention = Sdpa { implementation, ..Sdpa::default() };
        let wanted = Wanted { lse: true, weights: &[Chosen::default()], summary: true };
        let lse = attention.attend(&q, &none, &none, Mask::default(), wanted)?.lse.ok_or("log-sums")?;
        assert_eq!((lse.dims(), flat(&lse)?), (&[1, 2, 3][..], vec![f64::NEG_INFINITY; 6]));
    }
    Ok(())
}

/// A sink takes its share of each row: weights, kernel and summaries agree with the definition from a sink that hardly counts to one
/// that takes almost all, and a query that sees no key gives zeros.
#[test]
fn weights_and_summaries_leave_the_sinks_their_share() -> Result {
    let case = Case { padded: true, seed: 3, ..some_case() };
    let [q, k, v] = case.qkv()?;
    let padding = Tensor::new(case.padding(), &Device::Cpu)?;
    let mask = Mask { padding: Some(&padding), ..Mask::default() };
    let sinks = Tensor::new(&[f32::NEG_INFINITY, -100., 1.5, 200.], &Device::Cpu)?;
    for t in [70, 3] {
        let q = q.narrow(2, 0, t)?;
        let run = |dtype, implementation| -> Result<Vec<(&str, Tensor)>> {
            let [q, k, v] = [&q, &k, &v].map(|x| x.to_dtype(dtype));
            let attention =
                Sdpa { sinks: Some(sinks.clone()), window: Window::ALL, implementation, ..Sdpa::default() };
            let wanted = Wanted { lse: true, weights: &[Chosen::default()], summary: true };
            let attended = attention.attend(&q?, &k?, &v?, mask, wanted)?;
            let summary = attended.summary.ok_or("a summary")?;
            Ok(vec![
                ("weights", attended.weights[0].clone()),
                ("context", attended.context),
                ("log-sums", attended.lse.ok_or("log-sums")?),
                ("entropy", summary.entropy),
                ("distance", summary.mean_distance),
                ("on self", summary.on_self),
                ("on first", summary.on_first),
                ("largest", summary.max),
            ])
        };
        let expected = run(DType::F64, Eager)?;
        // Row 0 of the batch is padding alone.
        let sums = expected[0].1.sum(3)?.narrow(2, 0, 1)?;
        let sums = flat(&sums)?;
        assert_eq!(sums[..4], [0.; 4], "{sums:?}");
        assert!((sums[4] - 1.).abs() < 1e-12 && (sums[5] - 1.).abs() < 1e-12 && sums[7] < 1e-80, "{sums:?}");
        assert!(sums[6] > 0.5 && sums[6] < 0.99, "{sums:?}");
        for ((what, got), (_, expected)) in run(DType::F32, Fused)?.iter().zip(&expected) {
            let error = relative_error(&finite(&flat(got)?), &finite(&flat(expected)?));
            assert!(error < 1e-5, "{what}, T {t}: {error}");
        }
    }
    Ok(())
}

/// Values that overflow in a sum go row by row.
#[test]
fn sinks_join_rows_of_huge_values() -> Result {
    let [q, k, v] = some_case().qkv()?;
    let sinks = Tensor::new(&[0f32, 1., 2., 3.], &Device::Cpu)?;
    let attention = |implementation| Sdpa { sinks: Some(sinks.clone()), implementation, ..Sdpa::default() };
    let (v, implementations) = ((v * 1e36)?, [Fused, Eager]);
    let [got, expected] = implementations
        .map(|implementation| flat(&attention(implementation).forward(&q, &k, &v, Mask::default())?));
    let error = relative_error(&got?, &expected?);
    assert!(error < 1e-5, "{error}");
    Ok(())
}

#[test]
fn sinks_that_do_not_fit_are_refused() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    for sinks in [Tensor::zeros(3, DType::F32, &Device::Cpu)?, Tensor::zeros(2, DType::U32, &Device::Cpu)?] {
        let attention = Sdpa { sinks: Some(sinks), ..Sdpa::default() };
        let message =
            attention.forward(&q, &q, &q, Mask::default()).expect_err("it does not fit").to_string();
        assert!(message.contains("sinks must be floats [2]"), "{message}");
    }
    Ok(())
}

/// Without keys the log-sum is the sink, and its gradient is 1.
#[test]
fn queries_without_keys_see_the_sinks_alone() -> Result {
    let q = random(1, "q", 1., (1, 2, 3, 8))?;
    let sinks = Var::new(&[0.5f32, -2.], &Device::Cpu)?;
    let padding = Tensor::zeros((1, 5), DType::U8, &Device::Cpu)?;
    for (implementation, s) in [(Fused, 0), (Fused, 5), (Eager, 5)] {
        let k = random(1, "k", 1., (1, 2, s, 8))?;
        let padding = padding.narrow(1, 0, s)?;
        let mask = Mask { padding: Some(&padding), ..Mask::default() };
        let attention = Sdpa { sinks: Some(sinks.as_tensor().clone()), implementation, ..Sdpa::default() };
        let attended = attention.attend(&q, &k, &k, mask, Wanted { lse: true, ..Wanted::default() })?;
        let lse = attended.lse.ok_or("log-sums")?;
        assert_eq!(flat(&attended.context)?, [0.; 48]);
        assert_eq!(flat(&lse)?, [0.5, 0.5, 0.5, -2., -2., -2.], "{implementation:?}, S {s}");
        let gradients = lse.sum_all()?.backward()?;
        assert_eq!(flat(gradients.get(&sinks).ok_or("no gradient")?)?, [3., 3.]);
    }
    Ok(())
}
