//! Times each kernel on its own, at GPT-2 small's sizes: `cargo bench --workspace --bench kernels`.

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::attention::{Chosen, Mask, Sdpa, Wanted};
use candle_fused::{
    Activation, Dispatch, Epilogue, Implementation, Weight, WeightLayout, layer_norm, linear,
    linear_transposed,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// GPT-2 small: embedding width, number of heads, width of a head, vocabulary size.
const C: usize = 768;
const H: usize = 12;
const D: usize = C / H;
const V: usize = 50257;

/// Numbers between -1 and 1.
fn numbers(shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Panics on an error, so that a failure is never timed as a result.
fn done(result: Result<Tensor>) -> Tensor {
    result.expect("the shapes of this file fit each other")
}

/// q (B, H, T, D), k and v (B, H, S, D) as views of a packed projection (B, S, 3, H, D), q cut to the last T.
fn packed_views(packed: &Tensor, t: usize) -> [Tensor; 3] {
    let part = |i| done(packed.narrow(2, i, 1).and_then(|x| x.squeeze(2)?.transpose(1, 2)));
    [done(part(0).narrow(2, packed.dims()[1] - t, t)), part(1), part(2)]
}

fn attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    for (b, t, s) in [(1, 128, 128), (8, 128, 128), (1, 1024, 1024), (1, 1, 1024)] {
        // 4·D multiply-adds for each query and each key that it sees.
        let pairs = b * H * (0..t).map(|i| s - t + i + 1).sum::<usize>();
        group.throughput(Throughput::Elements((4 * D * pairs) as u64));
        for (name, dtype, implementation) in [
            ("fused f32", DType::F32, Implementation::Fused),
            ("fused f16", DType::F16, Implementation::Fused),
            ("eager f32", DType::F32, Implementation::Eager),
        ] {
            let packed = done(numbers(&[b, s, 3, H, D]).and_then(|x| x.to_dtype(dtype)));
            let [q, k, v] = packed_views(&packed, t);
            let attention = Sdpa { implementation, ..Sdpa::default() };
            group.bench_function(BenchmarkId::new(name, format!("B{b} T{t} S{s}")), |bench| {
                bench.iter(|| done(attention.forward(&q, &k, &v, Mask::default())));
            });
        }
    }
    group.finish();
}

/// The cost of asking for weights or a summary; compare with `fused f32` above, which computes the context alone.
fn asking(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention, asked");
    let t = 1024;
    let packed = done(numbers(&[1, t, 3, H, D]));
    let [q, k, v] = packed_views(&packed, t);
    let one_head = [Chosen { heads: Some(vec![0]), queries: None }];
    let one_query = [Chosen { heads: None, queries: Some(vec![t - 1]) }];
    for (name, weights, summary) in [
        ("summary", &[][..], true),
        ("weights of a head", &one_head, false),
        ("weights of a query", &one_query, false),
        ("all weights", &[Chosen::default()], false),
    ] {
        let attention = Sdpa::default();
        let mask = Mask::default();
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let attended =
                    attention.attend(&q, &k, &v, mask, Wanted { weights, summary, ..Wanted::default() });
                attended.expect("the shapes of this file fit each other")
            });
        });
    }
    group.finish();
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("linear");
    for (rows, k, n) in [(1, C, 3 * C), (1, C, 4 * C), (1, 4 * C, C), (128, C, 3 * C), (1024, C, 3 * C)] {
        let x = done(numbers(&[rows, k]));
        let w = done(numbers(&[k, n]));
        let b = done(numbers(&[n]));
        group.throughput(Throughput::Elements((2 * rows * k * n) as u64));
        group.bench_function(format!("{rows} x {k} x {n}"), |bench| {
            bench.iter(|| {
                done(linear(&x, &w, Some(&b), Epilogue::None, Dispatch::of(Implementation::Auto, &x)))
            });
        });
        let residual = done(numbers(&[rows, n]));
        group.bench_function(format!("{rows} x {k} x {n} onto a residual"), |bench| {
            bench.iter(|| {
                done(linear(
                    &x,
                    &w,
                    Some(&b),
                    Epilogue::Residual(&residual),
                    Dispatch::of(Implementation::Auto, &x),
                ))
            });
        });
    }
    let x = done(numbers(&[1, C]));
    let table = done(numbers(&[V, C]));
    group.throughput(Throughput::Bytes((4 * V * C) as u64));
    group.bench_function("1 row onto the vocabulary", |bench| {
        bench.iter(|| done(linear_transposed(&x, &table)));
    });
    group.finish();
}

/// GPT-2's products with packed weights, in each dtype.
fn packed_products(c: &mut Criterion) {
    let mut group = c.benchmark_group("packed");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (k, n) in [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C), (C, V)] {
            let of_dtype = |shape: &[usize]| done(numbers(shape).and_then(|x| x.to_dtype(dtype)));
            let packed = Weight::pack(&of_dtype(&[k, n]), WeightLayout::InOut).expect("a weight on the CPU");
            let bias = of_dtype(&[n]);
            for rows in [1, 8, 128, 1024] {
                if n == V && rows == 1024 {
                    continue; // 206 MB of logits
                }
                let x = of_dtype(&[rows, k]);
                group.throughput(Throughput::Elements((2 * rows * k * n) as u64));
                let name = format!("{rows} x {k} x {n}");
                group.bench_function(BenchmarkId::new(dtype.as_str(), name), |bench| {
                    bench.iter(|| done(packed.forward(&x, Some(&bias), Epilogue::None)));
                });
            }
        }
    }
    group.finish();
}

fn elementwise(c: &mut Criterion) {
    let mut group = c.benchmark_group("elementwise");
    for rows in [1, 128, 1024] {
        let x = done(numbers(&[rows, C]));
        let weight = done(numbers(&[C]));
        group.throughput(Throughput::Bytes((2 * 4 * rows * C) as u64));
        group.bench_function(BenchmarkId::new("layer_norm", rows), |bench| {
            bench.iter(|| {
                done(layer_norm(&x, &weight, Some(&weight), 1e-5, Dispatch::of(Implementation::Auto, &x)))
            });
        });
        let x = done(numbers(&[rows, 4 * C]));
        group.throughput(Throughput::Bytes((2 * 4 * rows * 4 * C) as u64));
        group.bench_function(BenchmarkId::new("gelu", rows), |bench| {
            bench.iter(|| done(Activation::GeluTanh.forward(&x)));
        });
    }
    group.finish();
}

criterion_group!(benches, attention, asking, products, packed_products, elementwise);
criterion_main!(benches);
