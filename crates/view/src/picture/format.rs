//! The file formats of pictures.

use super::{pdf, png, scene::Scene, svg};
use crate::provenance::Provenance;
use crate::recognize::FileKind;
use candle_core::Result;
use std::path::Path;

/// The file format of a picture.
///
/// ```
/// use gpt2_view::PictureFormat;
/// use std::path::Path;
///
/// assert_eq!(PictureFormat::of(Path::new("heads.PDF"))?, PictureFormat::Pdf);
/// assert!(PictureFormat::of(Path::new("heads.bmp")).is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PictureFormat {
    /// Pixels, for screens and slides.
    Png,
    /// Shapes and text that can be searched and edited, for browsers and drawing programs.
    Svg,
    /// The same on one page, with its font, for print and LaTeX.
    Pdf,
}

impl PictureFormat {
    /// The format that the name of a file asks for.
    ///
    /// # Errors
    /// When the name ends in neither `.png`, `.svg` nor `.pdf`, in capitals or not.
    pub fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        match extension.to_str() {
            Some("png") => Ok(Self::Png),
            Some("svg") => Ok(Self::Svg),
            Some("pdf") => Ok(Self::Pdf),
            _ => candle_core::bail!(
                "{}: the name of a picture ends in .png, .svg or .pdf",
                crate::visible_text(&path.display().to_string())
            ),
        }
    }

    /// What [`is_ours`](crate::is_ours) knows such files as.
    #[must_use]
    pub fn kind(self) -> FileKind {
        match self {
            Self::Png => FileKind::Png,
            Self::Svg => FileKind::Svg,
            Self::Pdf => FileKind::Pdf,
        }
    }

    /// The bytes of a file.
    pub(super) fn write(self, scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
        match self {
            Self::Png => png::write(scene, provenance),
            Self::Svg => svg::write(scene, provenance),
            Self::Pdf => pdf::write(scene, provenance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_the_format() -> Result<()> {
        for (name, format) in [
            ("a.png", PictureFormat::Png),
            ("/x.pdf/a.b.Svg", PictureFormat::Svg),
            ("a.PDF", PictureFormat::Pdf),
        ] {
            assert_eq!(PictureFormat::of(Path::new(name))?, format);
        }
        for name in ["", "png", ".png", "a.jpg", "a.png.gz", "a.svg/"] {
            let found = PictureFormat::of(Path::new(name));
            if name == "a.svg/" {
                assert_eq!(found?, PictureFormat::Svg);
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(".png, .svg or .pdf"), "{error}");
        }
        Ok(())
    }
}
