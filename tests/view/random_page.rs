//! Writes a page of GPT-2 small's shape with random weights, and says how long it took:
//!
//! ```text
//! cargo run --release --example random_page -- 1024 page.html [noise]
//! ```

mod pages;

use pages::Kind;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [t, path, noise @ ..] = &args[..] else { return Err("give T, FILE and perhaps noise".into()) };
    let t: usize = t.parse()?;
    let kind = if noise.is_empty() { Kind::mixed } else { |_, _| Kind::NOISE };
    let layers = (0..12).map(|layer| pages::layer(layer, t, kind)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    pages::write(BufWriter::new(File::create(path)?), t, &layers)?;
    let (bytes, seconds) = (std::fs::metadata(path)?.len(), start.elapsed().as_secs_f64());
    writeln!(std::io::stdout(), "{bytes} bytes in {seconds:.2} s")?;
    Ok(())
}
