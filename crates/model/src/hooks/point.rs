//! The points where hooks read and change values, and their names in TransformerLens.

use crate::config::Config;

use std::fmt;
use std::str::FromStr;

/// A place in the model. Points inside a block hold the layer, counted from 0.
///
/// A point prints as its name in TransformerLens 2.x, and both spellings, that of 2.x and that of 4.x, are parsed:
/// `blocks.3.attn.hook_z` and `blocks.3.attn.o.hook_in` are one point.
///
/// ```
/// use gpt2_model::hooks::Point;
///
/// assert_eq!("blocks.3.attn.hook_pattern".parse(), Ok(Point::Pattern(3)));
/// assert_eq!(Point::LnFinal.to_string(), "ln_final.hook_out");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Point {
    /// The embeddings of the tokens, (B, T, C).
    Embed,
    /// The embeddings of the positions, (B, T, C).
    PosEmbed,
    /// The residual stream before a block, (B, T, C); before block 0, the sum of the embeddings.
    ResidPre(usize),
    /// A copy of the residual stream for each head of attention, before `ln_1`, (B, T, H, C). A replacement makes each head
    /// normalize and project its own copy; the stream itself stays. `ln_1`'s points show the stream, not the copies.
    AttnIn(usize),
    /// The copies from which the queries come, (B, T, H, C), after [`Self::AttnIn`].
    QInput(usize),
    /// The copies from which the keys come, (B, T, key heads, C), after [`Self::AttnIn`].
    KInput(usize),
    /// The copies from which the values come, (B, T, key heads, C), after [`Self::AttnIn`].
    VInput(usize),
    /// The standard deviation by which `ln_1` divides, (B, T, 1).
    Ln1Scale(usize),
    /// The stream less its mean, divided by `ln_1`'s standard deviation, before γ and β, (B, T, C).
    Ln1Normalized(usize),
    /// The output of `ln_1`, (B, T, C).
    Ln1(usize),
    /// Queries, (B, T, H, D).
    Q(usize),
    /// The new positions' keys, before they go into the cache, (B, T, key heads, D).
    K(usize),
    /// The new positions' values, before they go into the cache, (B, T, key heads, D).
    V(usize),
    /// The scaled scores of all heads before the softmax, (B, H, T, S), in f32 or wider, with -inf where a key is hidden.
    /// Like [`Self::Pattern`], the scores are computed in addition to the fused kernel. A replacement replaces the
    /// weights, and so the context, without dropout of the weights in training.
    Scores(usize),
    /// The attention weights of all heads, (B, H, T, S), in f32 or wider. If a hook wants this point, the model
    /// computes all weights in addition to the fused kernel; replacing them replaces the context. Weights that a caller
    /// requests as outputs are those before the replacement.
    Pattern(usize),
    /// Each head's context, before `c_proj`, (B, T, H, D).
    Z(usize),
    /// Each head's contribution to the residual stream, (B, T, H, C); the layer adds their sum and `c_proj`'s bias.
    /// Computed only if a hook wants it; it takes H times the memory of the stream.
    Result(usize),
    /// Attention's output, which is added to the residual stream, (B, T, C).
    AttnOut(usize),
    /// The residual stream between attention and MLP, (B, T, C).
    ResidMid(usize),
    /// The stream's copy that goes to the MLP, before `ln_2`, (B, T, C). Replacing it leaves the stream as it is.
    MlpIn(usize),
    /// The standard deviation by which `ln_2` divides, (B, T, 1).
    Ln2Scale(usize),
    /// The stream less its mean, divided by `ln_2`'s standard deviation, before γ and β, (B, T, C).
    Ln2Normalized(usize),
    /// The output of `ln_2`, (B, T, C).
    Ln2(usize),
    /// The output of `c_fc`, before the activation function, (B, T, `n_inner`). A hook that wants it makes the model compute
    /// this product in addition to the fused one.
    MlpPre(usize),
    /// The MLP's neurons, after the activation function, (B, T, `n_inner`).
    MlpPost(usize),
    /// The MLP's output, which is added to the residual stream, (B, T, C).
    MlpOut(usize),
    /// The residual stream after a block, (B, T, C).
    ResidPost(usize),
    /// The standard deviation by which `ln_f` divides, (B, T, 1), or (B, 1, 1) like [`Self::LnFinal`].
    LnFinalScale,
    /// The stream less its mean, divided by `ln_f`'s standard deviation, before γ and β, (B, T, C) or (B, 1, C).
    LnFinalNormalized,
    /// The output of `ln_f`, (B, T, C), or (B, 1, C) if the last block processed only the last position.
    LnFinal,
    /// The returned logits, (B, T, V) or (B, 1, V).
    Logits,
}

/// A point of a block with its names below `blocks.N.`: the one that it prints as, then the others.
type InBlock = (fn(usize) -> Point, &'static [&'static str]);

/// Makes all lookups from one table of the points, so that none can lack a row.
macro_rules! points {
    (
        in blocks { $($inside:ident $inside_shape:literal $inside_names:tt)* }
        outside { $($outside:ident $outside_shape:literal $outside_names:tt)* }
    ) => {
        /// The points of a block, in the order of the forward pass.
        const IN_BLOCK: &[InBlock] = &[$((Point::$inside, &$inside_names)),*];

        /// The points outside the blocks, with their names.
        const OUTSIDE: &[(Point, &[&str])] = &[$((Point::$outside, &$outside_names)),*];

        impl Point {
            /// The layer of a point inside a block, counted from 0.
            #[must_use]
            pub fn layer(&self) -> Option<usize> {
                match *self {
                    $(Self::$inside(layer))|* => Some(layer),
                    $(Self::$outside)|* => None,
                }
            }

            /// Whether the pass computes this value before another one.
            #[must_use]
            pub fn comes_before(self, other: Self) -> bool {
                let place = |point: Self| match point.layer() {
                    Some(layer) => (layer, point),
                    None if point < Self::ResidPre(0) => (0, point),
                    None => (usize::MAX, point),
                };
                place(self) < place(other)
            }

            /// Its shape, and its names, inside a block without `blocks.N.`.
            fn row(self) -> (&'static str, &'static [&'static str]) {
                match self {
                    $(Self::$inside(_) => ($inside_shape, &$inside_names),)*
                    $(Self::$outside => ($outside_shape, &$outside_names),)*
                }
            }
        }
    };
}

points! {
    in blocks {
        ResidPre "(B, T, C)" ["hook_resid_pre", "hook_in"]
        AttnIn "(B, T, H, C)" ["hook_attn_in", "attn.hook_attn_in"]
        QInput "(B, T, H, C)" ["hook_q_input", "attn.hook_q_input"]
        KInput "(B, T, key heads, C)" ["hook_k_input", "attn.hook_k_input"]
        VInput "(B, T, key heads, C)" ["hook_v_input", "attn.hook_v_input"]
        Ln1Scale "(B, T, 1)" ["ln1.hook_scale"]
        Ln1Normalized "(B, T, C)" ["ln1.hook_normalized"]
        Ln1 "(B, T, C)" ["ln1.hook_out", "attn.hook_in"]
        Q "(B, T, H, D)" ["attn.hook_q", "attn.q.hook_out"]
        K "(B, T, key heads, D)" ["attn.hook_k", "attn.k.hook_out"]
        V "(B, T, key heads, D)" ["attn.hook_v", "attn.v.hook_out"]
        Scores "(B, H, T, S)" ["attn.hook_attn_scores"]
        Pattern "(B, H, T, S)" ["attn.hook_pattern"]
        Z "(B, T, H, D)" ["attn.hook_z", "attn.o.hook_in"]
        Result "(B, T, H, C)" ["attn.hook_result"]
        AttnOut "(B, T, C)" ["hook_attn_out", "attn.hook_out", "attn.hook_hidden_states", "attn.o.hook_out"]
        ResidMid "(B, T, C)" ["hook_resid_mid"]
        MlpIn "(B, T, C)" ["hook_mlp_in", "ln2.hook_in"]
        Ln2Scale "(B, T, 1)" ["ln2.hook_scale"]
        Ln2Normalized "(B, T, C)" ["ln2.hook_normalized"]
        Ln2 "(B, T, C)" ["ln2.hook_out", "mlp.hook_in", "mlp.in.hook_in"]
        MlpPre "(B, T, n_inner)" ["mlp.hook_pre", "mlp.in.hook_out"]
        MlpPost "(B, T, n_inner)" ["mlp.hook_post", "mlp.out.hook_in"]
        MlpOut "(B, T, C)" ["hook_mlp_out", "mlp.hook_out", "mlp.out.hook_out"]
        ResidPost "(B, T, C)" ["hook_resid_post", "hook_out"]
    }
    outside {
        Embed "(B, T, C)" ["hook_embed", "embed.hook_out"]
        PosEmbed "(B, T, C)" ["hook_pos_embed", "pos_embed.hook_out"]
        LnFinalScale "(B, T, 1)" ["ln_final.hook_scale"]
        LnFinalNormalized "(B, T, C)" ["ln_final.hook_normalized"]
        LnFinal "(B, T, C)" ["ln_final.hook_out", "unembed.hook_in"]
        Logits "(B, T, V)" ["logits", "unembed.hook_out", "hook_unembed"]
    }
}

impl Point {
    /// The points of one layer, in the order of the forward pass.
    pub fn of_layer(layer: usize) -> impl Iterator<Item = Self> {
        IN_BLOCK.iter().map(move |(point, _)| point(layer))
    }

    /// The points of `ln_1` of a layer: its scale, the normalized stream and its output.
    pub(crate) fn ln_1(layer: usize) -> [Self; 3] {
        [Self::Ln1Scale(layer), Self::Ln1Normalized(layer), Self::Ln1(layer)]
    }

    /// The points of `ln_2` of a layer, as for [`ln_1`](Self::ln_1).
    pub(crate) fn ln_2(layer: usize) -> [Self; 3] {
        [Self::Ln2Scale(layer), Self::Ln2Normalized(layer), Self::Ln2(layer)]
    }

    /// The points of `ln_f`, as for [`ln_1`](Self::ln_1).
    pub(crate) const LN_F: [Self; 3] = [Self::LnFinalScale, Self::LnFinalNormalized, Self::LnFinal];

    /// All points of a model with `layers` layers.
    pub fn of_model(layers: usize) -> impl Iterator<Item = Self> {
        (0..layers).flat_map(Self::of_layer).chain(OUTSIDE.iter().map(|(point, _)| *point))
    }

    /// Its names in TransformerLens: the one that it prints as, then its other spellings in 2.x and 4.x.
    ///
    /// ```
    /// use gpt2_model::hooks::Point;
    ///
    /// assert_eq!(Point::Z(3).names(), ["blocks.3.attn.hook_z", "blocks.3.attn.o.hook_in"]);
    /// ```
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let (_, names) = self.row();
        match self.layer() {
            Some(layer) => names.iter().map(|name| format!("blocks.{layer}.{name}")).collect(),
            None => names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// The shape of its value, in the letters of the [crate].
    #[must_use]
    pub fn shape(&self) -> &'static str {
        self.row().0
    }

    /// The width of a position's value, all heads together, at the points that a dictionary can read; `None` elsewhere.
    #[must_use]
    pub fn width(&self, config: &Config) -> Option<usize> {
        match self.shape() {
            "(B, T, H, D)" => Some(config.n_head * config.head_dim()),
            "(B, T, n_inner)" => Some(config.inner_dim()),
            // `ln_f` may run for the last position alone.
            "(B, T, C)" if !Self::LN_F.contains(self) => Some(config.n_embd),
            _ => None,
        }
    }

    /// Refuses a model whose value here is not a vector of `width` numbers for each position, all heads together.
    ///
    /// # Errors
    /// When the widths differ, dictionaries cannot read this point, or the model has no such layer.
    pub fn check_width(&self, width: usize, config: &Config) -> candle_core::Result<()> {
        if let Some(layer) = self.layer().filter(|&layer| layer >= config.n_layer) {
            candle_core::bail!(
                "{self}: there is no layer {layer}; the model has layers 0 to {}",
                config.n_layer - 1
            )
        }
        match self.width(config) {
            Some(found) if found == width => Ok(()),
            Some(found) => candle_core::bail!(
                "the dictionary is for {width} numbers at {self}, where this model has {found}: it belongs to another model"
            ),
            None => candle_core::bail!("{self} is no vector for each position, as a dictionary needs"),
        }
    }
}

impl fmt::Display for Point {
    /// TransformerLens' name, such as `blocks.3.attn.hook_z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer() {
            write!(f, "blocks.{layer}.")?;
        }
        f.write_str(self.row().1[0])
    }
}

impl FromStr for Point {
    type Err = ParseError;

    /// A name in TransformerLens' spelling of 2.x or 4.x. Its `hook_normalized` is before γ and β, as in 4.x and, with folded
    /// layer norms, in 2.x; `hook_out` is after them.
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let found = match s.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
            Some((layer, name)) => {
                let point = IN_BLOCK.iter().find(|(_, names)| names.contains(&name)).map(|(point, _)| point);
                point.zip(layer.parse().ok()).map(|(point, layer)| point(layer))
            }
            None => OUTSIDE.iter().find(|(_, names)| names.contains(&s)).map(|(point, _)| *point),
        };
        found.ok_or(ParseError::HOOK_POINT)
    }
}

/// The text is not a head, an intervention or a hook point; the error says which form was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub(super) &'static str);

impl ParseError {
    pub(super) const HOOK_POINT: Self = Self(
        "a hook point's name in TransformerLens, such as blocks.3.attn.hook_pattern or ln_final.hook_out",
    );
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_leads_back_to_its_point() {
        let mut names = HashSet::new();
        for point in Point::of_model(2) {
            assert_eq!(point.to_string().parse(), Ok(point));
            assert!(names.insert(point.to_string()), "{point} twice");
        }
        for &(_, names) in IN_BLOCK {
            for name in names {
                let point: Point = format!("blocks.7.{name}").parse().expect("a point");
                assert_eq!(point.layer(), Some(7));
                assert_eq!(point.to_string(), format!("blocks.7.{}", names[0]));
            }
        }
        for wrong in [
            "",
            "blocks",
            "blocks.1",
            "blocks.x.hook_in",
            "blocks.-1.hook_in",
            "hook_z",
            "blocks.1.hook_embed",
        ] {
            let message = wrong.parse::<Point>().expect_err("refused").to_string();
            assert!(message.contains("blocks.3.attn.hook_pattern"), "{message}");
        }
    }
}
