//! Runs the kernels' own source on the CPU, thread by thread (`cuda/emulate.cpp`), to test them without a GPU.

use super::launch::Launch;
use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The emulator program with all kernels, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let files = std::fs::read_dir(&folder).expect("the kernels").map(|file| file.expect("a file").path());
        let sources = files.filter(|file| file.extension().is_some_and(|extension| extension == "cu"));
        let program = Path::new(env!("OUT_DIR")).join("emulate-cuda");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let done = Command::new(&compiler)
            .current_dir(folder)
            .args("-std=c++17 -O1 -rdynamic -Wall -Wno-unknown-pragmas -x c++".split(' '))
            .args(sources)
            .args(["emulate.cpp", "-ldl", "-o"])
            .arg(&program)
            .status();
        let remedy = "install a C++ compiler (apt-get install g++) or name one in CXX";
        assert!(
            done.is_ok_and(|status| status.success()),
            "`{compiler}` could not compile the kernels: {remedy}"
        );
        program
    })
}

/// The commands for an emulated GPU, in order.
#[derive(Default)]
pub(crate) struct Emulator {
    commands: Vec<String>,
    input: Vec<u8>,
}

impl Emulator {
    /// Allocates device memory that holds these bytes, named after the kernels' parameter.
    pub(crate) fn put(&mut self, name: &str, bytes: &[u8]) {
        self.commands.extend(["put".into(), name.into(), bytes.len().to_string()]);
        self.input.extend_from_slice(bytes);
    }

    /// Allocates device memory without initialising it.
    pub(crate) fn allocate(&mut self, name: &str, bytes: usize) {
        self.commands.extend(["allocate".into(), name.into(), bytes.to_string()]);
    }

    /// Sets a number, named after the kernels' parameter or a field of their struct.
    pub(crate) fn set(&mut self, name: &str, number: impl ToString) {
        self.commands.extend(["set".into(), name.into(), number.to_string()]);
    }

    pub(crate) fn launch(&mut self, Launch { kernel, blocks, threads, shared }: &Launch) {
        self.commands.extend(["launch".into(), kernel.clone()]);
        self.commands.extend([blocks, threads, shared].map(ToString::to_string));
    }

    /// Runs all commands and returns the contents of the memory.
    pub(crate) fn get(mut self, name: &str) -> Vec<u8> {
        self.commands.extend(["get".into(), name.into()]);
        let mut emulator = Command::new(program())
            .args(&self.commands)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the emulator was compiled");
        // If the emulator ends early, it says why on its own.
        let _ = emulator.stdin.take().expect("a pipe").write_all(&self.input);
        let output = emulator.wait_with_output().expect("the emulator's output");
        assert!(output.status.success(), "{:?}: {}", self.commands, output.status);
        output.stdout
    }
}

/// The elements as raw bytes.
pub(crate) fn bytes(x: &Tensor) -> Result<Vec<u8>> {
    let x = x.flatten_all()?;
    Ok(match x.dtype() {
        DType::F16 => x.to_vec1::<f16>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        DType::BF16 => x.to_vec1::<bf16>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        _ => x.to_vec1::<f32>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    })
}

/// A vector from the raw bytes of its elements.
pub(crate) fn tensor(bytes: &[u8], dtype: DType) -> Result<Tensor> {
    Tensor::from_raw_buffer(bytes, dtype, &[bytes.len() / dtype.size_in_bytes()], &Device::Cpu)
}
