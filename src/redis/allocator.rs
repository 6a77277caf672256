//! The allocator: all of the module's memory comes from the server, so that `used_memory` and `maxmemory` count holds.
//!
//! The server's functions exist from the first step of loading on, before which nothing is allocated. Programs
//! that link the crate as a library (tests, fuzz targets) have no server, and use the system's allocator. A process
//! never changes from one to the other while a block is alive.
//!
//! A server's block is aligned for pointers and 64-bit numbers, whatever its allocator: one that keeps sizes
//! in front of its blocks aligns them to no more. A larger alignment takes a larger block, with the server's address in
//! front of the used part.

use super::api::server;
use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::mem::{align_of, size_of};
use std::ptr::NonNull;

/// Allocates a value that the server frees. All values that the server holds are allocated here.
pub(super) fn block_of<T>(value: T) -> NonNull<T> {
    const {
        assert!(align_of::<T>() <= ALIGNED, "a server aligns its blocks to no more");
    }
    // SAFETY: the allocator ends the server rather than return null (as for the server's own data), and its blocks are
    // aligned for the type.
    unsafe {
        let block = server!(RedisModule_Alloc)(size_of::<T>()).cast::<T>();
        block.write(value);
        NonNull::new_unchecked(block)
    }
}

struct Allocator;

#[cfg_attr(not(test), global_allocator)]
#[cfg_attr(test, allow(dead_code))]
static ALLOCATOR: Allocator = Allocator;

/// The alignment of every block of the server.
const ALIGNED: usize = size_of::<*mut u8>();

// SAFETY: blocks come from the server or the system, which keep the contract, and are freed by their allocator.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the table of functions is written once, while the module is loaded, before anything is allocated.
        // The server ends rather than return null. By the contract of this function the layout is not empty.
        unsafe {
            match raw::RedisModule_Alloc {
                None => System.alloc(layout),
                Some(alloc) if layout.align() <= ALIGNED => alloc(layout.size()).cast(),
                Some(alloc) => aligned(alloc, layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; by the contract of this function the block is one of ours and of this layout.
        unsafe {
            match raw::RedisModule_Free {
                None => System.dealloc(block, layout),
                Some(free) if layout.align() <= ALIGNED => free(block.cast()),
                Some(free) => free(block.cast::<*mut c_void>().sub(1).read()),
            }
        }
    }
}

/// Allocates a block with a larger alignment, behind the address of the server's block.
///
/// # Safety
/// `alloc` must be the server's.
unsafe fn aligned(alloc: unsafe extern "C" fn(usize) -> *mut c_void, layout: Layout) -> *mut u8 {
    // SAFETY: the block has room for the address, the distance to the next aligned place behind it, which is less than
    // the alignment, and what is asked for. A size that does not fit is more than any server has.
    unsafe {
        let whole = alloc(layout.size().saturating_add(layout.align()).saturating_add(ALIGNED));
        let behind = whole.cast::<u8>().add(ALIGNED);
        let block = behind.add(behind.align_offset(layout.align()));
        block.cast::<*mut c_void>().sub(1).write(whole);
        block
    }
}
