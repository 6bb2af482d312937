//! LMDB's functions, taken from the library that py-lmdb has loaded into this process.
//!
//! py-lmdb's extension module contains LMDB and exports its functions. Using those, both engines
//! run the same version with the same patches, agree on the formats of the files, and this crate
//! compiles no C. Where they are not exported, the module cannot be imported, and the store uses
//! py-lmdb.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

use crate::python::Once;

pub type Dbi = c_uint;

pub enum Env {}
pub enum Txn {}
pub enum Cursor {}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Val {
    pub size: usize,
    pub data: *const c_void,
}

impl Val {
    pub const EMPTY: Val = Val {
        size: 0,
        data: std::ptr::null(),
    };

    pub fn of(bytes: &[u8]) -> Val {
        Val {
            size: bytes.len(),
            data: bytes.as_ptr().cast(),
        }
    }

    /// The bytes that LMDB has pointed it at.
    ///
    /// # Safety
    /// `self` was filled in by LMDB, and `'a` ends before the transaction does, or before it next
    /// writes.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.size) }
    }
}

#[repr(C)]
pub struct Stat {
    pub psize: c_uint,
    pub depth: c_uint,
    pub branch_pages: usize,
    pub leaf_pages: usize,
    pub overflow_pages: usize,
    pub entries: usize,
}

#[repr(C)]
pub struct EnvInfo {
    pub mapaddr: *mut c_void,
    pub mapsize: usize,
    pub last_pgno: usize,
    pub last_txnid: usize,
    pub maxreaders: c_uint,
    pub numreaders: c_uint,
}

pub const NOSYNC: c_uint = 0x10000;
pub const RDONLY: c_uint = 0x20000;
pub const NOMETASYNC: c_uint = 0x40000;
pub const NOTLS: c_uint = 0x20_0000;
pub const NORDAHEAD: c_uint = 0x80_0000;
pub const CREATE: c_uint = 0x40000;

pub const FIRST: c_int = 0;
pub const GET_CURRENT: c_int = 4;
pub const LAST: c_int = 6;
pub const NEXT: c_int = 8;
pub const PREV: c_int = 12;
pub const SET_RANGE: c_int = 17;

pub const BAD_VALSIZE: c_int = -30781;
pub const NOTFOUND: c_int = -30798;
pub const MAP_FULL: c_int = -30792;
pub const MAP_RESIZED: c_int = -30785;
const DBS_FULL: c_int = -30791;
const READERS_FULL: c_int = -30790;
const TXN_FULL: c_int = -30788;

/// The root tree, which has this handle in every environment.
pub const ROOT: Dbi = 1;

/// The longest key.
pub const KEY_BYTES: usize = 511;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// LMDB's functions, with the names that `lmdb.h` gives them behind `mdb_`.
        pub struct Api { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Api {
            fn load(library: *mut c_void, prefix: &str) -> Option<Api> {
                Some(Api {
                    $($name: {
                        let symbol = CString::new(format!("{prefix}{}", stringify!($name))).ok()?;
                        // SAFETY: `library` is open, and never closed.
                        let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
                        if found.is_null() {
                            return None;
                        }
                        // SAFETY: `lmdb.h` of LMDB 0.9 declares it so, whose interface has been
                        // the same since 0.9.14; the version is checked before anything is called.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    version: fn(*mut c_int, *mut c_int, *mut c_int) -> *const c_char;
    strerror: fn(c_int) -> *const c_char;
    env_create: fn(*mut *mut Env) -> c_int;
    env_open: fn(*mut Env, *const c_char, c_uint, libc::mode_t) -> c_int;
    env_close: fn(*mut Env);
    env_info: fn(*mut Env, *mut EnvInfo) -> c_int;
    env_set_mapsize: fn(*mut Env, usize) -> c_int;
    env_set_maxreaders: fn(*mut Env, c_uint) -> c_int;
    env_set_maxdbs: fn(*mut Env, Dbi) -> c_int;
    env_sync: fn(*mut Env, c_int) -> c_int;
    reader_check: fn(*mut Env, *mut c_int) -> c_int;
    reader_list: fn(*mut Env, unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int, *mut c_void) -> c_int;
    txn_begin: fn(*mut Env, *mut Txn, c_uint, *mut *mut Txn) -> c_int;
    txn_commit: fn(*mut Txn) -> c_int;
    txn_abort: fn(*mut Txn);
    txn_reset: fn(*mut Txn);
    txn_renew: fn(*mut Txn) -> c_int;
    txn_id: fn(*mut Txn) -> usize;
    dbi_open: fn(*mut Txn, *const c_char, c_uint, *mut Dbi) -> c_int;
    stat: fn(*mut Txn, Dbi, *mut Stat) -> c_int;
    get: fn(*mut Txn, Dbi, *mut Val, *mut Val) -> c_int;
    put: fn(*mut Txn, Dbi, *mut Val, *mut Val, c_uint) -> c_int;
    del: fn(*mut Txn, Dbi, *mut Val, *mut Val) -> c_int;
    cursor_open: fn(*mut Txn, Dbi, *mut *mut Cursor) -> c_int;
    cursor_close: fn(*mut Cursor);
    cursor_renew: fn(*mut Txn, *mut Cursor) -> c_int;
    cursor_get: fn(*mut Cursor, *mut Val, *mut Val, c_int) -> c_int;
}

impl Api {
    /// LMDB's version: three numbers.
    pub fn numbers(&self) -> (c_int, c_int, c_int) {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: it fills in three integers.
        unsafe { (self.version)(&mut major, &mut minor, &mut patch) };
        (major, minor, patch)
    }
}

static API: Once<Api> = Once::new();

/// LMDB's functions; ImportError says why they cannot be had.
pub fn api(py: Python<'_>) -> PyResult<&'static Api> {
    API.get(py, || {
        let path: String = py.import("lmdb.cpython")?.getattr("__file__")?.extract()?;
        let file = CString::new(path.as_str())?;
        // SAFETY: Python has loaded this file: it is only looked up here, not initialised.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return Err(PyImportError::new_err(format!("{path} is not loaded")));
        }
        // py-lmdb 3 contains two versions of LMDB, and prefixes the names of each.
        ["mdb09_", "mdb_"]
            .iter()
            .filter_map(|prefix| Api::load(library, prefix))
            .find(|api| matches!(api.numbers(), (0, 9, _)))
            .ok_or_else(|| {
                PyImportError::new_err("this build of py-lmdb does not export LMDB 0.9's functions")
            })
    })
}

/// py-lmdb's exception for an error of LMDB or the system, with py-lmdb's message.
pub fn error(py: Python<'_>, what: &str, code: c_int) -> PyErr {
    let name = match code {
        -30799 => "KeyExistsError",
        NOTFOUND => "NotFoundError",
        -30797 => "PageNotFoundError",
        -30796 => "CorruptedError",
        -30795 => "PanicError",
        -30794 => "VersionMismatchError",
        -30793 => "InvalidError",
        MAP_FULL => "MapFullError",
        DBS_FULL => "DbsFullError",
        READERS_FULL => "ReadersFullError",
        -30789 => "TlsFullError",
        TXN_FULL => "TxnFullError",
        -30787 => "CursorFullError",
        -30786 => "PageFullError",
        MAP_RESIZED => "MapResizedError",
        -30784 => "IncompatibleError",
        -30783 => "BadRslotError",
        -30782 => "BadTxnError",
        BAD_VALSIZE => "BadValsizeError",
        -30780 => "BadDbiError",
        libc::EACCES => "ReadonlyError",
        libc::EINVAL => "InvalidParameterError",
        libc::EAGAIN => "LockError",
        libc::ENOMEM => "MemoryError",
        libc::ENOSPC => "DiskError",
        _ => "Error",
    };
    let hint = match code {
        MAP_FULL => " (Please use a larger Environment(map_size=) parameter)",
        DBS_FULL => " (Please use a larger Environment(max_dbs=) parameter)",
        READERS_FULL => " (Please use a larger Environment(max_readers=) parameter)",
        TXN_FULL => " (Please do less work within your transaction)",
        _ => "",
    };
    let make = || -> PyResult<PyErr> {
        // SAFETY: it returns a string that stays.
        let reason = unsafe { CStr::from_ptr((api(py)?.strerror)(code)) }.to_string_lossy();
        let class = py.import("lmdb")?.getattr(name)?;
        Ok(PyErr::from_value(
            class.call1((format!("{what}: {reason}{hint}"),))?,
        ))
    };
    make().unwrap_or_else(|error| error)
}

/// py-lmdb's exception for the use of something that is over.
pub fn is_over(py: Python<'_>) -> PyErr {
    plain(py, "Attempt to operate on closed/deleted/dropped object.")
}

/// py-lmdb's general exception.
pub fn plain(py: Python<'_>, message: &str) -> PyErr {
    match py
        .import("lmdb")
        .and_then(|lmdb| lmdb.getattr("Error")?.call1((message,)))
    {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// An error unless the code is 0.
pub fn check(py: Python<'_>, what: &str, code: c_int) -> PyResult<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(error(py, what, code))
    }
}
