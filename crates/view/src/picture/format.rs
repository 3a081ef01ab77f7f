//! The file formats of pictures.

use super::{pdf, png, scene::Scene, svg};
use crate::provenance::Provenance;
use crate::text::visible_text;
use candle_core::Result;
use std::path::Path;

/// The file format of a picture.
///
/// ```
/// use gpt2_view::PictureFormat;
/// use std::path::Path;
///
/// assert_eq!(PictureFormat::from_path(Path::new("heads.PDF"))?, PictureFormat::Pdf);
/// assert!(PictureFormat::from_path(Path::new("heads.bmp")).is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PictureFormat {
    /// Pixels, for screens and slides.
    Png,
    /// Shapes and text that can be searched and edited, for browsers and drawing programs.
    Svg,
    /// Shapes and text on one page, with its font, for print and LaTeX.
    Pdf,
}

/// Turns a scene into the bytes of a file that records how it was made.
type WriteScene = fn(&Scene, &Provenance) -> Result<Vec<u8>>;

impl PictureFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Png, Self::Svg, Self::Pdf];

    /// The extension of file names, and the writer.
    fn parts(self) -> (&'static str, WriteScene) {
        match self {
            Self::Png => ("png", png::write),
            Self::Svg => ("svg", svg::write),
            Self::Pdf => ("pdf", pdf::write),
        }
    }

    /// The ends of all names, for help and errors: `.png, .svg or .pdf`
    #[must_use]
    pub fn names() -> String {
        let [others @ .., last] = Self::ALL.map(|format| format!(".{}", format.extension()));
        format!("{} or {last}", others.join(", "))
    }

    /// The end of the names of such files, without the dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        self.parts().0
    }

    /// The format that the name of a file asks for.
    ///
    /// # Errors
    /// When the name does not end in the [`extension`](Self::extension) of a format, in capitals or not.
    pub fn from_path(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        if let Some(format) = Self::ALL.into_iter().find(|format| format.extension() == extension) {
            return Ok(format);
        }
        let shown = visible_text(&path.display().to_string());
        candle_core::bail!("{shown}: the name of a picture ends in {}", Self::names())
    }

    /// The bytes of a file.
    pub(super) fn write(self, scene: &Scene, provenance: &Provenance) -> Result<Vec<u8>> {
        let (_, write) = self.parts();
        write(scene, provenance)
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
            ("a.svg/", PictureFormat::Svg),
        ] {
            assert_eq!(PictureFormat::from_path(Path::new(name))?, format);
        }
        for name in ["", "png", ".png", "a.jpg", "a.png.gz"] {
            let error = PictureFormat::from_path(Path::new(name)).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(".png, .svg or .pdf"), "{error}");
        }
        Ok(())
    }
}
