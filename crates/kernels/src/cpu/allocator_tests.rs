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
    let mut live = vec![];
    let mut used = 0;
    let mut most = 0;
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
