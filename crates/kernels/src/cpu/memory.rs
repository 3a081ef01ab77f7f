//! Memory for the kernels: whole cache lines, and working memory that stays.

#![allow(unsafe_code)]

use half::{bf16, f16};
use rayon::prelude::*;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Bytes in a cache line.
pub(crate) const LINE: usize = size_of::<CacheLine>();

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// Numbers in whole cache lines, so that no vector lies across two.
pub(crate) struct CacheLines<E> {
    lines: Vec<CacheLine>,
    numbers: PhantomData<E>,
}

/// A type with the value 0 where all bytes are 0.
///
/// # Safety
/// Bytes that are all 0 are a value of the type.
pub(crate) unsafe trait Zero {}

// SAFETY: 0 is a u8.
unsafe impl Zero for u8 {}
// SAFETY: 0.0 has no bit set.
unsafe impl Zero for f16 {}
// SAFETY: 0.0 has no bit set.
unsafe impl Zero for bf16 {}
// SAFETY: 0.0 has no bit set.
unsafe impl Zero for f32 {}
// SAFETY: 0.0 has no bit set.
unsafe impl Zero for f64 {}

/// `len` zeros from memory that nobody has touched, or `None` if there is not as much. `vec![0.0; len]` would end the process.
pub(crate) fn try_zeros<T: Zero>(len: usize) -> Option<Vec<T>> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.size() == 0 {
        return Some(vec![]);
    }
    // SAFETY: the layout has a size, and is that of a vector with this capacity, whose zeros are values.
    unsafe {
        let memory = alloc_zeroed(layout);
        #[allow(clippy::same_length_and_capacity)] // as it was made
        (!memory.is_null()).then(|| Vec::from_raw_parts(memory.cast(), len, len))
    }
}

/// Writes `from` into `to`, of the same length, which may hold nothing yet.
#[inline(always)]
pub(crate) fn copy_into<T: Copy>(from: &[T], to: &mut [MaybeUninit<T>]) {
    assert_eq!(from.len(), to.len());
    for (to, from) in to.iter_mut().zip(from) {
        to.write(*from);
    }
}

impl<E: Copy + Send + Sync> CacheLines<E> {
    /// `chunks` pieces of `chunk` numbers, a whole number of lines. `fill(i, piece)` writes the i-th piece, on all
    /// threads, so that no single thread touches all of the memory first.
    ///
    /// # Safety
    /// `fill` writes every number of its piece. Any bytes make an `E`, and lines are aligned for it.
    pub(crate) unsafe fn filled(
        chunks: usize,
        chunk: usize,
        fill: impl Fn(usize, &mut [MaybeUninit<E>]) + Sync,
    ) -> Self {
        let per_chunk = chunk * size_of::<E>() / size_of::<CacheLine>();
        assert!(
            chunk * size_of::<E>() == per_chunk * size_of::<CacheLine>()
                && align_of::<E>() <= align_of::<CacheLine>()
        );
        let mut lines: Vec<CacheLine> = Vec::with_capacity(chunks * per_chunk);
        let spare = lines.spare_capacity_mut()[..chunks * per_chunk].par_chunks_mut(per_chunk.max(1));
        spare.enumerate().for_each(|(i, piece)| {
            // SAFETY: the piece has the size of `chunk` numbers, is aligned for them, and may hold anything.
            fill(i, unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast(), chunk) });
        });
        // SAFETY: `fill` has written every byte.
        unsafe { lines.set_len(chunks * per_chunk) };
        Self { lines, numbers: PhantomData }
    }

    /// `len` numbers, a whole number of lines, that are 0 in every byte. The system clears the pages as they are first
    /// touched.
    pub(crate) fn zeroed(len: usize) -> Self
    where
        E: Zero,
    {
        let count = len * size_of::<E>() / size_of::<CacheLine>();
        assert!(
            len * size_of::<E>() == count * size_of::<CacheLine>()
                && align_of::<E>() <= align_of::<CacheLine>()
        );
        if count == 0 {
            return Self { lines: vec![], numbers: PhantomData };
        }
        let layout = Layout::array::<CacheLine>(count).expect("memory of this size exists");
        // SAFETY: the layout has a size, and is that of a vector with this capacity, whose lines of zeros are all there.
        let lines = unsafe {
            let memory = alloc_zeroed(layout);
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            #[allow(clippy::same_length_and_capacity)] // as it was made
            Vec::from_raw_parts(memory.cast(), count, count)
        };
        Self { lines, numbers: PhantomData }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [E] {
        let len = self.lines.len() * size_of::<CacheLine>() / size_of::<E>();
        // SAFETY: the lines hold `len` numbers.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    pub(crate) fn as_slice(&self) -> &[E] {
        let len = self.lines.len() * size_of::<CacheLine>() / size_of::<E>();
        // SAFETY: the lines hold `len` numbers, which `filled` has written, or which are 0.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), len) }
    }
}

/// `len` numbers of working memory, with the contents that an earlier use left in them.
pub(crate) fn room<T: Default + Copy>(memory: &mut Vec<T>, len: usize) -> &mut [T] {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
    &mut memory[..len]
}

/// Starts to read the cache line at `from` into the second-level cache. Any address will do.
#[inline(always)]
pub(crate) fn fetch(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing but what the caches hold, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(from.cast());
    }
    #[cfg(target_arch = "aarch64")]
    super::neon::fetch(from);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = from;
}

/// [`fetch`] into the first-level cache, on x86-64: for a few lines that are used soon.
#[inline(always)]
pub(crate) fn fetch_near(from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing but what the caches hold, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    fetch(from);
}
