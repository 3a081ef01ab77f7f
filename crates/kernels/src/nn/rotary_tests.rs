use super::rope_scaling::{RopeScaling, RotaryTables};
use super::rotary_emb::{rope, rope_i, rope_thd};
use crate::cpu::test_numbers::{error, numbers, wide};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::rotary_emb::{rope_i_slow, rope_slow};

type Rotate = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

const THETA: f64 = 10_000.;

/// Angles of `t` positions after the third: cos and sin (t, w).
fn angles(t: usize, w: usize) -> Result<(Tensor, Tensor)> {
    RotaryTables::new(2 * w, t + 3, THETA, RopeScaling::None, DType::F32, &Device::Cpu)?.at(3, t)
}

#[test]
fn every_layout_is_candles() -> Result<()> {
    let (b, h, t, w) = (2, 3, 5, 8);
    let (cos, sin) = angles(t, w)?;
    let near = |ours: Tensor, theirs: Tensor| -> Result<()> {
        assert!(error(&ours, &wide(&theirs)?)? < 1e-6);
        Ok(())
    };
    let x = numbers((b, h, t, 2 * w), 1)?;
    near(rope(&x, &cos, &sin)?, rope_slow(&x, &cos, &sin)?)?;
    near(rope_i(&x, &cos, &sin)?, rope_i_slow(&x, &cos, &sin)?)?;
    near(rope_thd(&x.transpose(1, 2)?, &cos, &sin)?, rope(&x, &cos, &sin)?.transpose(1, 2)?)?;
    // A view, and more rows of the tables than positions.
    let view = numbers((b, t, h, 2 * w), 1)?.transpose(1, 2)?;
    let (long_cos, long_sin) = angles(t + 4, w)?;
    near(rope(&view, &long_cos, &long_sin)?, rope_slow(&view.contiguous()?, &cos, &sin)?)?;
    // Plain operations, as on a GPU.
    let wide_cos = wide(&cos)?;
    let wide_sin = wide(&sin)?;
    for function in [rope as Rotate, rope_i] {
        let plain = function(&wide(&view.transpose(1, 2)?)?.transpose(1, 2)?, &wide_cos, &wide_sin)?;
        assert!(plain.is_contiguous());
        near(function(&view, &cos, &sin)?, plain)?;
    }
    // Other positions in each row of the batch.
    let other_cos = numbers((t, w), 2)?;
    let other_sin = numbers((t, w), 3)?;
    let (both_cos, both_sin) =
        (Tensor::stack(&[&cos, &other_cos], 0)?, Tensor::stack(&[&sin, &other_sin], 0)?);
    for (function, of) in [(rope as fn(&_, &_, &_) -> _, 1), (rope_i, 1), (rope_thd, 2)] {
        let x = if of == 2 { x.transpose(1, 2)?.contiguous()? } else { x.clone() };
        let rows = [
            function(&x.narrow(0, 0, 1)?, &cos, &sin)?,
            function(&x.narrow(0, 1, 1)?, &other_cos, &other_sin)?,
        ];
        near(function(&x, &both_cos, &both_sin)?, Tensor::cat(&rows, 0)?)?;
        let plain = function(&wide(&x)?, &wide(&both_cos)?, &wide(&both_sin)?)?;
        near(function(&x, &both_cos, &both_sin)?, plain)?;
    }
    Ok(())
}

/// The channels that do not turn, gradients, and each dtype: against plain operations in f64.
#[test]
fn values_and_gradients_are_those_of_f64() -> Result<()> {
    let (t, w, d) = (4, 3, 10);
    let (cos, sin) = angles(t, w)?;
    let by_head = (2, 3, t, d);
    let by_position = (2, t, 3, d);
    for (function, shape) in [(rope as Rotate, by_head), (rope_i, by_head), (rope_thd, by_position)] {
        for (dtype, rounding) in [(DType::F32, 1e-6), (DType::F16, 1. / 2048.), (DType::BF16, 1. / 256.)] {
            let run = |dtype| -> Result<[Tensor; 2]> {
                let of = |x: &Tensor| x.to_dtype(dtype);
                let x = Var::from_tensor(&of(&numbers(shape, 1)?.to_dtype(DType::BF16)?)?)?;
                let tables = [&cos, &sin].map(|table| table.to_dtype(DType::BF16)?.to_dtype(dtype));
                let [cos, sin] = tables;
                let y = function(&x, &cos?, &sin?)?;
                let gradients =
                    (&y * of(&numbers(shape, 2)?.to_dtype(DType::BF16)?)?)?.sum_all()?.backward()?;
                Ok([y.detach(), gradients.get(&x).expect("a gradient").clone()])
            };
            for (got, expected) in run(dtype)?.iter().zip(&run(DType::F64)?) {
                assert_eq!(got.dtype(), dtype);
                let off = error(got, expected)?;
                assert!(off <= 1.01 * rounding, "{dtype:?}, {shape:?}: {off:e}");
            }
        }
    }
    Ok(())
}

/// `ROPE_INIT_FUNCTIONS["llama3"]` and `["yarn"]` of transformers 5.23, every fourth of 32 frequencies: Llama 3.2 1B's and
/// Qwen 3's settings.
#[test]
fn frequencies_are_those_of_transformers() {
    let llama3 = RopeScaling::Llama3 { factor: 32., low: 1., high: 4., original: 8192 };
    let yarn = RopeScaling::Yarn {
        factor: 4.,
        fast: 32.,
        slow: 1.,
        original: 32768,
        truncate: true,
        attention_factor: None,
    };
    let of_llama = [
        1.0,
        0.193_922_758,
        0.037_606_030_7,
        0.007_292_665_08,
        0.000_429_556_705,
        8.570_255_89e-6,
        1.661_967_42e-6,
        3.222_932_89e-7,
    ];
    let of_yarn = [
        1.0,
        0.177_827_939,
        0.031_622_778_6,
        0.005_154_795_48,
        0.000_583_333_371,
        4.445_698_51e-5,
        7.905_693_56e-6,
        1.405_853_37e-6,
    ];
    for (scaling, theta, expected, factor) in
        [(llama3, 500_000., of_llama, 1.), (yarn, 1e6, of_yarn, 1.138_629_436_111_989)]
    {
        let (found, on_tables) = scaling.frequencies(32, theta);
        assert!((on_tables - factor).abs() < 1e-12);
        for (found, expected) in found.iter().step_by(4).zip(expected) {
            assert!((found - expected).abs() < 2e-6 * expected, "{scaling:?}: {found}, not {expected}");
        }
    }
    let deepseek = RopeScaling::Yarn {
        factor: 4.,
        fast: 32.,
        slow: 1.,
        original: 32768,
        truncate: true,
        attention_factor: Some(0.75),
    };
    assert_eq!(deepseek.frequencies(32, 1e6), (yarn.frequencies(32, 1e6).0, 0.75));
    let (halved, _) = RopeScaling::Linear(2.).frequencies(2, 100.);
    assert_eq!(halved, [0.5, 0.05]);
}

/// In a context that no pair turns through once, all but the first are divided; in one through which all turn more than once,
/// the share that is divided ends at the last of the channels, not of the pairs.
#[test]
fn yarn_stays_within_the_pairs() {
    let w = 4;
    let theta = 100f64;
    let factor = 4.;
    let check = |fast: f64, original: usize, share: fn(f64) -> f64| {
        let (found, _) =
            RopeScaling::Yarn { factor, fast, slow: 1., original, truncate: true, attention_factor: None }
                .frequencies(w, theta);
        for (i, found) in (0..4u8).map(f64::from).zip(found) {
            let expected = theta.powf(-i / 4.) * (share(i) / factor + 1. - share(i));
            assert!((found - expected).abs() < 1e-12, "pair {i} of {original}: {found}, not {expected}");
        }
    };
    check(32., 4, |i| if i > 0. { 1. } else { 0. });
    check(1e5, 1_000_000, |i| i / 7.); // by formula, the last would be pair 11
}

/// One position of several heads, and no channels that turn.
#[test]
fn the_smallest_shapes_are_those_of_f64() -> Result<()> {
    let (cos, sin) = angles(1, 4)?;
    for (function, shape) in [
        (rope as Rotate, (2, 3, 1, 8)),
        (rope_i, (2, 3, 1, 8)),
        (rope_thd, (2, 1, 3, 8)),
        (rope_thd, (2, 1, 1, 8)),
    ] {
        let x = numbers(shape, 1)?;
        let expected = function(&wide(&x)?, &wide(&cos)?, &wide(&sin)?)?;
        assert!(error(&function(&x, &cos, &sin)?, &expected)? < 1e-6, "{shape:?}");
        let none = cos.narrow(1, 0, 0)?;
        for width in [0, 1, 8] {
            let x = x.narrow(3, 0, width)?;
            let y = function(&x, &none, &none)?;
            assert_eq!(
                (y.dims(), y.flatten_all()?.to_vec1::<f32>()?),
                (x.dims(), x.flatten_all()?.to_vec1()?)
            );
        }
        for nothing in [x.narrow(1, 0, 0)?, x.narrow(2, 0, 0)?] {
            assert_eq!(function(&nothing, &cos, &sin)?.dims(), nothing.dims());
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let says = |result: Result<Tensor>, part: &str| {
        let message = result.expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
    };
    let (cos, sin) = angles(4, 4)?;
    let x = numbers((1, 2, 5, 8), 1)?;
    says(rope(&x, &cos, &sin), "[5 or more");
    says(rope(&x.narrow(2, 0, 4)?.narrow(3, 0, 6)?, &cos, &sin), "up to 3");
    says(rope(&x.narrow(2, 0, 4)?, &cos, &sin.narrow(1, 0, 3)?), "[4, 3]");
    says(rope(&x.narrow(2, 0, 4)?.to_dtype(DType::F16)?, &cos, &sin), "f16");
    says(
        rope(&x.narrow(2, 0, 4)?, &cos, &sin.to_dtype(DType::F16)?),
        "rope: x is f32, but cos and sin are f32 and f16",
    );
    says(rope(&x.narrow(2, 0, 4)?, &cos.flatten_all()?, &sin.flatten_all()?), "got [16]");
    let table = |shape: (usize, usize, usize)| numbers(shape, 2);
    for shape in [(2, 5, 4), (1, 4, 4), (1, 5, 5)] {
        says(rope(&x, &table(shape)?, &table(shape)?), "or [1, 5 or more, up to 4]");
    }
    assert!(rope(&x, &table((1, 5, 4))?, &table((1, 5, 4))?).is_ok());
    says(
        RotaryTables::new(7, 4, THETA, RopeScaling::None, DType::F32, &Device::Cpu).map(|t| t.cos),
        "7 channels",
    );
    for (dim, theta, scaling) in [
        (0, THETA, RopeScaling::None),
        (8, f64::NAN, RopeScaling::None),
        (8, -2., RopeScaling::None),
        (8, THETA, RopeScaling::Linear(0.)),
        (8, THETA, RopeScaling::Linear(-1.)),
        (8, THETA, RopeScaling::Linear(f64::INFINITY)),
    ] {
        let tables = RotaryTables::new(dim, 4, theta, scaling, DType::F32, &Device::Cpu);
        says(tables.map(|t| t.cos), "make no frequencies");
    }
    let tables = RotaryTables::new(8, 4, THETA, RopeScaling::None, DType::F32, &Device::Cpu)?;
    says(tables.at(usize::MAX, 2).map(|(cos, _)| cos), "2 positions from");
    says(tables.at(3, 2).map(|(cos, _)| cos), "2 positions from 3");
    Ok(())
}
