//! The commands that signals end, and what each leaves.

/// When a run is in the middle of its work.
pub(super) enum Ready {
    /// A file or folder below `out` is there; its name may begin so.
    Has(&'static str),
    /// This many lines are in a file below `out`.
    Lines(&'static str, usize),
    /// Something was printed or told.
    Says(&'static str),
    /// It has begun so many milliseconds ago.
    After(u64),
}

/// A command, and what a signal in the middle of it leaves.
pub(super) struct Case {
    pub(super) line: &'static str,
    pub(super) ready: Ready,
    /// The names that are left below `out`: exactly these.
    pub(super) left: &'static [&'static str],
    pub(super) says: &'static [&'static str],
}

pub(super) const CASES: [Case; 21] = [
    Case {
        line: "score @long.txt --by line --jsonl @out/s.jsonl --threads 1",
        ready: Ready::Lines("s.jsonl.part", 257),
        left: &["s.jsonl.part"],
        says: &["stopped after ", "--resume"],
    },
    Case {
        line: "eval @quiz.jsonl --out @out/e.json --threads 1",
        ready: Ready::After(1500),
        left: &[],
        says: &["stopped by "],
    },
    // One document, which takes long.
    Case { line: "score @long.txt --threads 1", ready: Ready::After(1500), left: &[], says: &["stopped"] },
    Case {
        line: "quantize @wide --to q4_0 --out @out/w.gguf",
        ready: Ready::Has(".gpt2-"),
        left: &[],
        says: &["stopped by ", "w.gguf is not written"],
    },
    Case {
        line: "train --text @long.txt --out @out/t --steps 100000 --metrics @out/m.csv --n-embd 32 --n-layer 1 --eval-every 100000 \
               --vocab-size 300",
        ready: Ready::Lines("m.csv", 2),
        left: &[
            "m.csv",
            "t/",
            "t/config.json",
            "t/loss.png",
            "t/model.safetensors",
            "t/tokenizer.json",
            "t/training-state.safetensors",
        ],
        says: &["stopped after step", "--resume"],
    },
    Case {
        line: "train-features @store --features 64 -k 4 --batch 32 --epochs 60000 --out @out/f",
        ready: Ready::Has("f"),
        left: &["f/", "f/cfg.json", "f/sae_weights.safetensors", "f/training-state.safetensors"],
        says: &["stopped after", "what has been learned is saved", "--resume"],
    },
    Case {
        line: "record @long.txt --points blocks.2.hook_resid_post --shard-tokens 2048 --out @out/r",
        ready: Ready::Has("r/00000"),
        left: &["r/"],
        says: &["stopped", "the finished shards stay", "--resume"],
    },
    Case {
        line: "features --texts @long.txt --dictionary @sae --json",
        ready: Ready::After(1500),
        left: &[],
        says: &["stopped by "],
    },
    Case {
        line: "features --store @values --dictionary @sae --threads 1 --pages @out/new/p --neuronpedia @out/new/n --neuronpedia-id \
               tiny/2-mine",
        ready: Ready::After(1500),
        left: &[],
        says: &["stopped after ", " tokens"],
    },
    Case {
        line: "features --store @values --dictionary @sae --model gpt2 --pages @out/new/p",
        ready: Ready::Says("fetching model.safetensors"),
        left: &[],
        says: &["stopped by ", "p is not written"],
    },
    Case {
        line: "discover --pairs @pairs.jsonl --out @out/c.json",
        ready: Ready::After(1500),
        left: &[],
        says: &["stopped by "],
    },
    Case {
        line: "eval @quiz.jsonl --journal @out/j --threads 1",
        ready: Ready::Lines("j", 2),
        left: &["j"],
        says: &["stopped by ", "goes on from what the journal has"],
    },
    Case {
        line: "train --ids @ids.bin --out @out/t --epochs 5000 --metrics @out/m.csv --vocab-size 300 --n-embd 32 --n-layer 1 \
               --window 32 --optimizer muon",
        ready: Ready::Lines("m.csv", 2),
        left: &[
            "m.csv",
            "t/",
            "t/config.json",
            "t/loss.png",
            "t/model.safetensors",
            "t/training-state.safetensors",
        ],
        says: &["stopped after step", "--resume"],
    },
    Case {
        line: "train --jsonl @chats.jsonl --model demo --lora 4 --out @out/t --steps 100000 --metrics @out/m.csv --window 32",
        ready: Ready::Lines("m.csv", 2),
        left: &[
            "m.csv",
            "t/",
            "t/adapter_config.json",
            "t/adapter_model.safetensors",
            "t/loss.png",
            "t/training-state.safetensors",
        ],
        says: &["stopped after step", "--resume"],
    },
    Case { line: "import @wide --out @out/m", ready: Ready::After(300), left: &[], says: &["stopped by "] },
    Case {
        line: "live --model @wide --quantize q8_0 --out @out/l.html",
        ready: Ready::After(400),
        left: &[],
        says: &["stopped by "],
    },
    Case { line: "bench forward -r 100000", ready: Ready::After(1500), left: &[], says: &["stopped by "] },
    Case { line: "lens --texts @long.txt", ready: Ready::After(1500), left: &[], says: &["stopped by "] },
    Case {
        line: "verify --published --answers @answers.json",
        ready: Ready::After(200),
        left: &[],
        says: &["stopped by "],
    },
    Case {
        line: "generate --texts @long.txt -n 200",
        ready: Ready::After(1500),
        left: &[],
        says: &["stopped by "],
    },
    Case {
        line: "download gpt2",
        ready: Ready::Says("fetching model.safetensors"),
        left: &[],
        says: &["stopped by ", "what was fetched stays"],
    },
];
