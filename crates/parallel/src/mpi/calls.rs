//! The functions of an MPI library, behind safe methods.
//!
//! MPI fixes the functions but, before version 5, not what a communicator or a datatype is: in Open MPI they are addresses
//! of objects in the library, in MPICH C integers, and in the ABI of MPI 5 small addresses. A handle here is a `usize`. The
//! conventions of x86-64 and of 64-bit Arm also pass it where a callee expects a C integer, which reads the lower half:
//! in registers, and as the only argument on the stack, which is the ninth of `MPI_Alltoallv`.
#![allow(unsafe_code)] // calls into C; each unsafe block says why it is sound

use super::library::OpenedLibrary;
use crate::error::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

type Handle = usize;
type Ask = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Gather = unsafe extern "C" fn(
    *const c_void,
    c_int,
    Handle,
    *mut c_void,
    *const c_int,
    *const c_int,
    Handle,
    Handle,
) -> c_int;
type AllToAll = unsafe extern "C" fn(
    *const c_void,
    *const c_int,
    *const c_int,
    Handle,
    *mut c_void,
    *const c_int,
    *const c_int,
    Handle,
    Handle,
) -> c_int;

/// The constants of a library.
#[derive(Debug, Clone, Copy)]
struct Constants {
    world: Handle,
    byte: Handle,
    /// For a status that nobody reads.
    ignore: usize,
    funneled: c_int,
}

/// The names by which the version texts of MPICH, and of all that keep to its ABI, are recognized.
const OF_MPICH: [&str; 4] = ["MPICH", "Intel(R) MPI", "MVAPICH", "CRAY"];
const MPICH: Constants = Constants { world: 0x4400_0000, byte: 0x4c00_010d, ignore: 1, funneled: 1 };
/// The ABI that MPI 5 fixes for all.
const STANDARD: Constants = Constants { world: 0x101, byte: 0x247, ignore: 0, funneled: 1024 };
/// The longest text that `MPI_Get_library_version` writes, in any library.
const LONGEST_VERSION: usize = 8192;
/// The largest number of bytes in one call: lengths are C integers.
const LARGEST: usize = c_int::MAX as usize;

/// The functions that this crate calls.
#[derive(Debug)]
pub(super) struct Calls {
    constants: Constants,
    version: String,
    initialized: unsafe extern "C" fn(*mut c_int) -> c_int,
    init_thread: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    comm_rank: Ask,
    comm_size: Ask,
    bcast: unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int,
    allgatherv: Gather,
    alltoallv: AllToAll,
    send: unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, usize) -> c_int,
    iprobe: unsafe extern "C" fn(c_int, c_int, Handle, *mut c_int, usize) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    abort: unsafe extern "C" fn(Handle, c_int) -> c_int,
}

impl Calls {
    /// The functions of an opened library, or why it is not one of MPI.
    pub(super) fn new(opened: OpenedLibrary) -> std::result::Result<Self, &'static str> {
        let OpenedLibrary { library, is_standard, .. } = opened;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: a library that exports MPI's functions exports them with the signatures of MPI's standard,
                // which are those of the fields. Handles fit as the module says.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|_| concat!("has no function ", $name))?
            };
        }
        let object = |name: &[u8]| {
            // SAFETY: nothing reads through the symbol; only its address counts, which is the handle in Open MPI.
            unsafe { library.get::<*const c_void>(name) }.ok().map(|symbol| symbol.as_raw_ptr() as usize)
        };
        let get_version: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int =
            function!("MPI_Get_library_version");
        let mut text = vec![0u8; LONGEST_VERSION];
        let mut length: c_int = 0;
        // SAFETY: the text has room for the longest version, and the function may be called before MPI starts.
        unsafe { get_version(text.as_mut_ptr().cast(), &raw mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0));
        let text = String::from_utf8_lossy(&text);
        let constants = match (object(b"ompi_mpi_comm_world\0"), object(b"ompi_mpi_byte\0")) {
            _ if is_standard => STANDARD,
            (Some(world), Some(byte)) => Constants { world, byte, ignore: 0, funneled: 1 },
            _ if OF_MPICH.iter().any(|name| text.contains(name)) => MPICH,
            _ => {
                return Err(
                    "is of an MPI whose ABI is not known: neither Open MPI's, MPICH's nor that of MPI 5",
                );
            }
        };
        let calls = Self {
            constants,
            version: short(&text),
            initialized: function!("MPI_Initialized"),
            init_thread: function!("MPI_Init_thread"),
            comm_rank: function!("MPI_Comm_rank"),
            comm_size: function!("MPI_Comm_size"),
            bcast: function!("MPI_Bcast"),
            allgatherv: function!("MPI_Allgatherv"),
            alltoallv: function!("MPI_Alltoallv"),
            send: function!("MPI_Send"),
            recv: function!("MPI_Recv"),
            iprobe: function!("MPI_Iprobe"),
            finalize: function!("MPI_Finalize"),
            abort: function!("MPI_Abort"),
        };
        // The functions must stay: an MPI library cannot be closed and opened again.
        std::mem::forget(library);
        Ok(calls)
    }

    /// The library's name and version.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Starts MPI for calls from this thread.
    pub(super) fn start(&self) -> Result<()> {
        let mut started: c_int = 0;
        // SAFETY: MPI writes one integer; the function may be called before MPI starts.
        done("MPI_Initialized", unsafe { (self.initialized)(&raw mut started) })?;
        if started != 0 {
            return Err(Error::Twice);
        }
        let mut provided: c_int = 0;
        // SAFETY: MPI lets both pointers to arguments be null.
        let code =
            unsafe { (self.init_thread)(null_mut(), null_mut(), self.constants.funneled, &raw mut provided) };
        done("MPI_Init_thread", code)?;
        if provided < self.constants.funneled {
            return Err(Error::NoThreads { library: self.version.clone() });
        }
        Ok(())
    }

    pub(super) fn rank(&self) -> Result<usize> {
        self.asked("MPI_Comm_rank", self.comm_rank)
    }

    pub(super) fn size(&self) -> Result<usize> {
        self.asked("MPI_Comm_size", self.comm_size)
    }

    /// A number of the group of all processes.
    fn asked(&self, function: &'static str, ask: Ask) -> Result<usize> {
        let mut number: c_int = 0;
        // SAFETY: both functions of this type write one integer.
        done(function, unsafe { ask(self.constants.world, &raw mut number) })?;
        Ok(usize::try_from(number).unwrap_or(0))
    }

    /// Copies `data` from rank `root` to the others.
    pub(super) fn broadcast(&self, root: usize, data: &mut [u8]) -> Result<()> {
        let length = int("MPI_Bcast", data.len())?;
        let root = int("MPI_Bcast", root)?;
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: MPI reads or writes `length` bytes, the length of the slice.
        done("MPI_Bcast", unsafe { (self.bcast)(start_mut(data), length, byte, root, world) })
    }

    /// Collects every rank's `mine` in `all`.
    pub(super) fn all_gather(&self, mine: &[u8], all: &mut [u8], lengths: &[usize]) -> Result<()> {
        let function = "MPI_Allgatherv";
        let (counts, offsets) = layout(function, lengths, all.len())?;
        let length = int(function, mine.len())?;
        let Constants { world, byte, .. } = self.constants;
        let from = start(mine);
        let to = start_mut(all);
        // SAFETY: MPI reads the `length` bytes of `mine`, and one count and offset a rank, which `Mpi::check` has made sure of;
        // it writes at the offsets, which `layout` holds within `all`.
        let code = unsafe {
            (self.allgatherv)(from, length, byte, to, counts.as_ptr(), offsets.as_ptr(), byte, world)
        };
        done(function, code)
    }

    /// Sends each rank its part of `parts`, and collects what the others send.
    pub(super) fn all_to_all(
        &self,
        parts: &[u8],
        lengths: &[usize],
        received: &mut [u8],
        from: &[usize],
    ) -> Result<()> {
        let function = "MPI_Alltoallv";
        let (counts, offsets) = layout(function, lengths, parts.len())?;
        let (from_counts, from_offsets) = layout(function, from, received.len())?;
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: `layout` holds what MPI reads within `parts`, and what it writes within `received`; there is one count and
        // offset a rank, which `Mpi::check` has made sure of.
        let code = unsafe {
            (self.alltoallv)(
                start(parts),
                counts.as_ptr(),
                offsets.as_ptr(),
                byte,
                start_mut(received),
                from_counts.as_ptr(),
                from_offsets.as_ptr(),
                byte,
                world,
            )
        };
        done(function, code)
    }

    /// Sends a number.
    pub(super) fn send_number(&self, to: usize, tag: c_int, number: u64) -> Result<()> {
        let Constants { world, byte, .. } = self.constants;
        let to = int("MPI_Send", to)?;
        let bytes = number.to_le_bytes();
        // SAFETY: MPI reads the eight bytes, and has done so when it returns.
        done("MPI_Send", unsafe { (self.send)(start(&bytes), 8, byte, to, tag, world) })
    }

    /// Receives a number.
    pub(super) fn receive_number(&self, from: usize, tag: c_int) -> Result<u64> {
        let Constants { world, byte, ignore, .. } = self.constants;
        let from = int("MPI_Recv", from)?;
        let mut bytes = [0; 8];
        // SAFETY: MPI writes the eight bytes, and no status.
        done("MPI_Recv", unsafe { (self.recv)(start_mut(&mut bytes), 8, byte, from, tag, world, ignore) })?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Whether a message is there, without waiting.
    pub(super) fn has_message(&self, from: usize, tag: c_int) -> Result<bool> {
        let mut flag: c_int = 0;
        let from = int("MPI_Iprobe", from)?;
        let Constants { world, ignore, .. } = self.constants;
        // SAFETY: MPI writes one integer, and no status.
        done("MPI_Iprobe", unsafe { (self.iprobe)(from, tag, world, &raw mut flag, ignore) })?;
        Ok(flag != 0)
    }

    /// Ends MPI on this rank, once all others do so too.
    pub(super) fn finish(&self) {
        // SAFETY: MPI has started, and nothing calls it afterwards.
        let _ = unsafe { (self.finalize)() };
    }

    /// Ends all processes of the job.
    pub(super) fn abort(&self, exit_code: i32) {
        // SAFETY: MPI has started.
        let _ = unsafe { (self.abort)(self.constants.world, exit_code) };
    }
}

/// The first line of a library's version, without what surrounds name and number.
fn short(version: &str) -> String {
    let line = version.lines().next().unwrap_or_default();
    let line = line.split(',').next().unwrap_or_default().replace(" Version:", "").replace(" v", " ");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An address for empty slices: Rust's own is the number that MPI calls `MPI_IN_PLACE`.
static NOTHING: u8 = 0;

fn start(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { (&raw const NOTHING).cast() } else { bytes.as_ptr().cast() }
}

/// MPI writes no byte through the address of an empty slice.
fn start_mut(bytes: &mut [u8]) -> *mut c_void {
    if bytes.is_empty() { (&raw const NOTHING).cast_mut().cast() } else { bytes.as_mut_ptr().cast() }
}

fn done(function: &'static str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Call { function, code }) }
}

fn int(function: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::Size { function, found: value, expected: LARGEST })
}

/// The lengths as C integers, and the place of each part; refuses parts that are not as long as the whole.
fn layout(function: &'static str, lengths: &[usize], whole: usize) -> Result<(Vec<c_int>, Vec<c_int>)> {
    let mut offsets = Vec::with_capacity(lengths.len());
    let mut end = 0;
    for length in lengths {
        offsets.push(int(function, end)?);
        end += length;
    }
    if end != whole || end > LARGEST {
        return Err(Error::Size { function, found: whole, expected: end });
    }
    let counts = lengths.iter().map(|length| int(function, *length)).collect::<Result<_>>()?;
    Ok((counts, offsets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_cut_to_name_and_number() {
        for (version, expected) in [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI 4.1.4"),
            ("MPICH Version:      5.0.1\nMPICH Release date: ...", "MPICH 5.0.1"),
            ("Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel(R) MPI Library 2021.9 for Linux* OS"),
            ("", ""),
        ] {
            assert_eq!(short(version), expected);
        }
    }

    #[test]
    fn parts_that_do_not_fill_the_whole_are_refused() {
        assert!(layout("f", &[1, 0, 2], 3).is_ok_and(|l| l == (vec![1, 0, 2], vec![0, 1, 1])));
        assert!(layout("f", &[1, 2], 4).is_err());
        assert!(layout("f", &[LARGEST, 1], LARGEST + 1).is_err());
    }
}
