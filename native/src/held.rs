//! State that only threads that hold the GIL touch, and the number of forks.

use std::cell::{Ref, RefCell, RefMut};
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// How often this process or its ancestors have forked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes, in the child of a fork, that what was begun until now is its parent's.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

pub fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Something that only threads that hold the GIL touch.
pub struct Held<T>(RefCell<T>);

// SAFETY: `get` and `edit` take a token that the thread holds the GIL, and their results cannot
// outlive it. `try_get` and `try_edit` are for calls of Python's garbage collection, which has it.
unsafe impl<T> Send for Held<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Held<T> {}

impl<T> Held<T> {
    pub fn new(value: T) -> Self {
        Held(RefCell::new(value))
    }

    pub fn get<'a>(&'a self, _: Python<'a>) -> Ref<'a, T> {
        self.0.borrow()
    }

    /// No call of Python's may come before the end of what it returns, not even a decref.
    pub fn edit<'a>(&'a self, _: Python<'a>) -> RefMut<'a, T> {
        self.0.borrow_mut()
    }

    pub fn try_get(&self) -> Option<Ref<'_, T>> {
        self.0.try_borrow().ok()
    }

    pub fn try_edit(&self) -> Option<RefMut<'_, T>> {
        self.0.try_borrow_mut().ok()
    }
}

/// Hashes an address or a number that nobody chooses.
#[derive(Default)]
pub struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}
