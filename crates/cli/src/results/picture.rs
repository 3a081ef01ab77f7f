//! The options of every command that draws a picture, and maps of heads by layer.

use crate::output::written_files::Outputs;
use candle_core::{Result, Tensor};
use gpt2_engine::RunProvenance;
use gpt2_view::{Frame, NumberMap, PictureFormat, PictureWidth, number_maps};
use std::path::PathBuf;

/// Where to draw the result, and what stands around it.
#[derive(Debug, clap::Args)]
// A group, because clap forgets a required argument that conflicts with a given one.
#[command(group = clap::ArgGroup::new("drawn").arg("picture"))]
pub(crate) struct PictureArgs {
    #[arg(long, value_name = "FILE", visible_alias = "png", help_heading = "Files",
          help = format!("Draw the result: {}", PictureFormat::names()))]
    picture: Option<PathBuf>,
    /// The picture's title; "" for none [default: the model and what is drawn]
    #[arg(long, value_name = "TEXT", requires = "drawn", help_heading = "Files")]
    title: Option<String>,
    /// The line below the title; "" for none [default: how the numbers were made]
    #[arg(long, value_name = "TEXT", requires = "drawn", help_heading = "Files")]
    caption: Option<String>,
    /// The picture's width: 8.5cm, 85mm, 3.3in, 240pt (for print: labels of 7 points) or 1200px
    #[arg(long, value_name = "WIDTH", requires = "drawn", help_heading = "Files")]
    size: Option<PictureWidth>,
}

impl PictureArgs {
    /// Adds the file to those of the run, so that it is refused before the work starts if it would do harm.
    pub(crate) fn add(&self, outputs: &mut Outputs) -> Result<()> {
        if let Some(path) = &self.picture {
            PictureFormat::from_path(path)?;
            outputs.add("--picture", path);
        }
        Ok(())
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.picture.is_some()
    }

    /// Draws the picture into a file of the run, if there is to be one.
    pub(crate) fn draw(
        &self,
        outputs: &mut Outputs,
        about: &PictureMetadata,
        draw: impl FnOnce(&Frame) -> Result<Vec<u8>>,
    ) -> anyhow::Result<()> {
        self.drawn(about, draw)?.map_or(Ok(()), |drawn| drawn.stage(outputs))
    }

    /// The picture, for a caller that writes its files later.
    pub(crate) fn drawn(
        &self,
        about: &PictureMetadata,
        draw: impl FnOnce(&Frame) -> Result<Vec<u8>>,
    ) -> anyhow::Result<Option<DrawnPicture>> {
        let Some(path) = &self.picture else { return Ok(None) };
        let mut provenance = about.made_by.for_files()?;
        if !about.settings.is_null() {
            provenance.facts["settings"] = about.settings.clone();
        }
        if let Some(caption) = &self.caption {
            provenance.caption.clone_from(caption);
        }
        let title = self.title.as_deref().unwrap_or(&about.title);
        let frame = Frame::new(PictureFormat::from_path(path)?, title, &provenance).with_width(self.size);
        Ok(Some(DrawnPicture { path: path.clone(), bytes: draw(&frame)? }))
    }
}

/// A picture's title, and the provenance of its numbers.
pub(crate) struct PictureMetadata<'a> {
    /// The title, unless the user gives another.
    pub(crate) title: String,
    pub(crate) made_by: &'a RunProvenance,
    /// The command's own options that shaped the numbers, for the file's metadata; null if there are none.
    pub(crate) settings: serde_json::Value,
}

/// A picture and its file.
pub(crate) struct DrawnPicture {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl DrawnPicture {
    pub(crate) fn stage(&self, outputs: &mut Outputs) -> anyhow::Result<()> {
        outputs.stage_bytes(&self.path, &self.bytes)
    }
}

/// A number of each head, to be drawn by layer.
pub(crate) struct HeadMap<'a> {
    /// May be empty if there is one map.
    pub(crate) name: &'a str,
    /// The meaning of the numbers, such as "mean weight".
    pub(crate) unit: &'a str,
    /// (L, H)
    pub(crate) values: &'a Tensor,
    /// The end of the scale, if it is not the largest number.
    pub(crate) end: Option<f32>,
    /// Whether the scale begins at 0.
    pub(crate) from_zero: bool,
}

/// Maps of the same model's heads in one picture: a row for each layer.
pub(crate) fn head_maps(frame: &Frame, maps: &[HeadMap]) -> Result<Vec<u8>> {
    let (layers, heads) = maps.first().map_or(Ok((0, 0)), |map| map.values.dims2())?;
    let rows = numbers(layers);
    let columns = numbers(heads);
    let mut named = vec![];
    for &HeadMap { name, unit, values, end, from_zero } in maps {
        let row_axis = "layer";
        let column_axis = "head";
        let rows = &rows[..];
        let columns = &columns[..];
        named.push((
            NumberMap {
                name,
                row_axis,
                column_axis,
                unit,
                rows,
                columns,
                end,
                from_zero,
                ..NumberMap::default()
            },
            values.clone(),
        ));
    }
    number_maps(frame, &named)
}

/// The labels of `count` layers or heads.
pub(crate) fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|i| i.to_string()).collect()
}
