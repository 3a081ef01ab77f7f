//! By what a picture says that this program wrote it, and [`crate::is_ours`] knows it.

/// The program name in a picture's metadata.
pub(crate) const SOFTWARE: &str = concat!("gpt2 ", env!("CARGO_PKG_VERSION"));

/// The beginning of every SVG.
pub(crate) const SVG_START: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";

/// The end of the first tag of every SVG and what follows it, up to the version.
pub(crate) const SVG_MADE_BY: &str = ">\n<metadata>{\"software\":\"gpt2 ";

/// The first object of every PDF, up to the version.
pub(crate) const PDF_MADE_BY: &str = "1 0 obj\n<<\n  /Producer (gpt2 ";
