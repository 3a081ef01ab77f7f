//! Products of bf16 matrices in the tile registers of Intel's AMX.
//!
//! `tdpbf16ps` multiplies a tile of 16 rows by 32 numbers with one of 32 numbers by 16 columns, and adds the result to a
//! tile of 16 by 16 f32 numbers. A panel of bf16 numbers is a column of such tiles as it is. Products are exact and sums
//! are rounded to f32, as in the other tiles; subnormal numbers count as 0.

use super::finish::ResultPart;
use super::lanes::Lanes;
use super::numbers::{PANEL, PanelNumber};
use super::panels::Panels;
use super::rows::LeftFactor;
use super::sums::{DEPTH, Scratch, Sums};
use super::tile::Prefetch;
use crate::cpu::isa::Isa;
use crate::cpu::memory::room;
use half::bf16;
use std::any::Any;
use std::ops::Range;

/// The panels of a strip: each tile of one factor is multiplied with two of the other.
const PANELS: usize = 2;

/// The most rows of a tile.
const TILE: usize = 16;

/// The numbers in a row of the left factor's tile.
const STEP: usize = 32;

/// Two factors in bf16.
pub(super) struct Tiles<'a> {
    x: &'a [bf16],
    w: &'a Panels<bf16>,
}

impl<'a> Tiles<'a> {
    /// The factors, if they suit AMX and `isa` has it.
    pub(super) fn new<E: PanelNumber>(
        isa: Isa,
        x: &'a impl LeftFactor,
        rows: usize,
        w: &'a Panels<E>,
    ) -> Option<Self> {
        let x = x.as_bf16s()?;
        let w = (w as &dyn Any).downcast_ref::<Panels<bf16>>()?;
        assert!(x.len() >= rows * w.depth());
        (isa.has_tiles() && w.depth() > 0 && w.depth().is_multiple_of(STEP)).then_some(Self { x, w })
    }
}

impl Sums for Tiles<'_> {
    fn group(&self) -> usize {
        2 * TILE
    }

    fn row_bytes(&self) -> usize {
        self.w.depth() * size_of::<bf16>()
    }

    fn panels<S: Lanes>(&self, _: usize) -> usize {
        PANELS
    }

    #[inline(always)]
    fn sum<S: Lanes, O: PanelNumber>(
        &self,
        simd: S,
        rows: Range<usize>,
        panels: Range<usize>,
        scratch: &mut Scratch,
        mut out: ResultPart<O>,
    ) {
        let x = &self.x[rows.start * self.w.depth()..];
        let strips = self.w.starting_at(panels.start);
        let sums = room(&mut scratch.sums, rows.len() * PANELS * PANEL);
        // SAFETY: these factors exist only where AMX is available.
        unsafe { sum(x, rows.len(), strips, self.w.depth(), sums) };
        out.write(simd, 0, sums, PANELS * PANEL);
    }
}

/// `sums = x·W` for `rows` rows of `depth` numbers and the first of `strips` of [`PANELS`] panels; `depth` is a multiple of
/// [`STEP`]. Meanwhile, the next strip is fetched.
///
/// # Safety
/// AMX is available.
unsafe fn sum(x: &[bf16], rows: usize, strips: &[bf16], depth: usize, sums: &mut [f32]) {
    const WIDTH: usize = PANELS * PANEL;
    const ROWS: usize = 2 * TILE;
    assert!(depth.is_multiple_of(STEP) && x.len() >= rows * depth);
    assert!(strips.len() >= WIDTH * depth && sums.len() >= rows * WIDTH);
    let mut next = Prefetch::new(&strips[WIDTH * depth..], WIDTH * depth);
    let whole = rows / ROWS * ROWS;
    for (from, to) in [(0, whole), (whole, rows)] {
        let height = (to - from).min(ROWS);
        if height == 0 {
            continue;
        }
        // SAFETY: the caller has AMX.
        unsafe { tiles::configure(height.min(TILE), height.saturating_sub(TILE)) };
        for k in (0..depth).step_by(DEPTH) {
            let steps = DEPTH.min(depth - k) / STEP;
            for row in (from..to).step_by(ROWS) {
                let panels = [strips[k * PANEL..].as_ptr(), strips[(depth + k) * PANEL..].as_ptr()];
                let group = tiles::RowGroup {
                    x: x[row * depth + k..].as_ptr(),
                    row_bytes: depth * size_of::<bf16>(),
                    panels,
                    next: next.next(steps * tiles::FETCHED).unwrap_or(panels[0].cast()),
                    steps,
                    out: sums[row * WIDTH..].as_mut_ptr(),
                    add: k > 0,
                };
                // SAFETY: the lengths above cover `height` rows from `row` on, and rows k.. of both panels. The tiles
                // are configured for `height` rows.
                unsafe { if height > TILE { group.two() } else { group.one() } };
            }
        }
    }
    // SAFETY: as above.
    unsafe { tiles::release() };
}

/// Multiplies tiles that stay in registers, `steps` times four of them, at least once; returns the number of operations.
///
/// # Safety
/// AMX is available.
pub(crate) unsafe fn multiply(steps: usize) -> usize {
    // SAFETY: passed on.
    unsafe {
        tiles::configure(TILE, TILE);
        tiles::multiply(steps);
        tiles::release();
    }
    steps * 4 * 2 * TILE * STEP * PANEL
}

mod tiles {
    use super::{PANEL, PANELS, TILE, bf16};
    use std::arch::asm;

    /// The bytes in a row of a full tile.
    const ROW: u16 = 64;

    /// Tiles 0 to 3 are sums, 4 and 5 rows of the left factor, 6 and 7 of the right one. 0, 1 and 4 have `first` rows, 2, 3
    /// and 5 have `second`, which may be 0.
    ///
    /// # Safety
    /// AMX is available.
    #[allow(clippy::cast_possible_truncation)] // a tile has at most 16 rows
    pub(super) unsafe fn configure(first: usize, second: usize) {
        #[repr(C, align(64))]
        struct TileConfig {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, rows) in [first, first, second, second, first, second, TILE, TILE].into_iter().enumerate()
        {
            // A tile without rows has no columns either.
            (config.rows[tile], config.row_bytes[tile]) = (rows as u8, if rows == 0 { 0 } else { ROW });
        }
        // SAFETY: the caller has AMX, and the configuration is one that palette 1 allows.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly));
        }
    }

    /// Lets the system forget the tiles when it switches threads.
    ///
    /// # Safety
    /// AMX is available.
    pub(super) unsafe fn release() {
        // SAFETY: passed on.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// # Safety
    /// The tiles are configured.
    pub(super) unsafe fn multiply(steps: usize) {
        // SAFETY: the instructions touch no memory.
        unsafe {
            asm!(
                "tilezero tmm4",
                "tilezero tmm5",
                "tilezero tmm6",
                "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
    }

    /// The product of a group of rows: its factors, and the memory of its sums.
    pub(super) struct RowGroup {
        pub(super) x: *const bf16,
        pub(super) row_bytes: usize,
        pub(super) panels: [*const bf16; PANELS],
        /// The number of tiles to go through, at least one.
        pub(super) steps: usize,
        /// Memory that the next strip needs.
        pub(super) next: *const u8,
        /// Rows of PANELS·PANEL numbers.
        pub(super) out: *mut f32,
        /// Whether to add to what `out` holds.
        pub(super) add: bool,
    }

    /// The bytes that [`RowGroup::two`] fetches in a step.
    pub(super) const FETCHED: usize = 512;

    /// Fetches the tile four after the one at a register: a few rows go through their panels at the speed of memory.
    macro_rules! panel_ahead {
        ($register:literal) => {
            panel_ahead!($register: 4096 4160 4224 4288 4352 4416 4480 4544 4608 4672 4736 4800 4864 4928 4992 5056)
        };
        ($register:literal: $($at:literal)*) => {
            concat!($("prefetcht0 [{", $register, "} + ", $at, "]\n"),*)
        };
    }

    const OUT_BYTES: usize = PANELS * PANEL * size_of::<f32>();

    impl RowGroup {
        /// Up to 16 rows.
        ///
        /// # Safety
        /// The tiles are configured for the rows, and all pointers are valid for them and for the steps.
        pub(super) unsafe fn one(self) {
            // SAFETY: the caller guarantees what is read and written.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "test {add:e}, {add:e}",
                    "jz 2f",
                    "tileloadd tmm0, [{out} + {out_row}]",
                    "tileloadd tmm1, [{out} + {out_row} + 64]",
                    "2:",
                    "tileloadd tmm4, [{x} + {x_row}]",
                    "tileloadd tmm6, [{p0} + {row}]",
                    "tileloadd tmm7, [{p1} + {row}]",
                    panel_ahead!("p0"),
                    panel_ahead!("p1"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {x}, 64",
                    "add {p0}, 1024",
                    "add {p1}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{out} + {out_row}], tmm0",
                    "tilestored [{out} + {out_row} + 64], tmm1",
                    add = in(reg) u32::from(self.add),
                    out = in(reg) self.out,
                    out_row = in(reg) OUT_BYTES,
                    x = inout(reg) self.x => _,
                    x_row = in(reg) self.row_bytes,
                    p0 = inout(reg) self.panels[0] => _,
                    p1 = inout(reg) self.panels[1] => _,
                    row = in(reg) usize::from(ROW),
                    steps = inout(reg) self.steps => _,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }

        /// 17 to 32 rows.
        ///
        /// # Safety
        /// The conditions of [`one`](Self::one) hold.
        pub(super) unsafe fn two(self) {
            // SAFETY: the caller guarantees what is read and written.
            unsafe {
                let (second, out_second) =
                    (self.x.byte_add(TILE * self.row_bytes), self.out.byte_add(TILE * OUT_BYTES));
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "test {add:e}, {add:e}",
                    "jz 2f",
                    "tileloadd tmm0, [{out} + {out_row}]",
                    "tileloadd tmm1, [{out} + {out_row} + 64]",
                    "tileloadd tmm2, [{out2} + {out_row}]",
                    "tileloadd tmm3, [{out2} + {out_row} + 64]",
                    "2:",
                    "tileloadd tmm4, [{x} + {x_row}]",
                    "tileloadd tmm6, [{p0} + {row}]",
                    "tileloadd tmm7, [{p1} + {row}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + 64]",
                    "prefetcht1 [{next} + 128]",
                    "prefetcht1 [{next} + 192]",
                    "tileloadd tmm5, [{x2} + {x_row}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "prefetcht1 [{next} + 256]",
                    "prefetcht1 [{next} + 320]",
                    "prefetcht1 [{next} + 384]",
                    "prefetcht1 [{next} + 448]",
                    "add {next}, 512",
                    "add {x}, 64",
                    "add {x2}, 64",
                    "add {p0}, 1024",
                    "add {p1}, 1024",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{out} + {out_row}], tmm0",
                    "tilestored [{out} + {out_row} + 64], tmm1",
                    "tilestored [{out2} + {out_row}], tmm2",
                    "tilestored [{out2} + {out_row} + 64], tmm3",
                    add = in(reg) u32::from(self.add),
                    out = in(reg) self.out,
                    out2 = in(reg) out_second,
                    out_row = in(reg) OUT_BYTES,
                    x = inout(reg) self.x => _,
                    x2 = inout(reg) second => _,
                    next = inout(reg) self.next => _,
                    x_row = in(reg) self.row_bytes,
                    p0 = inout(reg) self.panels[0] => _,
                    p1 = inout(reg) self.panels[1] => _,
                    row = in(reg) usize::from(ROW),
                    steps = inout(reg) self.steps => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    }
}
