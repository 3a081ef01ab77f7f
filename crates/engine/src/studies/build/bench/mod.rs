//! Times of parts of the work, on a model or on random weights of GPT-2 small's shape. It loads weights as each target needs them, so it
//! is a function of its own instead of a [`Study`](crate::studies::Study).

mod options;
mod report;
mod setup;
mod targets;
mod timing;
mod work;

pub use options::{Options, TARGETS, Target};
pub use report::{MachineLimits, ModelSize, Report};
pub use work::Work;

use crate::observer::Observer;
use crate::open::{DeviceChoice, ModelOptions, device_name, rounds_to_tf32};
use crate::words::name_of;
use candle_fused::Isa;
use candle_fused::measure::Stopwatch;
use setup::Bench;

/// Times a target. Without a name in `model`, the weights are random.
///
/// # Errors
/// When an option does not fit the target, the model or the device, or the observer ends it.
pub fn bench(
    options: &Options,
    model: &ModelOptions,
    device: DeviceChoice,
    tf32: bool,
    observer: &dyn Observer,
) -> anyhow::Result<Report> {
    options.check(model)?;
    let bench = Bench::new(options, model, device, tf32, observer)?;
    let mut plain = vec![];
    let mut times = match options.what {
        Target::Core => bench.core()?,
        Target::Block => bench.block()?,
        Target::Forward if options.asks() => bench.asking(&mut plain)?,
        Target::Forward => bench.forward()?,
        Target::Decode => bench.decode()?,
        Target::Generate => bench.generate()?,
        Target::Train => bench.train()?,
        Target::Attribution => bench.attribution()?,
        Target::Features => bench.features()?,
    };
    let mut ratios: Vec<f64> = times.iter().zip(&plain).map(|(asked, plain)| asked / plain).collect();
    let median_ms = median(&mut times);
    let ms_per_token = options.what.makes_tokens().then(|| median_ms / options.steps() as f64);
    let on_cpu = bench.device.is_cpu();
    let seconds = ms_per_token.unwrap_or(median_ms) / 1e3;
    Ok(Report {
        what: name_of(TARGETS, &options.what),
        model: bench.name(),
        shape: (&bench.config).into(),
        implementation: bench.implementation()?.as_str(),
        batch: options.batch,
        tokens: options.tokens,
        dtype: model.dtype.as_str(),
        quantized: bench.quantized(),
        kv: options.kv.map(|_| bench.kv().as_str()),
        cuda_graph: options.cuda_graph,
        device: device_name(&bench.device),
        threads: rayon::current_num_threads(),
        isa: on_cpu.then(|| Isa::current().as_str()),
        timer: Stopwatch::kind(&bench.device),
        runs: options.runs,
        groups: (!on_cpu).then_some(times.len()),
        tf32: rounds_to_tf32(&bench.device),
        median_ms,
        min_ms: times[0],
        plain_median_ms: options.asks().then(|| median(&mut plain)),
        ratio_to_plain: options.asks().then(|| median(&mut ratios)),
        ms_per_token,
        tokens_per_s: ms_per_token.map(|ms| 1e3 * options.batch as f64 / ms),
        work: bench.work(seconds),
    })
}

/// The median of one or more numbers. Sorts them.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    f64::midpoint(numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2])
}
