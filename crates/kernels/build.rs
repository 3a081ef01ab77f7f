//! Sets `cfg(amx)` where the code for Intel's tile registers is compiled; with the `cuda` feature, compiles `cuda/*.cu`.
//!
//! `CUDA_COMPUTE_CAP` sets the GPU's compute capability, as it does for Candle; if it is unset, the build asks the
//! machine's GPU. `GPT2_CUDA_CAPABILITIES` ("80 90") lists several, for a program that must run on all of them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(amx)");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if cfg!(feature = "x86-v4") && target("ARCH") == "x86_64" && target("OS") == "linux" {
        println!("cargo::rustc-cfg=amx");
    }
    #[cfg(feature = "cuda")]
    if let Err(error) = cuda::compile() {
        println!("cargo::error={error}");
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use cudaforge::{CudaToolkit, detect_compute_cap};
    use std::env;
    use std::error::Error;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    pub(super) fn compile() -> Result<(), Box<dyn Error>> {
        println!("cargo:rerun-if-changed=cuda");
        for variable in ["GPT2_CUDA_CAPABILITIES", "CUDA_COMPUTE_CAP", "CUDA_HOME", "NVCC", "NVCC_CCBIN"] {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        let capabilities = capabilities()?;
        let list: Vec<String> = capabilities.iter().map(ToString::to_string).collect();
        println!("cargo::rustc-env=GPT2_COMPILED_CAPABILITIES={}", list.join(" "));
        let nvcc = CudaToolkit::detect()?.nvcc_path;
        let out = PathBuf::from(env::var("OUT_DIR")?);
        let files = std::fs::read_dir("cuda")?.map(|file| Ok(file?.path()));
        let mut sources = files.collect::<std::io::Result<Vec<_>>>()?;
        sources.retain(|file| file.extension().is_some_and(|extension| extension == "cu"));
        std::thread::scope(|scope| {
            let nvcc = &nvcc;
            let capabilities = &capabilities;
            let out = &out;
            let run =
                |source| move || run(nvcc, source, capabilities, out).map_err(|error| error.to_string());
            let runs: Vec<_> = sources.iter().map(|source| scope.spawn(run(source))).collect();
            runs.into_iter().try_for_each(|run| run.join().map_err(|_| "a thread of build.rs failed")?)
        })?;
        Ok(())
    }

    /// The compute capabilities in ascending order. The kernels need at least 75, and those in bf16 80; on older GPUs tensors take the
    /// eager path.
    fn capabilities() -> Result<Vec<usize>, Box<dyn Error>> {
        let given = match env::var("GPT2_CUDA_CAPABILITIES") {
            Ok(list) => {
                let numbers = list.split([' ', ',']).filter(|x| !x.is_empty()).map(str::parse);
                numbers.collect::<Result<Vec<usize>, _>>().map_err(|_| {
                    format!("GPT2_CUDA_CAPABILITIES: `{list}` is not a list of compute capabilities such as \"80 90\"")
                })?
            }
            Err(_) => vec![detect_compute_cap()?.base()],
        };
        let mut all: Vec<usize> = given.into_iter().map(|capability| capability.max(75)).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Err("GPT2_CUDA_CAPABILITIES is empty".into());
        }
        Ok(all)
    }

    /// Compiles machine code for each capability and PTX for the lowest; newer GPUs compile that PTX when they load it.
    fn run(nvcc: &Path, source: &Path, capabilities: &[usize], out: &Path) -> Result<(), Box<dyn Error>> {
        let code = capabilities.iter().map(|c| format!("-gencode=arch=compute_{c},code=sm_{c}"));
        let ptx = format!("-gencode=arch=compute_{0},code=compute_{0}", capabilities[0]);
        let mut command = Command::new(nvcc);
        command.args(["-std=c++17", "-O3", "--fatbin"]).args(code).arg(ptx);
        if let Ok(ccbin) = env::var("NVCC_CCBIN") {
            command.args(["-ccbin", &ccbin]);
        }
        let name = source.file_stem().ok_or("a kernel's source file has no name")?;
        command.arg(source).arg("-o").arg(out.join(name).with_extension("fatbin"));
        let done = command.output().map_err(|error| format!("cannot run {}: {error}", nvcc.display()))?;
        if !done.status.success() {
            let said = [done.stdout, done.stderr].concat();
            let said = String::from_utf8_lossy(&said).replace('\n', "; ");
            return Err(format!("nvcc on {}: {said}", source.display()).into());
        }
        Ok(())
    }
}
