//! Heads that share keys get the bits that each gets alone, for a few queries, which the CPU takes row by row.

use crate::common::Result;
use crate::random;
use candle_core::{DType, Tensor};
use candle_fused::attention::{Hidden, Mask, Sdpa, Window, quantize_rows};

/// The form of keys and values beside queries of a dtype.
#[derive(Clone, Copy, Debug)]
enum Stored {
    As(DType),
    Codes,
}

impl Stored {
    fn of(self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::As(dtype) => x.to_dtype(dtype)?,
            Self::Codes => quantize_rows(x)?,
        })
    }
}

/// The heads whose bits differ from those that they have without the others.
fn heads_that_differ(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    window: Window,
    hidden: &[Hidden],
) -> Result<Vec<usize>> {
    let attention = Sdpa { window, ..Sdpa::default() };
    let together = attention.forward(q, k, v, Mask { hidden, ..Mask::default() })?; // (1, T, H, Dv)
    let mut differ = vec![];
    for head in 0..q.dim(1)? {
        let own = hidden.iter().filter(|hidden| hidden.head == Some(head));
        let own: Vec<Hidden> = own.map(|hidden| Hidden { head: Some(0), ..*hidden }).collect();
        let mask = Mask { hidden: &own, ..Mask::default() };
        let alone = attention.forward(&q.narrow(1, head, 1)?, k, v, mask)?;
        if bits(&together.narrow(2, head, 1)?)? != bits(&alone)? {
            differ.push(head);
        }
    }
    Ok(differ)
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let numbers: Vec<f32> = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(numbers.into_iter().map(f32::to_bits).collect())
}

#[test]
fn heads_that_share_keys_have_the_bits_of_each_alone() -> Result {
    let dtypes = [
        (DType::F32, Stored::As(DType::F32)),
        (DType::F16, Stored::As(DType::F16)),
        (DType::BF16, Stored::As(DType::BF16)),
        (DType::F32, Stored::As(DType::F16)),
        (DType::F32, Stored::As(DType::BF16)),
        (DType::F32, Stored::Codes),
    ];
    // Widths that fill no vector, one, and several, and more than fit a first-level cache; numbers of keys around a chunk's.
    let widths = [(1, 7), (7, 1), (16, 33), (33, 16), (64, 64), (100, 140), (600, 600)];
    for (dtype, stored) in dtypes {
        for (n, (d, dv)) in widths.into_iter().enumerate() {
            for (m, s) in [1, 31, 33, 257, 600].into_iter().enumerate() {
                let group = 2 + (n + m) % 5;
                let t = (1 + (n + 3 * m) % 4).min(s);
                let part = |name: &str, h: usize, s: usize, d: usize| random(7, name, 1.0, (1, h, s, d));
                let q = part("q", group, t, d)?.to_dtype(dtype)?;
                let k = stored.of(&part("k", 1, s, d)?)?;
                let v = stored.of(&part("v", 1, s, dv)?)?;
                let hidden = [Hidden { head: Some(0), query: t - 1, key: s / 2 }];
                for (window, hidden) in
                    [(Window::CAUSAL, &[][..]), (Window::sliding(20), &[]), (Window::CAUSAL, &hidden)]
                {
                    let differs = heads_that_differ(&q, &k, &v, window, hidden)?;
                    assert!(
                        differs.is_empty(),
                        "{dtype:?}, {stored:?}, D {d}, Dv {dv}, T {t}, S {s}, {window:?}: heads {differs:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Numbers of a row that lie apart are gathered, and change no bit.
#[test]
fn keys_whose_numbers_lie_apart_have_the_same_bits() -> Result {
    let attention = Sdpa { window: Window::ALL, ..Sdpa::default() };
    for dtype in [DType::F32, DType::F16] {
        let q = random(3, "q", 1.0, (1, 3, 1, 40))?.to_dtype(dtype)?;
        let apart = |name| random(3, name, 1.0, (1, 1, 40, 70))?.to_dtype(dtype)?.transpose(2, 3);
        let k = apart("k")?;
        let v = apart("v")?;
        let got = attention.forward(&q, &k, &v, Mask::default())?;
        let expected = attention.forward(&q, &k.contiguous()?, &v.contiguous()?, Mask::default())?;
        assert_eq!(bits(&got)?, bits(&expected)?, "{dtype:?}");
    }
    Ok(())
}
