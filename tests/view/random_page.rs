//! Writes a page of GPT-2 small's shape with random weights, or with `one` or `two` a small one of one or two runs with all kinds of data, and says how long it took:
//!
//! ```text
//! cargo run --release --example random_page -- 1024 page.html [noise | one | two]
//! ```

mod pages;

use pages::Kind;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [t, path, more @ ..] = &args[..] else {
        return Err("give T, FILE and perhaps noise, one or two".into());
    };
    let t: usize = t.parse()?;
    if let Some(runs @ ("one" | "two")) = more.first().map(String::as_str) {
        let runs: &[&str] = if runs == "two" { &["clean", "ablate 1.3"] } else { &[] };
        pages::Everything::new(t)?.write(BufWriter::new(File::create(path)?), runs)?;
        return Ok(());
    }
    let kind = if more.is_empty() { Kind::mixed } else { |_, _| Kind::NOISE };
    let layers = (0..12).map(|layer| pages::layer(layer, t, kind)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    pages::write(BufWriter::new(File::create(path)?), t, &layers)?;
    let bytes = std::fs::metadata(path)?.len();
    let seconds = start.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "{bytes} bytes in {seconds:.2} s")?;
    Ok(())
}
