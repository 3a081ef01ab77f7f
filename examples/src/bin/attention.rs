//! One attention in random numbers, by candle-fused, by `candle_nn::attention` and in plain operations, as JSON: times in
//! turn, and how far the process's memory grew. `scripts/bench_attention.py` runs it beside PyTorch.
//!
//! ```text
//! cargo run --release --bin attention -- --heads 32 --key-heads 8 --keys 1024 --queries 1024
//! ```

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_fused::Isa;
use candle_fused::attention::{Mask, Sdpa, Window};
use candle_nn::attention::{AttnMask, flash_attn, flash_attn_varlen_cpu};
use clap::{Parser, ValueEnum};
use models_on_candle_fused::{random, relative_difference};
use std::time::Instant;

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 1)]
    batch: usize,
    #[arg(long, default_value_t = 12)]
    heads: usize,
    #[arg(long, default_value_t = 12)]
    key_heads: usize,
    #[arg(long, default_value_t = 1024)]
    queries: usize,
    #[arg(long, default_value_t = 1024)]
    keys: usize,
    /// D
    #[arg(long, default_value_t = 64)]
    dim: usize,
    /// causal, full, or how many keys a query sees: itself and those before it
    #[arg(long, default_value = "causal")]
    window: String,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Code::Ours, Code::CandleNn, Code::Plain])]
    by: Vec<Code>,
    /// f32, f16 or bf16, for ours alone
    #[arg(long, default_value = "f32")]
    dtype: String,
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Keys and values lie head by head, as in a cache, instead of position by position
    #[arg(long)]
    cached: bool,
    /// Also time ours with its backward pass
    #[arg(long)]
    backward: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Code {
    Ours,
    CandleNn,
    Plain,
}

/// Queries (B, T, H, D), keys and values (B, S, key heads, D).
struct Inputs {
    q: Var,
    k: Tensor,
    v: Tensor,
    window: Window,
    scale: f64,
}

impl Inputs {
    fn new(args: &Args) -> Result<Self> {
        let dtype: DType = args.dtype.parse()?;
        let random_heads = |n: usize, heads: usize, seed: u64| -> Result<Var> {
            let x = random((args.batch, n, heads, args.dim), seed, &Device::Cpu)?;
            Ok(Var::from_tensor(&x.to_dtype(dtype)?)?)
        };
        let of_keys = |seed: u64| -> Result<Tensor> {
            let x = random_heads(args.keys, args.key_heads, seed)?.as_detached_tensor();
            if args.cached { Ok(x.transpose(1, 2)?.contiguous()?.transpose(1, 2)?) } else { Ok(x) }
        };
        let window = match args.window.as_str() {
            "causal" => Window::CAUSAL,
            "full" => Window::ALL,
            number => Window::sliding(number.parse().context("--window: causal, full or a number")?),
        };
        Ok(Self {
            q: random_heads(args.queries, args.heads, 0)?,
            k: of_keys(1)?,
            v: of_keys(2)?,
            window,
            scale: (args.dim as f64).powf(-0.5),
        })
    }

    /// By `code`, without gradients: (B, T, H, D)
    fn forward(&self, code: Code) -> Result<Tensor> {
        let q = &self.q.as_detached_tensor();
        let k = &self.k;
        let v = &self.v;
        match code {
            Code::Ours => self.ours(q, k, v),
            Code::CandleNn => self.candle_nn(q, k, v),
            Code::Plain => self.plain(q, k, v),
        }
    }

    fn ours(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let attention = Sdpa { scale: Some(self.scale), window: self.window, ..Sdpa::default() };
        let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2)); // views (B, heads, T or S, D)
        Ok(attention.forward(&q?, &k?, &v?, Mask::default())?)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn candle_nn(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let ((b, t, h, d), (_, s, kh, _), scale) = (q.dims4()?, k.dims4()?, self.scale as f32);
        let mask = match self.window {
            Window::CAUSAL => AttnMask::causal_with_offset(s - t),
            Window::ALL => AttnMask::None,
            Window { left, right } => {
                // Only its function of packed sequences has windows.
                let flat = |x: &Tensor, n: usize, heads: usize| x.reshape((b * n, heads, d));
                let lengths = |n: usize| Tensor::from_vec(vec![n as u32; b], b, &Device::Cpu);
                let q = flat(q, t, h)?;
                let k = flat(k, s, kh)?;
                let v = flat(v, s, kh)?;
                let queries = lengths(t)?;
                let keys = lengths(s)?;
                let context =
                    flash_attn_varlen_cpu(&q, &k, &v, None, &queries, &keys, t, s, scale, true, left, right)?;
                return Ok(context.reshape((b, t, h, d))?);
            }
        };
        Ok(flash_attn::<f32>(q, k, v, scale, mask, None, None)?.transpose(1, 2)?)
    }

    fn plain(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let ((b, t, h, _), (_, s, kh, d)) = (q.dims4()?, k.dims4()?);
        let of_each_head = |x: &Tensor| -> candle_core::Result<Tensor> {
            let x = x.transpose(1, 2)?.contiguous()?;
            if kh == h { Ok(x) } else { x.unsqueeze(2)?.expand((b, kh, h / kh, s, d))?.reshape((b, h, s, d)) }
        };
        let k = of_each_head(k)?;
        let v = of_each_head(v)?;
        let scores = (q.transpose(1, 2)?.contiguous()?.matmul(&k.t()?)? * self.scale)?; // (B, H, T, S)
        let scores = if self.window == Window::ALL {
            scores
        } else {
            let row = |i: usize| {
                let seen = self.window.keys(i, t, s);
                (0..s).map(move |j| if seen.contains(&j) { 0f32 } else { f32::NEG_INFINITY })
            };
            let hidden: Vec<f32> = (0..t).flat_map(row).collect();
            scores.broadcast_add(&Tensor::from_vec(hidden, (1, 1, t, s), &Device::Cpu)?)?
        };
        Ok(candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v)?.transpose(1, 2)?)
    }

    fn backward(&self) -> Result<Tensor> {
        let context = self.ours(&self.q, &self.k, &self.v)?;
        let gradients = context.sqr()?.sum_all()?.backward()?;
        gradients.get(&self.q).cloned().context("no gradient")
    }
}

/// The median of `runs` times in milliseconds, each of enough passes to take 30 ms, after one untimed.
fn time(runs: usize, mut pass: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut passes = 1;
    let mut times = vec![];
    while times.len() <= runs {
        let start = Instant::now();
        for _ in 0..passes {
            pass()?;
        }
        let took = 1e3 * start.elapsed().as_secs_f64();
        if took < 30. {
            passes *= 2;
            continue;
        }
        times.push(took / f64::from(passes));
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().context("--runs must be at least 1")
}

/// The most memory that the process has held, in MB; Linux alone says.
fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let inputs = Inputs::new(&args)?;
    if args.dtype != "f32" && args.by.iter().any(|code| *code != Code::Ours) {
        bail!("--dtype: candle_nn and plain operations are timed in f32 alone; add --by ours")
    }
    // Forgets the peak of making the inputs.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = peak_mb();
    let mut expected: Option<Tensor> = None;
    let mut fields = vec![format!("\"isa\": \"{}\"", Isa::current().as_str())];
    for code in &args.by {
        let name =
            code.to_possible_value().map_or_else(String::new, |value| value.get_name().replace('-', "_"));
        let context = inputs.forward(*code)?.contiguous()?;
        match &expected {
            None => expected = Some(context),
            Some(expected) => {
                let difference = relative_difference(&context, expected)?;
                ensure!(difference < 1e-4, "{name} differs by {difference:e}");
            }
        }
        fields.push(format!("\"{name}_ms\": {:.4}", time(args.runs, || inputs.forward(*code))?));
    }
    if args.backward {
        fields.push(format!("\"backward_ms\": {:.4}", time(args.runs, || inputs.backward())?));
    }
    if let (Some(before), Some(after)) = (before, peak_mb()) {
        fields.push(format!("\"grew_mb\": {:.1}", after - before));
    }
    println!("{{{}}}", fields.join(", "));
    Ok(())
}
