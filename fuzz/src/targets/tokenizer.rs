//! Tokenizers: their files, and what is asked of good ones.

use super::{Folder, assert_names, parts};
use gpt2_loader::{Bytes, Files, LoadError, Tokenizer, TokenizerFiles, WeightFiles};
use std::sync::{Arc, OnceLock};

const TEXTS: [&str; 7] = [
    "",
    "hello",
    " the cat\nsat, don't",
    "na\u{ef}ve \u{65e5}\u{672c} \u{1d11e}",
    "<|endoftext|>a<|endoftext|> b",
    " \t\r\n  ",
    "0123456789\0\u{fffd}",
];

/// tokenizer.json
pub(super) fn json(data: &[u8]) {
    let mut folder = Folder::new();
    let path = folder.write("tokenizer.json", data);
    match Tokenizer::from_file(&path) {
        Err(error) => assert_names(&error, "tokenizer.json"),
        Ok(tokenizer) => {
            use_it(&tokenizer);
            if let Ok(saved) = tokenizer.to_json() {
                let path = folder.write("saved.json", saved.as_bytes());
                let again = Tokenizer::from_file(&path).expect("a saved tokenizer opens");
                for text in TEXTS {
                    assert_eq!(
                        again.encode(text).ok(),
                        tokenizer.encode(text).ok(),
                        "saved and opened: {text:?}"
                    );
                }
            }
        }
    }
}

/// vocab.json and merges.txt
pub(super) fn vocab_merges(data: &[u8]) {
    let ([vocab], merges) = parts(data);
    let file = |name: &str, data: &[u8]| (name.into(), Bytes::InMemory(Arc::new(data.to_vec())));
    let files =
        TokenizerFiles::VocabMerges { vocab: file("vocab.json", vocab), merges: file("merges.txt", merges) };
    match open(files) {
        Err(error) if error.to_string().contains("merges.txt") => assert_names(&error, "merges.txt"),
        Err(error) => assert_names(&error, "vocab.json"),
        Ok(tokenizer) => use_it(&tokenizer),
    }
}

/// Any text, and any ids, for the two tokenizers that come with the crates.
pub(super) fn prompts(data: &[u8]) {
    static TOKENIZERS: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    let tokenizers = TOKENIZERS.get_or_init(|| {
        let demo = Bytes::Embedded(include_bytes!("../../../models/tiny-shakespeare/tokenizer.json"));
        let demo = open(TokenizerFiles::Json("tokenizer.json".into(), demo)).expect("the demo's tokenizer");
        [demo, Tokenizer::gpt2()]
    });
    let text = String::from_utf8_lossy(data);
    let any_ids: Vec<u32> =
        data.chunks_exact(2).map(|id| u16::from_le_bytes([id[0], id[1]]).into()).collect();
    for tokenizer in tokenizers {
        let ids = tokenizer.encode(&text).expect("a byte-level vocabulary covers every text");
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        assert_eq!(tokenizer.decode(&ids), text);
        assert_eq!(streamed(tokenizer, &ids), text);
        assert_eq!(tokenizer.tokens(&ids).len(), ids.len());
        let size = u32::try_from(tokenizer.vocab_size()).expect("a known vocabulary");
        let within: Vec<u32> = any_ids.iter().map(|&id| id % size).collect();
        for ids in [&any_ids, &within] {
            assert_eq!(streamed(tokenizer, ids), tokenizer.decode(ids), "ids {ids:?}");
        }
    }
}

fn open(tokenizer: TokenizerFiles) -> Result<Tokenizer, LoadError> {
    let config = ("config.json".into(), Bytes::Embedded(b"{}"));
    let files = Files::new("fuzz".into(), config, WeightFiles::Headers(vec![]), tokenizer);
    Tokenizer::open(&files, 5)
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text += &stream.finish();
    text
}

/// What the command asks of a tokenizer. Its files may not cover a text: that is an error in words.
fn use_it(tokenizer: &Tokenizer) {
    let size = u32::try_from(tokenizer.vocab_size()).expect("a vocabulary of a small file");
    let _ = tokenizer.end_of_text();
    for text in TEXTS {
        match tokenizer.encode(text) {
            Ok(ids) => {
                let _ = (tokenizer.decode(&ids), tokenizer.tokens(&ids), streamed(tokenizer, &ids));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let odd = [0, size.saturating_sub(1), size, u32::MAX];
    let _ = (tokenizer.decode(&odd), tokenizer.tokens(&odd), streamed(tokenizer, &odd));
}
