//! The options that change heads, attention and the residual stream while the model runs.

use anyhow::{Context, bail};
use candle_core::{DType, Device, Tensor};
use gpt2_engine::At;
use gpt2_model::hooks::{Intervention, ParseError, Place};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Interventions")]
#[command(group = clap::ArgGroup::new("other_run").args(["patch", "circuit"]).multiple(true))]
#[command(group = clap::ArgGroup::new("takes_means").args(["mean_ablate", "circuit"]).multiple(true))]
#[command(group = clap::ArgGroup::new("changed_features").args(["ablate_feature", "scale_feature", "set_feature"]).multiple(true))]
pub(crate) struct InterventionArgs {
    /// Set the outputs of heads to 0: LAYER.HEAD, counted from 0, as in 0.3; '0.*' is the whole layer. All
    /// interventions are repeatable
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("ablate"))]
    pub(crate) ablate: Vec<HeadsOption>,
    /// Set the outputs of heads to their mean over the prompt, or over the texts of --mean-of
    #[arg(long, value_name = "L.H", value_delimiter = ',', value_parser = on_heads("mean-ablate"))]
    pub(crate) mean_ablate: Vec<HeadsOption>,
    /// Take the means of --mean-ablate and --circuit over these texts, one a line. If all are as long as the prompt, each
    /// position of --mean-ablate has a mean of its own (Wang et al.)
    #[arg(long, value_name = "FILE", requires = "takes_means")]
    pub(crate) mean_of: Option<PathBuf>,
    /// Multiply the outputs of heads by a factor
    #[arg(long, value_name = "L.H=FACTOR", value_delimiter = ',', value_parser = on_heads("scale"))]
    pub(crate) scale: Vec<HeadsOption>,
    /// Divide the scores of heads by a temperature before softmax. Below 1 sharpens attention
    #[arg(long, value_name = "L.H=T", value_delimiter = ',', value_parser = on_heads("temperature"))]
    pub(crate) attention_temperature: Vec<HeadsOption>,
    /// Stop position QUERY from attending to position KEY, as in 7:4. 3/7:4 acts in layer 3 alone, 3.2/7:4 in head 2
    /// of it
    #[arg(long, value_name = "[L[.H]/]QUERY:KEY", value_delimiter = ',', value_parser = kind("block"))]
    pub(crate) block: Vec<Intervention>,
    /// Replace a part with its value in a run over --from-prompt. L.H is a head's output, L the residual stream
    /// before block L, L.attn and L.mlp what the block's attention and MLP add. @POS replaces one position, else all
    /// are. A head's other changes come first
    #[arg(long, value_name = "PLACE[@POS]", value_delimiter = ',', requires = "from_prompt", value_parser = At::<Place>::from_str)]
    pub(crate) patch: Vec<At<Place>>,
    /// The prompt for --patch and --circuit. It needs as many tokens as the prompt, unless each --patch names a position
    #[arg(long, value_name = "TEXT", requires = "other_run")]
    pub(crate) from_prompt: Option<String>,
    /// Add a vector to the residual stream before block L (steering). FILE.npy holds n_embd numbers
    #[arg(long, value_name = "L[@POS]=FILE.npy[*SCALE]", value_parser = Steer::from_str)]
    pub(crate) add: Vec<Steer>,
    /// Run only the edges of a circuit that gpt2 discover wrote. What other edges carry is the value of a run over
    /// --from-prompt, the mean over the texts of --mean-of, or nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) circuit: Option<PathBuf>,
    /// A sparse autoencoder for --ablate-feature, --scale-feature and --set-feature: a folder as SAELens or gpt2 train-features
    /// writes it, or owner/name/FOLDER on the Hub
    #[arg(
        long,
        value_name = "DIR|NAME",
        requires = "changed_features",
        help_heading = "Interventions on features"
    )]
    pub(crate) dictionary: Option<String>,
    /// Take what features of --dictionary add out of the value that it reads: N, counted from 0; N@POS at one position
    #[arg(long, value_name = "N[@POS]", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = At::<u32>::from_str)]
    pub(crate) ablate_feature: Vec<At<u32>>,
    /// Multiply the activations of features by a factor
    #[arg(long, value_name = "N[@POS]=FACTOR", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = feature_number)]
    pub(crate) scale_feature: Vec<(At<u32>, f64)>,
    /// Give features an activation, whether they fire or not
    #[arg(long, value_name = "N[@POS]=NUMBER", value_delimiter = ',', help_heading = "Interventions on features", requires = "dictionary", value_parser = feature_number)]
    pub(crate) set_feature: Vec<(At<u32>, f64)>,
}

/// Interventions on heads, with their option, as the user typed them.
#[derive(Debug, Clone)]
pub(crate) struct HeadsOption {
    of: gpt2_engine::OnHeads,
    pub(crate) text: String,
}

impl HeadsOption {
    /// The interventions on single heads, in a model of `count` heads a layer.
    pub(crate) fn each(&self, count: usize) -> Vec<Intervention> {
        self.of.each(count)
    }
}

/// A vector to add to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Steer {
    pub(crate) at: At<usize>,
    pub(crate) file: PathBuf,
    pub(crate) scale: f64,
    /// The option's value as the user typed it.
    pub(crate) text: String,
}

impl FromStr for Steer {
    type Err = String;

    /// `5=v.npy`, `5@3=v.npy*-2.5`
    fn from_str(s: &str) -> Result<Self, String> {
        let expected =
            || "expected L=FILE.npy, L@POS=FILE.npy or either with *SCALE, such as 5=v.npy*4".to_owned();
        let (place, rest) = s.split_once('=').ok_or_else(expected)?;
        let (file, scale) = match rest.rsplit_once('*') {
            Some((file, scale)) => (file, scale.trim().parse().ok().filter(|x: &f64| x.is_finite())),
            None => (rest, Some(1.0)),
        };
        let scale = scale.ok_or_else(expected)?;
        let at = place.parse::<At<usize>>().map_err(|_| expected())?;
        if file.is_empty() {
            return Err(expected());
        }
        Ok(Self { at, file: file.into(), scale, text: s.to_owned() })
    }
}

/// `12=0.5`, `12@3=0.5`
fn feature_number(s: &str) -> Result<(At<u32>, f64), String> {
    let parsed = s.split_once('=').and_then(|(feature, number)| {
        let number = number.trim().parse().ok().filter(|x: &f64| x.is_finite())?;
        Some((feature.parse().ok()?, number))
    });
    parsed.ok_or_else(|| "expected N=NUMBER or N@POS=NUMBER, such as 12=0.5".to_owned())
}

/// Parses what comes after the kind of an intervention.
fn kind(kind: &'static str) -> impl Fn(&str) -> Result<Intervention, ParseError> + Clone {
    move |s| format!("{kind} {s}").parse()
}

/// Parses an intervention of the kind `what` on a head, or on all heads of a layer: `L.*`.
pub(crate) fn on_heads(what: &'static str) -> impl Fn(&str) -> Result<HeadsOption, String> + Clone {
    move |s| {
        let of = gpt2_engine::OnHeads::parse(what, s).map_err(|error| {
            let value = if matches!(what, "scale" | "temperature") { "=0.5" } else { "" };
            format!("{error}; several: 5.0{value},5.1{value}; all heads of a layer: '5.*{value}'")
        })?;
        let option = if what == "temperature" { "attention-temperature" } else { what };
        Ok(HeadsOption { of, text: format!("--{option} {}", s.trim()) })
    }
}

/// The vector of `--add`, times its scale.
pub(crate) fn vector(steer: &Steer) -> anyhow::Result<Tensor> {
    let read = || -> anyhow::Result<Tensor> {
        check_length(&steer.file)?;
        Ok(Tensor::read_npy(&steer.file)?)
    };
    let vector = read().with_context(|| {
        format!("cannot read {} as a NumPy array (numpy.save writes one)", steer.file.display())
    })?;
    if !matches!(vector.dtype(), DType::F16 | DType::F32 | DType::F64) {
        bail!("{}: holds {}, expected floats", steer.file.display(), vector.dtype().as_str());
    }
    let vector = (vector.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()? * steer.scale)?;
    if !gpt2_model::finite::all_finite(&vector)? {
        bail!(
            "{}: holds NaN or infinity, or its product with {} overflows",
            steer.file.display(),
            steer.scale
        );
    }
    Ok(vector)
}

/// The longest header to read, in bytes: far more than one takes.
const LONGEST_HEADER: u64 = 1 << 16;

/// Refuses a file that is shorter than the array that its header announces.
fn check_length(path: &Path) -> anyhow::Result<()> {
    let file = gpt2_files::open_regular(path)?;
    let length = file.metadata()?.len();
    let mut start = vec![];
    File::take(file, LONGEST_HEADER).read_to_end(&mut start)?;
    let text = String::from_utf8_lossy(&start);
    if !start.starts_with(b"\x93NUMPY") {
        bail!("it does not begin as a NumPy file does");
    }
    let (_, shape) = text.split_once("'shape':").context("its header has no shape")?;
    let (_, shape) = shape.split_once('(').context("its shape has no parenthesis")?;
    let (shape, _) = shape.split_once(')').context("its shape does not end")?;
    let mut numbers = 1u64;
    for dim in shape.split(',').map(str::trim).filter(|dim| !dim.is_empty()) {
        let dim: u64 = dim.parse().context("its shape holds something else than numbers")?;
        numbers = numbers.checked_mul(dim).context("its shape is larger than any file")?;
    }
    // A number takes a byte at least.
    if numbers > length {
        bail!("its header announces {numbers} numbers, but the file has {length} bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpt2_model::hooks::Head;

    #[test]
    fn a_vector_has_a_layer_a_file_and_perhaps_a_position_and_a_scale() {
        let parsed = |s: &str| s.parse::<Steer>().map(|Steer { at, file, scale, .. }| (at, file, scale));
        let at = |place, position| At { place, position };
        assert_eq!(parsed("5=v.npy"), Ok((at(5, None), "v.npy".into(), 1.0)));
        assert_eq!(parsed("5@3=a=b.npy*-2.5"), Ok((at(5, Some(3)), "a=b.npy".into(), -2.5)));
        assert_eq!(parsed("0=a*b.npy*2"), Ok((at(0, None), "a*b.npy".into(), 2.0)));
        for wrong in ["", "5", "5=", "x=v.npy", "5@=v.npy", "5=v.npy*", "5=v.npy*nan", "-1=v.npy"] {
            assert!(parsed(wrong).is_err_and(|e| e.contains("5=v.npy*4")), "{wrong:?}");
        }
    }

    #[test]
    fn a_star_stands_for_every_head_of_a_layer() {
        let parsed = |what, s: &str| {
            let all = on_heads(what)(s).map(|given| given.each(3))?;
            Ok::<_, String>(all.iter().map(Intervention::to_string).collect::<Vec<_>>())
        };
        assert_eq!(parsed("ablate", "1.2"), Ok(vec!["ablate 1.2".into()]));
        assert_eq!(
            parsed("mean-ablate", "1.*").map(|all| all.join(",")),
            Ok("mean-ablate 1.0,mean-ablate 1.1,mean-ablate 1.2".into())
        );
        assert_eq!(
            parsed("scale", "1.*=-2").map(|all| all.join(",")),
            Ok("scale 1.0=-2,scale 1.1=-2,scale 1.2=-2".into())
        );
        assert_eq!(parsed("temperature", "0.*=2").map(|all| all.len()), Ok(3));
        for (what, s, says) in [
            (
                "ablate",
                "1",
                "expected LAYER.HEAD, such as 5.1; several: 5.0,5.1; all heads of a layer: '5.*'",
            ),
            ("ablate", "*.1", "LAYER.HEAD"),
            ("ablate", "*", "LAYER.HEAD"),
            ("scale", "1.*", "'5.*=0.5'"),
        ] {
            assert!(parsed(what, s).is_err_and(|error| error.contains(says)), "{what} {s}");
        }
    }

    #[test]
    fn a_patch_has_a_place_and_perhaps_a_position() {
        let parsed = |s: &str| s.parse::<At<Place>>();
        assert_eq!(parsed("2@7"), Ok(At { place: Place::Stream(2), position: Some(7) }));
        assert_eq!(parsed("2.1"), Ok(At { place: Place::Head(Head { layer: 2, head: 1 }), position: None }));
        assert!(parsed("2.1@x").is_err_and(|e| e.contains("not a position")));
        assert!(parsed("2.x@1").is_err_and(|e| e.contains("5.mlp")));
    }

    #[test]
    fn a_header_that_announces_more_than_the_file_is_refused() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("v.npy");
        Tensor::zeros((3, 4), candle_core::DType::F32, &Device::Cpu)?.write_npy(&path)?;
        check_length(&path)?;
        let bytes = std::fs::read(&path)?;
        let refused = |bytes: &[u8], says: &str| -> anyhow::Result<()> {
            std::fs::write(&path, bytes)?;
            let error = check_length(&path).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
            Ok(())
        };
        let at = bytes.windows(3).position(|part| part == b"3,4").expect("a shape");
        let mut larger = bytes.clone();
        larger[at..at + 3].copy_from_slice(b"999");
        refused(&larger, "announces")?;
        refused(b"not numpy", "begin")?;
        refused(b"\x93NUMPY {'shape': (99999999999, 99999999999), }", "larger than any file")?;
        refused(b"\x93NUMPY {'shape': (x,), }", "something else")
    }
}
