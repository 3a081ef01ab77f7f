//! [`KeepLarge`]: an allocator that gives the memory of one pass to the next.

#![allow(unsafe_code)]
#![allow(clippy::cast_ptr_alignment)] // blocks are aligned to 64 bytes

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A global allocator that keeps freed blocks of 64 KiB and more for the next request of about their size, and takes
/// everything else from `A`.
///
/// A pass of a model allocates and frees the same large tensors again and again. Most allocators return such memory to the
/// system, which clears each page before it hands it out again: up to a quarter of the time of a pass.
///
/// The memory in use and the memory kept are together at most a twenty-fourth above the peak of the memory in use. That counts
/// whole blocks: a block is at most an eighth larger than what was asked for, and one that grows counts twice while it moves.
///
/// ```
/// use candle_fused::KeepLarge;
/// use std::alloc::System;
///
/// #[global_allocator]
/// static ALLOCATOR: KeepLarge<System> = KeepLarge::new(System);
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct KeepLarge<A> {
    inner: A,
    kept: Mutex<Kept>,
}

/// The smallest block that is kept: 2^16 bytes.
const SMALLEST: u32 = 16;
/// Between powers of two there are this many sizes, so that a block is at most an eighth larger than was asked for.
const STEPS: usize = 8;
const SIZES: usize = (usize::BITS - SMALLEST) as usize * STEPS;
/// The room above the most that was in use: this part of it. Without it, each pass would give back at its own peak what it needs
/// again soon.
const PART_FOR_ROOM: usize = 24;

/// Zeros of at least this many bytes come from memory that nobody has touched: its pages are cleared when they are first used, so
/// that a cache costs what is written to it.
const UNTOUCHED: usize = 1 << 20;
/// How many blocks can be such memory.
const MOST_UNTOUCHED: usize = 512;
/// The alignment for which common allocators have untouched memory.
const COMMON_ALIGN: usize = 16;

/// Memory for a block of zeros: more than the block, which starts at the first multiple of 64.
#[derive(Debug, Clone, Copy)]
struct Untouched {
    block: *mut u8,
    memory: *mut u8,
    layout: Layout,
}

/// Free blocks by size: the first of each list; each block holds the address of the next.
#[derive(Debug)]
struct Kept {
    first: [*mut u8; SIZES],
    /// Blocks, free or in use, that lie in other memory.
    untouched: [Option<Untouched>; MOST_UNTOUCHED],
    /// The bytes of the blocks in the lists.
    bytes: usize,
    /// The bytes of large blocks in use.
    used: usize,
    /// The largest `used` so far.
    most: usize,
}

// SAFETY: the blocks of the lists belong to the allocator alone; of those in use it knows only the addresses.
unsafe impl Send for Kept {}

/// A size of blocks: which list holds them, and the layout that all of them have.
#[derive(Clone, Copy)]
struct Size {
    list: usize,
    layout: Layout,
}

impl Size {
    /// The size for a request, if it is large; unusual alignments are left to the inner allocator.
    fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        if size < 1 << SMALLEST || layout.align() > 64 {
            return None;
        }
        let power = size.ilog2();
        let step = (1usize << power) / STEPS;
        let steps = (size - (1 << power)).div_ceil(step); // 0 to STEPS: the last is the next power of two
        let bytes = (1usize << power).checked_add(steps * step)?;
        let list = (power - SMALLEST) as usize * STEPS + steps;
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        (list < SIZES).then_some(Self { list, layout })
    }

    fn bytes(self) -> usize {
        self.layout.size()
    }
}

impl Kept {
    /// A block of this size from its list.
    fn take(&mut self, size: Size) -> Option<*mut u8> {
        let block = self.first[size.list];
        if block.is_null() {
            return None;
        }
        // SAFETY: the block is free, and holds the address of the next one.
        self.first[size.list] = unsafe { block.cast::<*mut u8>().read() };
        self.bytes -= size.bytes();
        Some(block)
    }

    /// # Safety
    /// The block is free, and of this size.
    unsafe fn put(&mut self, size: Size, block: *mut u8) {
        // SAFETY: there is room for an address, and blocks are aligned for it.
        unsafe { block.cast::<*mut u8>().write(self.first[size.list]) };
        self.first[size.list] = block;
        self.bytes += size.bytes();
    }

    /// Gives blocks back until what is kept and used is hardly more than was ever used.
    fn trim(&mut self, inner: &impl GlobalAlloc) {
        let most = self.most.max(self.used);
        self.give_back(most + most / PART_FOR_ROOM, inner);
    }

    /// Gives blocks back, the largest first, until what is kept and used is at most `bound` or nothing is kept.
    fn give_back(&mut self, bound: usize, inner: &impl GlobalAlloc) {
        for list in (0..SIZES).rev() {
            while self.used + self.bytes > bound {
                let power = 1usize << (list / STEPS + SMALLEST as usize);
                let bytes = power + list % STEPS * (power / STEPS);
                let Ok(layout) = Layout::from_size_align(bytes, 64) else { break };
                let Some(block) = self.take(Size { list, layout }) else { break };
                let other =
                    self.untouched.iter_mut().find(|other| other.is_some_and(|other| other.block == block));
                let (memory, layout) = match other.and_then(Option::take) {
                    Some(other) => (other.memory, other.layout),
                    None => (block, layout),
                };
                // SAFETY: the memory came from `inner` with this layout, and nobody uses it.
                unsafe { inner.dealloc(memory, layout) };
            }
        }
    }
}

impl<A> KeepLarge<A> {
    /// Takes memory from `inner`.
    #[must_use]
    pub const fn new(inner: A) -> Self {
        let untouched = [None; MOST_UNTOUCHED];
        let kept = Kept { first: [null_mut(); SIZES], untouched, bytes: 0, used: 0, most: 0 };
        Self { inner, kept: Mutex::new(kept) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: GlobalAlloc> KeepLarge<A> {
    /// A block that is kept, or else a new one from `new`; whether it is new.
    fn get(&self, size: Size, new: impl Fn(Layout) -> *mut u8) -> (*mut u8, bool) {
        let mut kept = self.kept();
        let block = kept.take(size);
        kept.used += size.bytes();
        if let Some(block) = block {
            kept.most = kept.most.max(kept.used);
            return (block, false);
        }
        kept.trim(&self.inner);
        drop(kept);
        let mut block = new(size.layout);
        if block.is_null() {
            self.kept().give_back(0, &self.inner);
            block = new(size.layout);
        }
        let mut kept = self.kept();
        if block.is_null() {
            kept.used -= size.bytes();
        }
        kept.most = kept.most.max(kept.used);
        (block, true)
    }

    /// A new block of zeros, untouched if that is possible.
    fn zeros(&self, size: Layout) -> *mut u8 {
        let larger = Layout::from_size_align(size.size().saturating_add(size.align()), COMMON_ALIGN);
        let Some(layout) = larger.ok().filter(|_| size.size() >= UNTOUCHED) else {
            // SAFETY: the size is not 0.
            return unsafe { self.inner.alloc_zeroed(size) };
        };
        // SAFETY: as above.
        let memory = unsafe { self.inner.alloc_zeroed(layout) };
        if memory.is_null() {
            return memory;
        }
        let mut kept = self.kept();
        let Some(free) = kept.untouched.iter_mut().find(|other| other.is_none()) else {
            drop(kept);
            // SAFETY: the memory came from `inner` with this layout, and the size is not 0.
            return unsafe {
                self.inner.dealloc(memory, layout);
                self.inner.alloc_zeroed(size)
            };
        };
        // SAFETY: the memory has room for the block from its first multiple of the alignment on.
        let block = unsafe { memory.add(memory.align_offset(size.align())) };
        *free = Some(Untouched { block, memory, layout });
        block
    }
}

// SAFETY: large requests get blocks of `inner` that are at least as large and as aligned, and each is handed out once until it is
// freed; all others are passed on. The size of a block follows from the layout that it was asked for with.
unsafe impl<A: GlobalAlloc> GlobalAlloc for KeepLarge<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size; that of a block has one as well.
        let new = |layout| unsafe { self.inner.alloc(layout) };
        Size::of(layout).map_or_else(|| new(layout), |size| self.get(size, new).0)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(size) = Size::of(layout) else {
            // SAFETY: the caller's layout has a size.
            return unsafe { self.inner.alloc_zeroed(layout) };
        };
        let (block, is_new) = self.get(size, |layout| self.zeros(layout));
        if !is_new {
            // SAFETY: the block has the room that was asked for.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller got the block for this layout, so it is of this size, and uses it no more.
        unsafe {
            let Some(size) = Size::of(layout) else { return self.inner.dealloc(block, layout) };
            let mut kept = self.kept();
            kept.used -= size.bytes();
            kept.put(size, block);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the new size fits a layout; the blocks do not overlap, and both have the room
        // for what is copied. A block serves every request of its size.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(new_size, layout.align());
            let (old, new) = (Size::of(layout), Size::of(new_layout));
            match (old, new) {
                (None, None) => return self.inner.realloc(block, layout, new_size),
                (Some(old), Some(new)) if old.bytes() == new.bytes() => return block,
                _ => {}
            }
            let moved = self.alloc(new_layout);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;
    use std::collections::HashMap;

    /// The system's allocator, which counts the large blocks that it gave out, and their bytes. Each must come back as it was
    /// asked for.
    #[derive(Default)]
    struct Counted(Mutex<(usize, usize)>, Mutex<HashMap<usize, Layout>>);

    // SAFETY: passed on.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let mut count = self.0.lock().unwrap();
            if layout.size() >= 1 << SMALLEST {
                *count = (count.0 + 1, count.1 + layout.size());
            }
            // SAFETY: passed on.
            let block = unsafe { System.alloc(layout) };
            self.1.lock().unwrap().insert(block.addr(), layout);
            block
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            assert_eq!(self.1.lock().unwrap().remove(&block.addr()), Some(layout));
            if layout.size() >= 1 << SMALLEST {
                self.0.lock().unwrap().1 -= layout.size();
            }
            // SAFETY: passed on.
            unsafe { System.dealloc(block, layout) }
        }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    #[test]
    fn sizes_hold_what_was_asked_for_and_little_more() {
        assert!(Size::of(layout((1 << 16) - 1)).is_none());
        let mut last = (0, 0);
        for size in (1 << 16..1 << 20).step_by(1000).chain([1 << 20, (1 << 20) + 1, 1 << 40, (1 << 40) - 1]) {
            let found = Size::of(layout(size)).unwrap();
            assert!(size <= found.bytes() && found.bytes() <= size + size / 8, "{size}: {}", found.bytes());
            if size < 1 << 20 {
                assert!((found.list, found.bytes()) >= last, "larger requests have larger blocks");
                assert!(found.list == last.0 || found.bytes() > last.1, "a list has one size");
                last = (found.list, found.bytes());
            }
        }
        assert!(Size::of(layout(isize::MAX as usize - 63)).is_none());
        let aligned = |align| Size::of(Layout::from_size_align(1 << 17, align).unwrap());
        assert!(aligned(64).is_some() && aligned(128).is_none());
    }

    /// Random requests, each block filled with a number of its own that must still be there when it is freed.
    #[test]
    fn blocks_do_not_overlap_and_the_peak_is_hardly_above_what_was_used() {
        let allocator = KeepLarge::new(Counted::default());
        let (mut live, mut used, mut most) = (vec![], 0, 0);
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let footprint = |n: usize| Size::of(layout(n)).map_or(0, Size::bytes);
        // SAFETY: the block is in use and holds `size` bytes.
        let fill = |(block, size, byte): &(*mut u8, usize, u8)| unsafe { block.write_bytes(*byte, *size) };
        let check = |(block, size, byte): &(*mut u8, usize, u8)| {
            // SAFETY: the block is in use.
            let bytes = unsafe { std::slice::from_raw_parts(*block, *size) };
            assert!(bytes.iter().all(|b| b == byte));
        };
        for step in (0..=250u8).cycle().take(2000) {
            let grows = live.len() < 3 || (live.len() < 20 && random(2) == 0);
            if grows {
                let size = [10, 70_000, 300_000, 1 << 20][random(4)] + random(60_000);
                let zeroed = random(4) == 0;
                // SAFETY: the sizes are not 0.
                let block = unsafe {
                    if zeroed { allocator.alloc_zeroed(layout(size)) } else { allocator.alloc(layout(size)) }
                };
                if zeroed {
                    check(&(block, size, 0));
                }
                live.push((block, size, step));
                fill(&live[live.len() - 1]);
                used += footprint(size);
            } else {
                let (block, size, byte) = live.swap_remove(random(live.len()));
                check(&(block, size, byte));
                if random(3) == 0 {
                    let new = 1 + random(1_400_000);
                    // SAFETY: the block was made with this layout.
                    let block = unsafe { allocator.realloc(block, layout(size), new) };
                    check(&(block, size.min(new), byte));
                    live.push((block, new, byte));
                    fill(&live[live.len() - 1]);
                    // While it moves, both are there.
                    most = most.max(used + footprint(new));
                    used = used + footprint(new) - footprint(size);
                } else {
                    // SAFETY: as above.
                    unsafe { allocator.dealloc(block, layout(size)) };
                    used -= footprint(size);
                }
            }
            most = most.max(used);
            assert!(allocator.inner.0.lock().unwrap().1 <= most + most / PART_FOR_ROOM, "step {step}");
        }
        for (block, size, byte) in live {
            assert!(size < 1 << SMALLEST || block.addr().is_multiple_of(64));
            check(&(block, size, byte));
            // SAFETY: as above.
            unsafe { allocator.dealloc(block, layout(size)) };
        }
    }

    /// More blocks of zeros than can be untouched, kept, given back, and used again.
    #[test]
    fn zeros_are_zeros_whatever_memory_they_lie_in() {
        let allocator = KeepLarge::new(Counted::default());
        for round in 0..3 {
            let count = [520, 40, 50][round];
            let blocks: Vec<*mut u8> = (0..count)
                .map(|_| {
                    // SAFETY: the size is not 0, and the block is as large.
                    unsafe {
                        let block = allocator.alloc_zeroed(layout(UNTOUCHED));
                        assert!(block.addr().is_multiple_of(64));
                        assert!(std::slice::from_raw_parts(block, UNTOUCHED).iter().all(|byte| *byte == 0));
                        block.write_bytes(7, UNTOUCHED);
                        block
                    }
                })
                .collect();
            for block in blocks {
                // SAFETY: the block was made with this layout.
                unsafe { allocator.dealloc(block, layout(UNTOUCHED)) };
            }
            allocator.kept().give_back([0, usize::MAX, 0][round], &allocator.inner);
        }
        assert!(allocator.inner.1.lock().unwrap().is_empty(), "all memory came back");
        assert!(allocator.kept().untouched.iter().all(Option::is_none));
    }

    /// An allocator with room for `self.0` bytes of large blocks.
    struct Bounded(Mutex<usize>);

    // SAFETY: passed on.
    unsafe impl GlobalAlloc for Bounded {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let mut room = self.0.lock().unwrap();
            match room.checked_sub(layout.size()) {
                None => null_mut(),
                Some(rest) => {
                    *room = rest;
                    // SAFETY: passed on.
                    unsafe { System.alloc(layout) }
                }
            }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            *self.0.lock().unwrap() += layout.size();
            // SAFETY: passed on.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[test]
    fn what_is_kept_makes_room_for_what_is_asked_for() {
        let allocator = KeepLarge::new(Bounded(Mutex::new(8 << 20)));
        // SAFETY: the sizes are not 0, and blocks are freed with the layout that they were made with.
        unsafe {
            let [a, b] = [1 << 20, 7 << 20].map(|size| allocator.alloc(layout(size)));
            allocator.dealloc(b, layout(7 << 20));
            let c = allocator.alloc(layout(4 << 20));
            allocator.dealloc(c, layout(4 << 20));
            // Now others hold the rest of the memory: there is room only in place of the block that is kept.
            *allocator.inner.0.lock().unwrap() = 0;
            assert_eq!(allocator.kept().bytes, 4 << 20);
            let d = allocator.alloc(layout(3 << 20));
            assert!(!d.is_null());
            assert!(allocator.alloc(layout(1 << 30)).is_null(), "this is more than there is");
            assert_eq!(allocator.kept().used, 4 << 20);
            assert_eq!(allocator.kept().most, 8 << 20);
            allocator.dealloc(a, layout(1 << 20));
            allocator.dealloc(d, layout(3 << 20));
        }
    }

    #[test]
    fn a_pass_like_the_last_asks_the_system_for_nothing() {
        let allocator = KeepLarge::new(Counted::default());
        let pass = || {
            let sizes = [100_000, 3_000_000, 100_000, 400_000];
            // SAFETY: the sizes are not 0, and blocks are freed with the layout that they were made with.
            unsafe {
                let blocks = sizes.map(|size| (allocator.alloc(layout(size)), size));
                for (block, size) in blocks {
                    allocator.dealloc(block, layout(size));
                }
            }
            allocator.inner.0.lock().unwrap().0
        };
        assert_eq!((pass(), pass(), pass()), (4, 4, 4));
    }
}
