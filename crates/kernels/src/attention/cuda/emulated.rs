//! Runs plans in the emulator.

use super::plan::{BackwardPlan, Plan};
use super::shape::{Masks, Shape, Strides};
use crate::attention::Hidden;
use crate::attention::mask::HiddenKeys;
use crate::cuda::emulator::Emulator;

/// The bytes of q, k and v, each from the start of its layout, and of a padding mask or nothing.
pub(super) struct Inputs<'a> {
    pub(super) qkv: [&'a [u8]; 3],
    pub(super) padding: &'a [u8],
    pub(super) masks: Option<Masks>,
    pub(super) hidden: &'a [Hidden],
    /// The compute capability, as a number.
    pub(super) capability: u32,
}

impl Inputs<'_> {
    fn put(&self, shape: &Shape) -> Emulator {
        let mut emulator = Emulator::of(self.capability);
        let strides = [("q", shape.q), ("k", shape.k), ("v", shape.v)];
        for ((name, Strides { batch, head, position }), bytes) in strides.into_iter().zip(self.qkv) {
            emulator.put(name, bytes);
            emulator.set(&format!("{name}.batch"), batch);
            emulator.set(&format!("{name}.head"), head);
            emulator.set(&format!("{name}.position"), position);
        }
        if !self.padding.is_empty() {
            emulator.put("padding", self.padding);
        }
        emulator.set("heads", shape.heads);
        emulator.set("queries", shape.queries);
        emulator.set("keys", shape.keys);
        emulator.set("split_keys", shape.split_keys);
        emulator.set("splits", shape.splits);
        emulator.set("section", shape.section);
        emulator.set("scale", shape.scale);
        if let Some(masks) = &self.masks {
            for i in 0..2 {
                emulator.set(&format!("seed.{i}"), masks.seed[i]);
                emulator.set(&format!("stream.{i}"), masks.stream[i]);
            }
            emulator.set("threshold", masks.threshold);
            emulator.set("kept", masks.kept);
            emulator.set("first_head", masks.first_head);
            emulator.set("all_heads", masks.all_heads);
        }
        if !self.hidden.is_empty() {
            let (heads, queries) =
                (shape.heads.unsigned_abs() as usize, shape.queries.unsigned_abs() as usize);
            let (starts, keys) = HiddenKeys::new(self.hidden, heads).by_row(heads, queries);
            let bytes =
                |numbers: Vec<u32>| numbers.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
            emulator.put("hidden_starts", &bytes(starts));
            emulator.put("hidden_keys", &bytes(keys));
        }
        emulator
    }

    /// Runs a forward pass: `out` of so many bytes, and the logarithms of the sums unless it decodes.
    pub(super) fn forward(&self, plan: &Plan, out: usize) -> [Vec<u8>; 2] {
        let mut emulator = self.put(&plan.shape);
        emulator.allocate("out", out);
        let rows = (plan.shape.queries * plan.launch.blocks.cast_signed()).unsigned_abs() as usize;
        emulator.allocate("log_sums", 4 * rows);
        if let Some((found, heads)) = plan.partials {
            emulator.allocate("found", 4 * found);
            emulator.put("finished", &vec![0; 4 * heads]);
        }
        emulator.launch(&plan.launch);
        if let Some((found, _)) = plan.partials {
            // A second step finds the counters as the first one did, and memory that nobody has written yet.
            emulator.allocate("out", out);
            emulator.allocate("found", 4 * found);
            emulator.launch(&plan.launch);
        }
        emulator.get(["out", "log_sums"])
    }

    /// Runs a backward pass: dq, dk and dv, for the bytes of the gradient of the context, of the context, and of the
    /// logarithms of the sums.
    pub(super) fn backward(
        &self,
        plan: &BackwardPlan,
        [grad, out, log_sums]: [&[u8]; 3],
        width: usize,
    ) -> [Vec<u8>; 3] {
        let mut emulator = self.put(&plan.shape);
        emulator.put("grad", grad);
        emulator.put("out", out);
        emulator.put("log_sums", log_sums);
        emulator.allocate("deltas", log_sums.len());
        emulator.set("rows", log_sums.len() / 4);
        emulator.set("width", width);
        let keys =
            grad.len() / plan.shape.queries.unsigned_abs() as usize * plan.shape.keys.unsigned_abs() as usize;
        for (name, bytes) in [("dq", grad.len()), ("dk", keys), ("dv", keys)] {
            emulator.allocate(name, bytes);
        }
        for launch in [&plan.deltas, &plan.of_queries, &plan.of_keys] {
            emulator.launch(launch);
        }
        emulator.get(["dq", "dk", "dv"])
    }
}
