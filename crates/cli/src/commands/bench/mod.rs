//! `gpt2 bench`: times random weights of GPT-2 small's shape, or `--model`.

mod args;
mod report;
mod setup;
mod targets;
mod timing;
mod work;

pub(super) use args::BenchArgs;

use crate::output;
use crate::output::terminal::TERMINAL;
use anyhow::bail;
use args::BenchTarget;
use candle_core::DType;
use candle_fused::Isa;
use candle_fused::measure::{self, Stopwatch};
use gpt2_engine::open::device_name;
use gpt2_engine::open::rounds_to_tf32;
use gpt2_train::TrainDType;
use report::{Report, print};
use serde::Serialize;
use setup::Bench;
use std::io::Write;

#[derive(Serialize)]
struct MachineLimits {
    threads: usize,
    isa: &'static str,
    fma_gflops: f64,
    /// Of products of bf16, where the processor has instructions for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    bf16_gflops: Option<f64>,
    read_gb_s: f64,
}

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(isa) = args.isa {
        isa.hold()?;
    }
    args.model.refuse_processed("bench")?;
    if args.what == BenchTarget::Machine {
        return machine(args);
    }
    let asking = args.summaries || args.hooks || args.weights_heads.is_some();
    if asking && args.what != BenchTarget::Forward {
        bail!("--summaries, --hooks and --weights-heads are only for bench forward");
    }
    if args.lora.is_some() && args.what != BenchTarget::Train {
        bail!("--lora is only for bench train; to time a model with an adapter, give --adapter");
    }
    if args.lora.is_some() && args.model.dtype != DType::F32 {
        bail!("--lora: an adapter is trained in f32; leave --dtype out");
    }
    if args.train_dtype != TrainDType::F32 && (args.what != BenchTarget::Train || args.lora.is_some()) {
        bail!("--train-dtype is only for bench train, and without --lora");
    }
    let whole = matches!(
        args.what,
        BenchTarget::Forward | BenchTarget::Decode | BenchTarget::Generate | BenchTarget::Attribution
    );
    if !args.model.adapters.list.is_empty() && !whole {
        bail!("--adapter is only for bench forward, decode, generate and attribution");
    }
    let bench = Bench::new(args)?;
    let mut plain = vec![];
    let mut times = match args.what {
        BenchTarget::Core => bench.core()?,
        BenchTarget::Block => bench.block()?,
        BenchTarget::Forward if asking => bench.asking(&mut plain)?,
        BenchTarget::Forward => bench.forward()?,
        BenchTarget::Decode => bench.decode()?,
        BenchTarget::Generate => bench.generate()?,
        BenchTarget::Train => bench.train()?,
        BenchTarget::Attribution => bench.attribution()?,
        BenchTarget::Features => bench.features()?,
        BenchTarget::Machine => return machine(args),
    };
    let mut ratios: Vec<f64> = times.iter().zip(&plain).map(|(asked, plain)| asked / plain).collect();
    let median_ms = median(&mut times);
    let ms_per_token = args.what.makes_tokens().then(|| median_ms / f64::from(args.new_tokens));
    let on_cpu = bench.device.is_cpu();
    let seconds = ms_per_token.unwrap_or(median_ms) / 1e3;
    let report = Report {
        what: format!("{:?}", args.what).to_lowercase(),
        model: bench.name(),
        shape: (&bench.config).into(),
        implementation: bench.implementation()?.as_str(),
        batch: bench.batch,
        tokens: bench.tokens,
        dtype: bench.dtype.as_str(),
        quantized: bench.quantized(),
        kv: args.kv.map(|_| bench.kv().as_str()),
        device: device_name(&bench.device),
        threads: rayon::current_num_threads(),
        isa: on_cpu.then(|| Isa::current().as_str()),
        timer: Stopwatch::kind(&bench.device),
        runs: args.runs,
        groups: (!on_cpu).then_some(times.len()),
        tf32: rounds_to_tf32(&bench.device),
        median_ms,
        min_ms: times[0],
        plain_median_ms: asking.then(|| median(&mut plain)),
        ratio_to_plain: asking.then(|| median(&mut ratios)),
        ms_per_token,
        tokens_per_s: ms_per_token.map(|ms| 1e3 * bench.batch as f64 / ms),
        work: if on_cpu && args.what != BenchTarget::Attribution { bench.work(seconds) } else { None },
    };
    output::report(args.json, &report, print)
}

/// The median of one or more numbers. Sorts them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    f64::midpoint(numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2])
}

/// The machine's limits, to compare with the other targets' times.
fn machine(args: &BenchArgs) -> anyhow::Result<()> {
    if args.model.model.is_some() {
        bail!("bench machine needs no model: leave --model out");
    }
    if !args.model.run.open()?.is_cpu() {
        bail!("bench machine measures the CPU and its memory: give --device cpu");
    }
    TERMINAL.works();
    let threads = rayon::current_num_threads();
    let isa = Isa::current().as_str();
    let fma_gflops = measure::fma_gflops();
    let read_gb_s = measure::read_gb_s();
    let bf16_gflops = measure::bf16_gflops();
    if args.json {
        output::json(&MachineLimits { threads, isa, fma_gflops, bf16_gflops, read_gb_s })?;
    } else {
        let mut out = output::stdout();
        writeln!(out, "{threads} threads, {isa}")?;
        writeln!(out, "f32 multiply-adds in registers: {fma_gflops:.0} GFLOP/s")?;
        if let Some(bf16_gflops) = bf16_gflops {
            writeln!(out, "bf16 products in registers: {bf16_gflops:.0} GFLOP/s")?;
        }
        writeln!(out, "reading from memory: {read_gb_s:.1} GB/s")?;
    }
    Ok(())
}
