//! The contents of a folder without a model's config or weights: the files that may be meant, and their use.

use std::path::Path;

/// The names that a message lists of one kind.
const LISTED: usize = 3;

/// The files in `dir` that may be meant; empty if it cannot be listed.
pub(crate) fn of(dir: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(dir) else { return String::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| {
            let end = if entry.path().is_dir() { "/" } else { "" };
            format!("{}{end}", entry.file_name().to_string_lossy())
        })
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    told(&names)
}

/// Advice for files and folders of these names; folders end in a slash.
fn told(names: &[String]) -> String {
    let ends = |ends: &[&str]| -> Vec<&str> {
        let is_one = |name: &&String| ends.iter().any(|end| name.to_lowercase().ends_with(end));
        names.iter().filter(is_one).map(String::as_str).collect()
    };
    let mut told = vec![];
    let mut tell = |found: Vec<&str>, what: &str| {
        if !found.is_empty() {
            let more = if found.len() > LISTED { ", .." } else { "" };
            told.push(format!("it holds {}{more}: {what}", found[..found.len().min(LISTED)].join(", ")));
        }
    };
    let checkpoints = names.iter().filter(|name| name.starts_with("checkpoint-") && name.ends_with('/'));
    tell(
        checkpoints.map(String::as_str).collect(),
        "a trainer's checkpoints, each a folder of its own: name one",
    );
    tell(ends(&[".gguf"]), "a GGUF file is a whole model: name the file");
    let adapters = names.iter().filter(|name| name.starts_with("adapter_"));
    tell(adapters.map(String::as_str).collect(), "an adapter, which needs the model that it was trained on");
    let others = [".pt", ".pth", ".ckpt", ".bin", ".safetensors"];
    let weights = ends(&others).into_iter().filter(|name| !name.starts_with("adapter_")).collect();
    tell(weights, "perhaps weights under another name: name the file");
    let unread = [".onnx", ".npz", ".h5", ".msgpack", ".tflite", ".keras", ".mlmodel", ".mlpackage/", ".pb"];
    tell(
        ends(&unread),
        "weights of a format that this program does not read; load them with transformers, and save them again",
    );
    if !told.is_empty() {
        return told.join("; ");
    }
    match names {
        [] => "the folder is empty".into(),
        names => {
            let more = if names.len() > LISTED { ", .." } else { "" };
            format!("it holds {}{more}", names[..names.len().min(LISTED)].join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_meant_is_named_with_what_to_do() {
        for (names, parts) in [
            (&[][..], &["the folder is empty"][..]),
            (&["a.txt", "b", "c", "d"], &["it holds a.txt, b, c, .."]),
            (&["checkpoint-500/", "checkpoint-1000/"], &["checkpoint-500/", "name one"]),
            (&["gpt2.Q8_0.gguf", "x.onnx"], &["gpt2.Q8_0.gguf: a GGUF file", "x.onnx: weights of a format"]),
            (&["tf_model.h5"], &["tf_model.h5", "does not read"]),
            (&["flax_model.msgpack"], &["flax_model.msgpack"]),
            (&["ckpt.pt"], &["ckpt.pt", "name the file"]),
            (&["adapter_model.bin"], &["adapter_model.bin: an adapter"]),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
            let told = told(&names);
            for part in parts {
                assert!(told.contains(part), "{names:?}: {told}");
            }
        }
    }
}
