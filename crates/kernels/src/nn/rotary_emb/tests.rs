use super::{RopeScaling, RotaryTables, rope, rope_i, rope_thd};
use crate::test_numbers::{error, numbers, wide};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::rotary_emb::{rope_i_slow, rope_slow};

type Function = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

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
    let (wide_cos, wide_sin) = (wide(&cos)?, wide(&sin)?);
    for function in [rope as Function, rope_i] {
        let plain = function(&wide(&view.transpose(1, 2)?)?.transpose(1, 2)?, &wide_cos, &wide_sin)?;
        assert!(plain.is_contiguous());
        near(function(&view, &cos, &sin)?, plain)?;
    }
    // Other positions in each row of the batch.
    let (other_cos, other_sin) = (numbers((t, w), 2)?, numbers((t, w), 3)?);
    let (both_cos, both_sin) =
        (Tensor::stack(&[&cos, &other_cos], 0)?, Tensor::stack(&[&sin, &other_sin], 0)?);
    for (function, of) in [(rope as fn(&_, &_, &_) -> _, 1), (rope_i, 1), (rope_thd, 2)] {
        let x = if of == 2 { x.transpose(1, 2)?.contiguous()? } else { x.clone() };
        let rows = [
            function(&x.narrow(0, 0, 1)?, &cos, &sin)?,
            function(&x.narrow(0, 1, 1)?, &other_cos, &other_sin)?,
        ];
        near(function(&x, &both_cos, &both_sin)?, Tensor::cat(&rows, 0)?)?;
    }
    Ok(())
}

/// The channels that do not turn, gradients, and each dtype: against plain operations in f64.
#[test]
fn values_and_gradients_are_those_of_f64() -> Result<()> {
    let (t, w, d) = (4, 3, 10);
    let (cos, sin) = angles(t, w)?;
    let (by_head, by_position) = ((2, 3, t, d), (2, t, 3, d));
    for (function, shape) in [(rope as Function, by_head), (rope_i, by_head), (rope_thd, by_position)] {
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
    let yarn = RopeScaling::Yarn { factor: 4., fast: 32., slow: 1., original: 32768 };
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
    let (halved, _) = RopeScaling::Linear(2.).frequencies(2, 100.);
    assert_eq!(halved, [0.5, 0.05]);
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
        RotaryTables::new(7, 4, THETA, RopeScaling::None, DType::F32, &Device::Cpu).map(|t| t.cos),
        "7 channels",
    );
    let tables = RotaryTables::new(8, 4, THETA, RopeScaling::None, DType::F32, &Device::Cpu)?;
    says(tables.at(3, 2).map(|(cos, _)| cos), "2 positions from 3");
    Ok(())
}
