//! Runs the kernels' own source on the CPU, thread by thread (`cuda/emulate.cpp`), to test them without a GPU.

use super::launch_plan::Launch;
use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The emulator program with all kernels for 9.0, or for 7.5, compiled once.
fn program(old: bool) -> &'static Path {
    static PROGRAMS: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    PROGRAMS[usize::from(old)].get_or_init(|| {
        // Another folder with the kernels in it, such as one with a bug to find.
        let other = std::env::var_os("GPT2_CUDA_SOURCES").map(PathBuf::from);
        let folder = other.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda"));
        let files = std::fs::read_dir(&folder).expect("the kernels").map(|file| file.expect("a file").path());
        let sources = files.filter(|file| file.extension().is_some_and(|extension| extension == "cu"));
        let (name, define) =
            if old { ("emulate-cuda-75", "-DCAPABILITY=75") } else { ("emulate-cuda", "-DCAPABILITY=90") };
        let program = other.unwrap_or_else(|| env!("OUT_DIR").into()).join(name);
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let done = Command::new(&compiler)
            .current_dir(folder)
            .args("-std=c++17 -O1 -rdynamic -Wall -Wno-unknown-pragmas".split(' '))
            // A GPU refuses what this processor would read: an address that does not suit its type.
            .args("-fsanitize=alignment -fsanitize-undefined-trap-on-error -x c++".split(' '))
            .arg(define)
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
    /// Of compute capability 7.5 instead of 9.0.
    old: bool,
}

impl Emulator {
    /// A GPU of this compute capability, as a number: below 80 it is 7.5.
    pub(crate) fn of(capability: u32) -> Self {
        Self { old: capability < 80, ..Self::default() }
    }

    /// Allocates device memory that holds these bytes, named after the kernels' parameter.
    pub(crate) fn put(&mut self, name: &str, bytes: &[u8]) {
        self.commands.extend(["put".into(), name.into(), bytes.len().to_string()]);
        self.input.extend_from_slice(bytes);
    }

    /// Allocates device memory without initializing it.
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

    /// Runs all commands and returns the contents of these memories.
    pub(crate) fn get<const N: usize>(mut self, names: [&str; N]) -> [Vec<u8>; N] {
        self.commands.extend(names.iter().flat_map(|name| ["get".into(), (*name).into()]));
        let mut emulator = Command::new(program(self.old))
            .args(&self.commands)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the emulator was compiled");
        // If the emulator ends early, it says why on its own.
        let _ = emulator.stdin.take().expect("a pipe").write_all(&self.input);
        let output = emulator.wait_with_output().expect("the emulator's output");
        assert!(output.status.success(), "{:?}: {}", self.commands, output.status);
        let mut rest = &output.stdout[..];
        names.map(|_| {
            let (size, after) = rest.split_first_chunk().expect("a size");
            let (bytes, after) =
                after.split_at(u64::from_ne_bytes(*size).try_into().expect("fits this memory"));
            rest = after;
            bytes.to_vec()
        })
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

/// The largest difference between what a kernel wrote and what is expected. Memory that none has written is NaN, which
/// counts as infinitely far away.
pub(crate) fn difference(got: &[u8], expected: &Tensor, dtype: DType) -> Result<f64> {
    let got = Tensor::from_raw_buffer(got, dtype, expected.dims(), &Device::Cpu)?.to_dtype(DType::F64)?;
    let differences = (got - expected)?.abs()?.flatten_all()?.to_vec1::<f64>()?;
    Ok(differences.into_iter().fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }))
}
