//! The processor's features and the sharing of work: instruction sets, vectors, threads, memory, and which code runs.

pub(crate) mod allocator;
pub(crate) mod column_sums;
pub(crate) mod cpu_op;
pub(crate) mod dispatch;
pub(crate) mod dot_products;
pub(crate) mod element;
pub(crate) mod explain;
pub(crate) mod isa;
pub(crate) mod memory;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod row_sums;
pub(crate) mod spinning_threads;
#[cfg(test)]
pub(crate) mod test_numbers;
pub(crate) mod vector;
