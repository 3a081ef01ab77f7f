//! ggml's numbers for the types of tensors.

use crate::tensor_info::Encoding;
use gpt2_model::linear::BlockFormat;
use safetensors::Dtype;

/// Types that this crate reads, and their numbers.
const KNOWN: [(u32, Encoding); 9] = [
    (0, Encoding::Plain(Dtype::F32)),
    (1, Encoding::Plain(Dtype::F16)),
    (2, Encoding::Blocks(BlockFormat::Q4_0)),
    (6, Encoding::Blocks(BlockFormat::Q5_0)),
    (8, Encoding::Blocks(BlockFormat::Q8_0)),
    (12, Encoding::Blocks(BlockFormat::Q4K)),
    (14, Encoding::Blocks(BlockFormat::Q6K)),
    (28, Encoding::Plain(Dtype::F64)),
    (30, Encoding::Plain(Dtype::BF16)),
];

/// The names of the types that it does not read.
const UNKNOWN: [(u32, &str); 24] = [
    (3, "Q4_1"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (13, "Q5_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

/// How a tensor of ggml's type `number` is written.
pub(super) fn encoding(number: u32) -> Encoding {
    let known = KNOWN.into_iter().find(|(n, _)| *n == number).map(|(_, encoding)| encoding);
    known.unwrap_or_else(|| {
        let name = UNKNOWN.into_iter().find(|(n, _)| *n == number).map(|(_, name)| name);
        Encoding::Unknown { number, name }
    })
}

/// ggml's number, for a type that this crate reads.
pub(crate) fn number(encoding: Encoding) -> Option<u32> {
    KNOWN.into_iter().find(|(_, known)| *known == encoding).map(|(number, _)| number)
}
