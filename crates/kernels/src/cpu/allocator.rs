//! [`KeepLarge`]: an allocator that gives the memory of one pass to the next.

#![allow(unsafe_code)]
#![allow(clippy::cast_ptr_alignment)] // blocks are aligned to 64 bytes

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;

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
    kept: Mutex<FreeBlocks>,
}

/// The smallest block that is kept: 2^16 bytes.
const SMALLEST: u32 = 16;
/// Between powers of two there are this many sizes, so that a block is at most an eighth larger than was asked for.
const STEPS: usize = 8;
const SIZES: usize = (usize::BITS - SMALLEST) as usize * STEPS;
/// Slack above peak use, as 1/N of it. Without it, each pass would give back memory at its own peak, and need it again soon.
const PART_FOR_ROOM: usize = 24;

/// Zeros of at least this many bytes come from untouched memory: the system clears a page at its first use, so that a cache
/// only costs the pages that are written.
const UNTOUCHED: usize = 1 << 20;
/// The most blocks of such memory at a time.
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
struct FreeBlocks {
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
unsafe impl Send for FreeBlocks {}

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

impl FreeBlocks {
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

    /// Gives blocks back until kept and used memory exceed peak use by the slack at most.
    fn trim(&mut self, inner: &impl GlobalAlloc) {
        let most = self.most.max(self.used);
        self.give_back(most + most / PART_FOR_ROOM, inner);
    }

    /// Gives blocks back, the largest first, until kept and used memory are at most `bound` or nothing is kept.
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
        let kept = FreeBlocks { first: [null_mut(); SIZES], untouched, bytes: 0, used: 0, most: 0 };
        Self { inner, kept: Mutex::new(kept) }
    }

    fn kept(&self) -> MutexGuard<'_, FreeBlocks> {
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
            let old = Size::of(layout);
            let new = Size::of(new_layout);
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
