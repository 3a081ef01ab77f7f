use super::{CausalBias, Chosen, HeadLayout, Mask, Sdpa};
use crate::test_numbers::numbers;
use crate::{Dispatch, Dropout, Implementation};
use candle_core::{Device, Result, Tensor};

/// Queries, keys or values: (2, heads, 9, 8).
fn heads_of(heads: usize, salt: u32) -> Result<Tensor> {
    numbers((2, heads, 9, 8), salt)
}

/// Four heads split over two machines, two on each.
#[test]
fn heads_that_are_computed_apart_drop_what_they_drop_together() -> Result<()> {
    let (q, k, v) = (heads_of(4, 1)?, heads_of(4, 1000)?, heads_of(4, 2000)?);
    for implementation in [Implementation::Fused, Implementation::Eager] {
        let run = |first: usize, heads: usize| {
            let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(1, first, heads));
            let (q, k, v, mask) = (q?, k?, v?, Mask::default());
            let attention = Sdpa::causal(0.4, Dispatch::of(implementation, &q))
                .with_heads(HeadLayout::all(4, 8).part(first, heads)?)
                .with_dropout(Some(Dropout::new(0.5, 7, 3)?));
            let context = attention.forward(&q, &k, &v, mask)?; // (B, T, heads, D)
            let weights = attention.weights(&q, &k, mask, &Chosen::default())?; // (B, heads, T, S)
            Result::Ok((context.transpose(1, 2)?, weights))
        };
        let (context, weights) = run(0, 4)?;
        for first in [0, 2] {
            let (part, part_weights) = run(first, 2)?;
            for (part, whole) in [(part, &context), (part_weights, &weights)] {
                let whole = whole.narrow(1, first, 2)?;
                let difference = (part - whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 1e-6, "{implementation:?}, heads from {first} on: {difference}");
            }
        }
    }
    Ok(())
}

#[test]
fn heads_of_another_layout_are_refused() -> Result<()> {
    let q = heads_of(4, 1)?;
    let attention = Sdpa::causal(0.4, Dispatch::of(Implementation::Auto, &q));
    let attention = attention.with_heads(HeadLayout::all(3, 8));
    let message = attention.forward(&q, &q, &q, Mask::default()).expect_err("4 are not 3").to_string();
    assert!(message.contains("3 and 3 heads of width 8") && message.contains("[2, 4, 9, 8]"), "{message}");
    Ok(())
}

#[test]
fn heads_that_a_layer_does_not_have_are_refused() {
    let layer = HeadLayout::all(4, 8);
    assert!(layer.part(2, 2).is_ok());
    for (first, heads) in [(3, 2), (5, 0), (usize::MAX, 1)] {
        assert!(layer.part(first, heads).is_err(), "{first}, {heads}");
    }
}

#[test]
fn heads_that_share_keys_stay_together() -> Result<()> {
    let (grouped, single) = (HeadLayout::grouped(12, 4, 8), HeadLayout::grouped(12, 1, 8));
    assert_eq!((grouped.query_width(), grouped.packed_width()), (96, 160));
    assert_eq!(grouped.part(3, 6)?.key_heads, 2);
    assert!(grouped.part(2, 6).is_err() && grouped.part(3, 4).is_err());
    assert_eq!(single.part(5, 2)?.key_heads, 1);
    let one_group = grouped.part(3, 3)?;
    assert_eq!((one_group.key_heads, one_group.part(0, 6)?.key_heads), (1, 2));
    assert!(one_group.part(4, 2).is_err());
    assert!(HeadLayout::all(0, 8).part(0, 0).is_ok());
    Ok(())
}

/// Of a long triangle the eager path makes the rows that it reads.
#[test]
fn a_long_triangle_gives_what_a_short_one_gives_and_is_never_made() -> Result<()> {
    let (q, k) = (heads_of(2, 1)?.narrow(2, 6, 3)?, heads_of(2, 50)?);
    let run = |n: usize| {
        let bias = CausalBias::new(n, &Device::Cpu);
        let attention = Sdpa::causal(0.4, Dispatch::of(Implementation::Eager, &q)).with_bias(&bias);
        attention.forward(&q, &k, &k, Mask::default())?.flatten_all()?.to_vec1::<f32>()
    };
    assert_eq!(run(9)?, run(1 << 24)?);
    let message = run(8).expect_err("9 keys").to_string();
    assert!(message.contains("9 keys") && message.contains("at least 9"), "{message}");
    let message = CausalBias::new(1 << 24, &Device::Cpu).tensor().expect_err("2^48 bytes").to_string();
    assert!(message.contains("16777216"), "{message}");
    Ok(())
}
