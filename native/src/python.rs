//! Calls of Python's functions, and giving up the GIL, by threads that may outlive the interpreter.
//!
//! Python before 3.14 ends a thread that wants the GIL while the interpreter ends, as the daemon
//! threads of a program may: by `pthread_exit`, which unwinds the stack. That cannot pass frames of
//! Rust, and so ended the process with SIGABRT. Here such a thread waits for the end of the process
//! instead, as it does in Python 3.14.

use std::cell::OnceCell;
use std::hint::black_box;
use std::mem::{forget, transmute};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi::{self, PyObject, PyThreadState};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use pyo3::{BoundObject, IntoPyObjectExt};

type Restore = unsafe extern "C-unwind" fn(*mut PyThreadState);
type Call =
    unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;

/// Whether the interpreter ends as soon as what runs at its exit has run.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Notes that the interpreter ends: nothing waits for other threads any more.
#[pyfunction]
pub fn ending() {
    ENDING.store(true, Ordering::Relaxed);
}

pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Keeps a thread that is being ended from unwinding further; to be forgotten otherwise.
///
/// That destructors run is not specified of an exit that unwinds, but is so; pyo3 relies on it too,
/// in `PyGILState_Ensure`.
struct Kept<'a>(Option<&'a AtomicUsize>);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(inside) = self.0 {
            inside.fetch_sub(1, Ordering::Relaxed);
        }
        loop {
            std::thread::park();
        }
    }
}

/// What is made at its first use, and stays.
///
/// Not pyo3's `PyOnceLock`, which its `intern!` uses too: that gives up the GIL while something is
/// being made, so that another thread may fork, and the child waits for ever for it to be made.
pub struct Once<T>(OnceCell<T>);

// SAFETY: only threads that hold the GIL touch it, as their tokens say, and they do not give it up
// between reading and writing it.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    pub const fn new() -> Self {
        Once(OnceCell::new())
    }

    /// What `make` made; nothing is kept of an error. If two threads make it, one of them is kept.
    pub fn get(&self, _: Python<'_>, make: impl FnOnce() -> PyResult<T>) -> PyResult<&T> {
        if let Some(found) = self.0.get() {
            return Ok(found);
        }
        let made = make()?;
        Ok(self.0.get_or_init(|| made))
    }
}

/// A text of Python's, made once: pyo3's `intern!`, but for `Once`.
macro_rules! intern {
    ($py:expr, $text:literal) => {{
        static TEXT: $crate::python::Once<pyo3::Py<pyo3::types::PyString>> =
            $crate::python::Once::new();
        $crate::python::text($py, &TEXT, $text)
    }};
}
pub(crate) use intern;

/// See `intern!`.
pub fn text<'py>(
    py: Python<'py>,
    once: &'static Once<Py<PyString>>,
    text: &str,
) -> &'py Bound<'py, PyString> {
    let made: &'py Py<PyString> = once.0.get_or_init(|| PyString::intern(py, text).unbind());
    made.bind(py)
}

/// Python's bytes of a value, which may be long; MemoryError where pyo3's function would panic.
pub fn bytes<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: it copies that many bytes, and returns a new object, or NULL with an exception set.
    let made = unsafe {
        let size = value.len() as ffi::Py_ssize_t;
        let made = ffi::PyBytes_FromStringAndSize(value.as_ptr().cast(), size);
        Bound::from_owned_ptr_or_err(py, made)?
    };
    Ok(made.cast_into::<PyBytes>()?)
}

/// Python's text of a value, which may be long; MemoryError as for `bytes`.
pub fn string<'py>(py: Python<'py>, value: &str) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: as in `bytes`.
    unsafe {
        let size = value.len() as ffi::Py_ssize_t;
        let made = ffi::PyUnicode_FromStringAndSize(value.as_ptr().cast(), size);
        Bound::from_owned_ptr_or_err(py, made)
    }
}

/// A copy of a value, which may be long; MemoryError where `to_vec` would end the process.
pub fn copied(value: &[u8]) -> PyResult<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(value.len())
        .map_err(|_| PyMemoryError::new_err(()))?;
    copy.extend_from_slice(value);
    Ok(copy)
}

/// Runs `call` without the GIL, counted in `inside` meanwhile.
pub fn outside<R: Send>(_: Python<'_>, inside: &AtomicUsize, call: impl FnOnce() -> R + Send) -> R {
    inside.fetch_add(1, Ordering::Relaxed);
    // SAFETY: this thread holds the GIL, as its token says, and gets it back below; `call` cannot
    // use Python meanwhile, as for `Python::detach`.
    let state = unsafe { ffi::PyEval_SaveThread() };
    let result = catch_unwind(AssertUnwindSafe(call));
    // SAFETY: the same function, which may unwind. Opaque, or the compiler knows from pyo3 that it
    // does not.
    let restore: Restore = black_box(unsafe {
        transmute::<*const (), Restore>(ffi::PyEval_RestoreThread as *const ())
    });
    let kept = Kept(Some(inside));
    // SAFETY: as above.
    unsafe { restore(state) };
    forget(kept);
    inside.fetch_sub(1, Ordering::Relaxed);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Calls a function that may be Python's.
pub fn call<'py, A>(function: &Bound<'py, PyAny>, args: A) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple>,
{
    let py = function.py();
    let args = args.into_pyobject_or_pyerr(py)?.into_bound();
    // SAFETY: as in `outside`.
    let call: Call =
        black_box(unsafe { transmute::<*const (), Call>(ffi::PyObject_Call as *const ()) });
    let kept = Kept(None);
    // SAFETY: both are live objects, and this thread holds the GIL.
    let found = unsafe { call(function.as_ptr(), args.as_ptr(), std::ptr::null_mut()) };
    forget(kept);
    // SAFETY: it returns a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, found) }
}

/// Calls a method that may be Python's.
pub fn call_method<'py, A>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    args: A,
) -> PyResult<Bound<'py, PyAny>>
where
    A: IntoPyObject<'py, Target = PyTuple>,
{
    call(&object.getattr(name)?, args)
}
