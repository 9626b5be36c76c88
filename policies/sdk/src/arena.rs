//! The guest's allocator: a static arena first, the host's memory after that.
//!
//! An instance lives for one call, so nothing is ever given back except the newest block. Growing a memory costs a page
//! protection change under a lock of the whole host process; an ordinary decision fits in the arena and never grows
//! (wasm-limits 2.5). There is one thread in a guest.
#![allow(unsafe_code, reason = "a global allocator hands out raw memory; every block below says why it is sound")]

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::memory_grow;
use core::cell::UnsafeCell;
use core::ptr;

const ARENA: usize = 256 * 1024;
const PAGE: usize = 64 * 1024;

#[repr(C, align(16))]
struct Arena(UnsafeCell<[u8; ARENA]>);

// SAFETY: WebAssembly without threads runs one thread.
unsafe impl Sync for Arena {}

static BYTES: Arena = Arena(UnsafeCell::new([0; ARENA]));

struct Bump {
    /// Next free address and end of the current chunk; both 0 before the first allocation.
    chunk: UnsafeCell<(usize, usize)>,
}

// SAFETY: WebAssembly without threads runs one thread.
unsafe impl Sync for Bump {}

#[global_allocator]
static ALLOCATOR: Bump = Bump { chunk: UnsafeCell::new((0, 0)) };

impl Bump {
    fn take(&self, layout: Layout) -> Option<usize> {
        // SAFETY: one thread, and no reference into the cell outlives this statement.
        let (mut next, mut end) = unsafe { *self.chunk.get() };
        if end == 0 {
            next = BYTES.0.get() as usize;
            end = next + ARENA;
        }
        let mut start = next.checked_next_multiple_of(layout.align())?;
        if start.checked_add(layout.size())? > end {
            let wanted = layout.size().checked_add(layout.align())?.checked_next_multiple_of(PAGE)?;
            let page = memory_grow::<0>(wanted / PAGE);
            if page == usize::MAX {
                return None;
            }
            let fresh = page * PAGE;
            // Where the new pages follow the current chunk, it goes on; otherwise its rest is left.
            if fresh != end {
                start = fresh.checked_next_multiple_of(layout.align())?;
            }
            end = fresh.checked_add(wanted)?;
        }
        // SAFETY: as above.
        unsafe { *self.chunk.get() = (start + layout.size(), end) };
        Some(start)
    }
}

// SAFETY: `take` returns aligned, unshared ranges of the arena or of memory that was just grown, and never one range
// twice, except after `dealloc` of the newest block.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).map_or(ptr::null_mut(), |address| address as *mut u8)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: one thread.
        let chunk = unsafe { &mut *self.chunk.get() };
        if block as usize + layout.size() == chunk.0 {
            chunk.0 = block as usize;
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: one thread.
        let chunk = unsafe { &mut *self.chunk.get() };
        let newest = block as usize + layout.size() == chunk.0;
        if newest && (block as usize).checked_add(new_size).is_some_and(|end| end <= chunk.1) {
            chunk.0 = block as usize + new_size;
            return block;
        }
        // SAFETY: the caller's alignment is valid and its size was checked by the caller (GlobalAlloc::realloc).
        let fresh = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !fresh.is_null() {
            // SAFETY: both blocks are at least that long, and a fresh block overlaps no live one.
            unsafe { ptr::copy_nonoverlapping(block, fresh, layout.size().min(new_size)) };
        }
        fresh
    }
}
