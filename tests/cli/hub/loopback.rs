//! Serves a folder as `openai-community/gpt2` on the loopback interface, to try things by hand:
//!
//! ```text
//! cargo run --release --example loopback_hub -- FOLDER
//! HF_ENDPOINT=http://127.0.0.1:PORT gpt2 download gpt2
//! ```

#[allow(dead_code)]
mod server;

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder to serve")?;
    let mut files = vec![];
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
        }
    }
    let server = server::Server::start(files);
    writeln!(std::io::stdout(), "HF_ENDPOINT={}", server.endpoint())?;
    loop {
        std::thread::park();
    }
}
