//! The part of py-lmdb's interface that the store uses: environments, transactions and cursors.
//!
//! Exceptions, their messages and the rules are py-lmdb's: what is over raises, closing an
//! environment ends its transactions, and it waits for threads inside LMDB and for a write
//! transaction of another thread, since LMDB wants that ended by the thread that began it.
//!
//! Every call holds the GIL, which is what protects the fields, unless it may wait for the disk or
//! a lock: then it counts as `inside`, and nothing is closed or remapped meanwhile.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::lmdb::{self, Api, Dbi, Val, check, error, is_over};
use crate::python;

/// A value that only threads that hold the GIL touch.
pub struct Gil<T>(pub Cell<T>);

// SAFETY: `get` and `set` take a token that the thread holds the GIL, and copy the value while it
// does. The types stored are numbers, and pointers that LMDB lets any thread use in turn.
unsafe impl<T> Send for Gil<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Gil<T> {}

impl<T: Copy> Gil<T> {
    pub fn new(value: T) -> Self {
        Gil(Cell::new(value))
    }

    pub fn get(&self, _: Python<'_>) -> T {
        self.0.get()
    }

    pub fn set(&self, _: Python<'_>, value: T) {
        self.0.set(value);
    }
}

/// A pointer that goes to a thread without the GIL; the caller keeps what it points to alive.
pub struct Sent<T>(T);

// SAFETY: `Shared::outside` has it used by one thread, the one that called it.
unsafe impl<T> Send for Sent<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Sent<T> {}

impl<T: Copy> Sent<T> {
    pub fn new(value: T) -> Self {
        Sent(value)
    }

    pub fn get(&self) -> T {
        self.0
    }
}

/// Locks a mutex that is never held while the GIL is given up, so that nobody waits for it long.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The files of the environments that are open in this process: LMDB forbids two on one file.
static OPEN: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

/// The read transaction, with its cursor, that single reads share; reset between them.
pub struct Hot {
    pub txn: *mut lmdb::Txn,
    pub cursor: *mut lmdb::Cursor,
    pub db: Dbi,
}

/// An open environment, shared by its Python object, its transactions and its readers.
pub struct Shared {
    pub api: &'static Api,
    pub env: Gil<*mut lmdb::Env>,
    inside: AtomicUsize,
    /// The thread that has a write transaction, or 0.
    writer: Gil<u64>,
    pid: u32,
    file: (u64, u64),
    /// Whether a commit waits for the disk.
    pub synced: bool,
    most_spare: usize,
    spare: Mutex<Vec<Sent<*mut lmdb::Txn>>>,
    live: Mutex<Vec<Weak<Inner>>>,
    hot: Mutex<Sent<Hot>>,
}

impl Shared {
    /// Runs `call` without the GIL; whatever it uses stays meanwhile.
    pub fn outside<R: Send>(&self, py: Python<'_>, call: impl FnOnce() -> R + Send) -> R {
        python::outside(py, &self.inside, call)
    }

    /// Runs `read` with the shared read transaction, which has begun just now; None if it cannot.
    ///
    /// The GIL is held throughout, so nothing else happens in this process meanwhile.
    pub fn hot<R>(&self, py: Python<'_>, read: impl FnOnce(&mut Hot) -> R) -> Option<R> {
        let env = self.env.get(py);
        if env.is_null() {
            return None;
        }
        let mut guard = lock(&self.hot);
        let hot = &mut guard.0;
        // SAFETY: the environment is open, and nobody else uses this transaction.
        unsafe {
            if hot.txn.is_null() {
                if (self.api.txn_begin)(env, null_mut(), lmdb::RDONLY, &mut hot.txn) != 0 {
                    hot.txn = null_mut();
                    return None;
                }
            } else if (self.api.txn_renew)(hot.txn) != 0 {
                self.end_hot(hot);
                return None;
            }
        }
        let result = read(hot);
        // SAFETY: as above.
        unsafe { (self.api.txn_reset)(hot.txn) };
        Some(result)
    }

    /// The number of the last commit of any process; it may not be visible to readers yet.
    pub fn last_commit(&self, py: Python<'_>) -> Option<usize> {
        let env = self.env.get(py);
        if env.is_null() {
            return None;
        }
        let mut found = std::mem::MaybeUninit::<lmdb::EnvInfo>::zeroed();
        // SAFETY: the environment is open; the call fills in all of it.
        unsafe {
            match (self.api.env_info)(env, found.as_mut_ptr()) {
                0 => Some(found.assume_init().last_txnid),
                _ => None,
            }
        }
    }

    fn end_hot(&self, hot: &mut Hot) {
        // SAFETY: both are this environment's, which is open, and are not used again.
        unsafe {
            if !hot.cursor.is_null() {
                (self.api.cursor_close)(hot.cursor);
            }
            if !hot.txn.is_null() {
                (self.api.txn_abort)(hot.txn);
            }
        }
        hot.cursor = null_mut();
        hot.txn = null_mut();
    }

    fn close(&self, py: Python<'_>) {
        let env = self.env.get(py);
        if env.is_null() {
            return;
        }
        // From here on, no thread begins anything.
        self.env.set(py, null_mut());
        let me = thread_id();
        while self.inside.load(Ordering::Relaxed) > 0 || ![0, me].contains(&self.writer.get(py)) {
            if python::is_ending() {
                return; // They do not come back any more. The system closes it.
            }
            py.detach(|| std::thread::sleep(Duration::from_micros(100)));
        }
        let live = std::mem::take(&mut *lock(&self.live));
        for inner in live.iter().filter_map(Weak::upgrade) {
            let txn = inner.txn.get(py);
            inner.txn.set(py, null_mut());
            if !txn.is_null() {
                // SAFETY: it is live, and this thread's if it writes.
                unsafe { (self.api.txn_abort)(txn) };
            }
        }
        self.writer.set(py, 0);
        self.end_hot(&mut lock(&self.hot).0);
        for txn in lock(&self.spare).drain(..) {
            // SAFETY: a spare transaction is reset, and used by nobody.
            unsafe { (self.api.txn_abort)(txn.get()) };
        }
        // SAFETY: none of its transactions is left.
        unsafe { (self.api.env_close)(env) };
        if let Some(open) = lock(&OPEN).as_mut() {
            open.remove(&self.file);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In the child of a fork, LMDB could not close it.
        if !self.env.0.get().is_null() && self.pid == std::process::id() {
            Python::attach(|py| self.close(py));
        }
    }
}

fn thread_id() -> u64 {
    // SAFETY: it only returns the thread's number, which is not 0.
    unsafe { libc::pthread_self() as u64 }
}

/// A transaction, shared by its Python object and its cursors.
pub struct Inner {
    pub shared: Arc<Shared>,
    pub txn: Gil<*mut lmdb::Txn>,
    write: bool,
    /// How often it has written, for the cursors.
    writes: Gil<u32>,
}

impl Inner {
    /// LMDB's transaction; raises if it is over.
    pub fn live(&self, py: Python<'_>) -> PyResult<*mut lmdb::Txn> {
        let txn = self.txn.get(py);
        if txn.is_null() {
            Err(is_over(py))
        } else {
            Ok(txn)
        }
    }

    /// Has the cursors of this transaction look again where they stand.
    pub fn noted(&self, py: Python<'_>) {
        self.writes.set(py, self.writes.get(py).wrapping_add(1));
    }

    fn over(&self, py: Python<'_>) {
        self.txn.set(py, null_mut());
        if self.write {
            self.shared.writer.set(py, 0);
        }
        let me: *const Inner = self;
        let mut live = lock(&self.shared.live);
        if let Some(at) = live.iter().rposition(|one| std::ptr::eq(one.as_ptr(), me)) {
            live.swap_remove(at);
        }
    }

    fn abort(&self, py: Python<'_>) {
        let txn = self.txn.get(py);
        if txn.is_null() {
            return;
        }
        let api = self.shared.api;
        if self.write {
            self.txn.set(py, null_mut());
            let txn = Sent::new(txn);
            // SAFETY: it is live, and from here on nobody else has it.
            self.shared
                .outside(py, || unsafe { (api.txn_abort)(txn.get()) });
            self.over(py);
            return;
        }
        self.over(py);
        let mut spare = lock(&self.shared.spare);
        // SAFETY: it is live, and from here on nobody else has it.
        unsafe {
            if spare.len() < self.shared.most_spare {
                (api.txn_reset)(txn);
                spare.push(Sent::new(txn));
            } else {
                (api.txn_abort)(txn);
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.txn.0.get().is_null() && self.shared.pid == std::process::id() {
            Python::attach(|py| self.abort(py));
        }
    }
}

/// An LMDB environment: `lmdb.open`, with what the store passes to it.
#[pyclass(frozen, module = "percola._native")]
pub struct Environment {
    pub shared: Arc<Shared>,
}

#[pymethods]
impl Environment {
    #[new]
    #[pyo3(signature = (path, *, map_size, max_dbs, max_readers, max_spare_txns, sync, metasync, readahead, mode))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        map_size: usize,
        max_dbs: c_uint,
        max_readers: c_uint,
        max_spare_txns: usize,
        sync: bool,
        metasync: bool,
        readahead: bool,
        mode: u32,
    ) -> PyResult<Self> {
        let api = lmdb::api(py)?;
        std::fs::create_dir_all(&path)?;
        let data = path.join("data.mdb");
        let known = |file: (u64, u64)| {
            lock(&OPEN)
                .as_ref()
                .is_some_and(|open| open.contains(&file))
        };
        if std::fs::metadata(&data).is_ok_and(|found| known((found.dev(), found.ino()))) {
            let text = format!(
                "The environment '{}' is already open in this process.",
                path.display()
            );
            return Err(lmdb::plain(py, &text));
        }
        let name = path.to_string_lossy().into_owned();
        let file = CString::new(std::os::unix::ffi::OsStringExt::into_vec(
            path.into_os_string(),
        ))?;
        let mut flags = lmdb::NOTLS;
        for (set, flag) in [
            (!sync, lmdb::NOSYNC),
            (!metasync, lmdb::NOMETASYNC),
            (!readahead, lmdb::NORDAHEAD),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let mut env = null_mut();
        // SAFETY: it makes an environment, which is used by this thread only until it is returned.
        check(py, "mdb_env_create", unsafe { (api.env_create)(&mut env) })?;
        let sent = Sent::new(env);
        let open = || {
            let env = sent.get();
            // SAFETY: as above; the path ends with NUL.
            unsafe {
                let steps = [
                    ("mdb_env_set_mapsize", (api.env_set_mapsize)(env, map_size)),
                    (
                        "mdb_env_set_maxreaders",
                        (api.env_set_maxreaders)(env, max_readers),
                    ),
                    ("mdb_env_set_maxdbs", (api.env_set_maxdbs)(env, max_dbs)),
                ];
                for (what, code) in steps {
                    if code != 0 {
                        return (what, code);
                    }
                }
                (
                    "",
                    (api.env_open)(env, file.as_ptr(), flags, (mode & !0o111) as libc::mode_t),
                )
            }
        };
        let (what, code) = python::outside(py, &AtomicUsize::new(0), open);
        if code != 0 {
            // SAFETY: LMDB wants an environment closed that could not be opened.
            unsafe { (api.env_close)(env) };
            return Err(error(py, if what.is_empty() { &name } else { what }, code));
        }
        let found = std::fs::metadata(&data)?;
        let file = (found.dev(), found.ino());
        lock(&OPEN).get_or_insert_default().insert(file);
        Ok(Environment {
            shared: Arc::new(Shared {
                api,
                env: Gil::new(env),
                inside: AtomicUsize::new(0),
                writer: Gil::new(0),
                pid: std::process::id(),
                file,
                synced: sync,
                most_spare: max_spare_txns,
                spare: Mutex::default(),
                live: Mutex::default(),
                hot: Mutex::new(Sent(Hot {
                    txn: null_mut(),
                    cursor: null_mut(),
                    db: 0,
                })),
            }),
        })
    }

    /// Begin a transaction.
    #[pyo3(signature = (*, write = false))]
    fn begin(&self, py: Python<'_>, write: bool) -> PyResult<Transaction> {
        let shared = &self.shared;
        let (api, env) = (shared.api, self.live(py)?);
        let mut txn = null_mut();
        if write {
            let env = Sent::new(env);
            let (code, begun) = shared.outside(py, || {
                let mut txn = null_mut();
                // SAFETY: the environment stays open while this is inside.
                let code = unsafe { (api.txn_begin)(env.get(), null_mut(), 0, &mut txn) };
                (code, Sent::new(txn))
            });
            check(py, "mdb_txn_begin", code)?;
            txn = begun.get();
            shared.writer.set(py, thread_id());
        } else {
            let spare = lock(&shared.spare).pop();
            if let Some(spare) = spare {
                // SAFETY: it is reset, this environment's, and nobody else's.
                let code = unsafe { (api.txn_renew)(spare.get()) };
                if code != 0 {
                    // SAFETY: as above.
                    unsafe { (api.txn_abort)(spare.get()) };
                    return Err(error(py, "mdb_txn_renew", code));
                }
                txn = spare.get();
            } else {
                // SAFETY: the environment is open.
                let code = unsafe { (api.txn_begin)(env, null_mut(), lmdb::RDONLY, &mut txn) };
                check(py, "mdb_txn_begin", code)?;
            }
        }
        let inner = Arc::new(Inner {
            shared: shared.clone(),
            txn: Gil::new(txn),
            write,
            writes: Gil::new(0),
        });
        lock(&shared.live).push(Arc::downgrade(&inner));
        Ok(Transaction { inner })
    }

    /// The handle of a named tree, which is created if it is not there.
    fn open_db(&self, py: Python<'_>, name: &[u8], txn: &Transaction) -> PyResult<Dbi> {
        let live = txn.inner.live(py)?;
        let name = CString::new(name)?;
        let mut found = 0;
        // SAFETY: the transaction is live, and the name ends with NUL.
        let code =
            unsafe { (self.shared.api.dbi_open)(live, name.as_ptr(), lmdb::CREATE, &mut found) };
        check(py, "mdb_dbi_open", code)?;
        Ok(found)
    }

    /// Some of what `lmdb.Environment.info` says.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let env = self.live(py)?;
        let mut found = std::mem::MaybeUninit::<lmdb::EnvInfo>::zeroed();
        // SAFETY: the environment is open; the call fills in all of it.
        let found = unsafe {
            check(
                py,
                "mdb_env_info",
                (self.shared.api.env_info)(env, found.as_mut_ptr()),
            )?;
            found.assume_init()
        };
        let info = PyDict::new(py);
        info.set_item("map_size", found.mapsize)?;
        info.set_item("last_pgno", found.last_pgno)?;
        info.set_item("last_txnid", found.last_txnid)?;
        info.set_item("max_readers", found.maxreaders)?;
        info.set_item("num_readers", found.numreaders)?;
        Ok(info)
    }

    /// Change the size of the map; 0 adopts the one that another process has given it.
    fn set_mapsize(&self, py: Python<'_>, map_size: usize) -> PyResult<()> {
        let env = self.live(py)?;
        if !lock(&self.shared.live).is_empty() || self.shared.inside.load(Ordering::Relaxed) > 0 {
            return Err(error(py, "mdb_env_set_mapsize", libc::EINVAL));
        }
        // SAFETY: no transaction is live, and holding the GIL none begins.
        check(py, "mdb_env_set_mapsize", unsafe {
            (self.shared.api.env_set_mapsize)(env, map_size)
        })
    }

    /// Free the slots of processes that have ended; return how many.
    fn reader_check(&self, py: Python<'_>) -> PyResult<c_int> {
        let (api, env) = (self.shared.api, Sent::new(self.live(py)?));
        let (code, dead) = self.shared.outside(py, || {
            let mut dead = 0;
            // SAFETY: the environment stays open while this is inside.
            (unsafe { (api.reader_check)(env.get(), &mut dead) }, dead)
        });
        check(py, "mdb_reader_check", code)?;
        Ok(dead)
    }

    /// The readers that have slots, in LMDB's words.
    fn readers(&self, py: Python<'_>) -> PyResult<String> {
        unsafe extern "C" fn add(line: *const c_char, all: *mut c_void) -> c_int {
            // SAFETY: LMDB passes a string, and the pointer that it was given, to `all` below.
            unsafe { (*all.cast::<String>()).push_str(&CStr::from_ptr(line).to_string_lossy()) };
            0
        }
        let env = self.live(py)?;
        let mut all = String::new();
        // SAFETY: the environment is open; `add` is called before this returns.
        let code = unsafe { (self.shared.api.reader_list)(env, add, (&raw mut all).cast()) };
        if code < 0 {
            return Err(error(py, "mdb_reader_list", code));
        }
        Ok(all)
    }

    /// Wait until everything committed is on disk.
    #[pyo3(signature = (force = false))]
    fn sync(&self, py: Python<'_>, force: bool) -> PyResult<()> {
        let (api, env) = (self.shared.api, Sent::new(self.live(py)?));
        let code = self.shared.outside(py, || {
            // SAFETY: the environment stays open while this is inside.
            unsafe { (api.env_sync)(env.get(), c_int::from(force)) }
        });
        check(py, "mdb_env_sync", code)
    }

    /// End its transactions and close it; idempotent.
    fn close(&self, py: Python<'_>) {
        self.shared.close(py);
    }
}

impl Environment {
    fn live(&self, py: Python<'_>) -> PyResult<*mut lmdb::Env> {
        let env = self.shared.env.get(py);
        if env.is_null() {
            Err(is_over(py))
        } else {
            Ok(env)
        }
    }
}

/// A transaction of LMDB; as a context manager it commits, or aborts if the block raises.
#[pyclass(frozen, module = "percola._native")]
pub struct Transaction {
    pub inner: Arc<Inner>,
}

#[pymethods]
impl Transaction {
    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if !kind.is_none() {
            self.inner.abort(py);
            Ok(())
        } else {
            self.commit(py)
        }
    }

    #[pyo3(signature = (key, default = None, *, db = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        default: Option<Bound<'py, PyAny>>,
        db: Option<Dbi>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let txn = self.inner.live(py)?;
        let (mut key, mut value) = (Val::of(key), Val::EMPTY);
        // SAFETY: the transaction is live; LMDB copies nothing from the key.
        let code = unsafe {
            (self.inner.shared.api.get)(txn, db.unwrap_or(lmdb::ROOT), &mut key, &mut value)
        };
        if code == lmdb::NOTFOUND {
            return Ok(default);
        }
        check(py, "mdb_get", code)?;
        // SAFETY: holding the GIL nothing ends the transaction or writes in it.
        let found = python::bytes(py, unsafe { value.bytes() })?;
        Ok(Some(found.into_any()))
    }

    #[pyo3(signature = (key, value, *, db = None))]
    fn put(&self, py: Python<'_>, key: &[u8], value: &[u8], db: Option<Dbi>) -> PyResult<bool> {
        let txn = self.inner.live(py)?;
        let (mut key, mut value) = (Val::of(key), Val::of(value));
        self.inner.noted(py);
        // SAFETY: the transaction is live; LMDB copies key and value.
        check(py, "mdb_put", unsafe {
            (self.inner.shared.api.put)(txn, db.unwrap_or(lmdb::ROOT), &mut key, &mut value, 0)
        })?;
        Ok(true)
    }

    #[pyo3(signature = (key, *, db = None))]
    fn delete(&self, py: Python<'_>, key: &[u8], db: Option<Dbi>) -> PyResult<bool> {
        let txn = self.inner.live(py)?;
        let mut key = Val::of(key);
        self.inner.noted(py);
        // SAFETY: the transaction is live.
        let code = unsafe {
            (self.inner.shared.api.del)(txn, db.unwrap_or(lmdb::ROOT), &mut key, null_mut())
        };
        if code == lmdb::NOTFOUND {
            return Ok(false);
        }
        check(py, "mdb_del", code)?;
        Ok(true)
    }

    #[pyo3(signature = (db = None))]
    fn cursor(&self, py: Python<'_>, db: Option<Dbi>) -> PyResult<Cursor> {
        let txn = self.inner.live(py)?;
        let mut cursor = null_mut();
        // SAFETY: the transaction is live.
        check(py, "mdb_cursor_open", unsafe {
            (self.inner.shared.api.cursor_open)(txn, db.unwrap_or(lmdb::ROOT), &mut cursor)
        })?;
        Ok(Cursor {
            inner: self.inner.clone(),
            cursor: Gil::new(cursor),
            at: Gil::new(None),
            seen: Gil::new(self.inner.writes.get(py)),
        })
    }

    fn stat<'py>(&self, py: Python<'py>, db: Dbi) -> PyResult<Bound<'py, PyDict>> {
        let txn = self.inner.live(py)?;
        let mut found = std::mem::MaybeUninit::<lmdb::Stat>::zeroed();
        // SAFETY: the transaction is live; the call fills in all of it.
        let found = unsafe {
            check(
                py,
                "mdb_stat",
                (self.inner.shared.api.stat)(txn, db, found.as_mut_ptr()),
            )?;
            found.assume_init()
        };
        let stat = PyDict::new(py);
        stat.set_item("psize", found.psize)?;
        stat.set_item("depth", found.depth)?;
        stat.set_item("branch_pages", found.branch_pages)?;
        stat.set_item("leaf_pages", found.leaf_pages)?;
        stat.set_item("overflow_pages", found.overflow_pages)?;
        stat.set_item("entries", found.entries)?;
        Ok(stat)
    }

    fn id(&self, py: Python<'_>) -> PyResult<usize> {
        let txn = self.inner.live(py)?;
        // SAFETY: the transaction is live.
        Ok(unsafe { (self.inner.shared.api.txn_id)(txn) })
    }

    pub fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let txn = self.inner.live(py)?;
        if !self.inner.write {
            self.inner.abort(py);
            return Ok(());
        }
        let api = self.inner.shared.api;
        self.inner.txn.set(py, null_mut());
        let txn = Sent::new(txn);
        // SAFETY: it was live, and from here on nobody else has it.
        let code = self
            .inner
            .shared
            .outside(py, || unsafe { (api.txn_commit)(txn.get()) });
        self.inner.over(py);
        check(py, "mdb_txn_commit", code)
    }

    pub fn abort(&self, py: Python<'_>) {
        self.inner.abort(py);
    }
}

/// A cursor; keys and values are bytes.
#[pyclass(frozen, module = "percola._native")]
pub struct Cursor {
    inner: Arc<Inner>,
    cursor: Gil<*mut lmdb::Cursor>,
    /// The key and value that it stands at, or None.
    at: Gil<Option<(Val, Val)>>,
    /// How often its transaction had written when it last moved.
    seen: Gil<u32>,
}

impl Cursor {
    fn go(&self, py: Python<'_>, op: c_int, key: &[u8]) -> PyResult<bool> {
        self.inner.live(py)?;
        let (mut key, mut value) = (Val::of(key), Val::EMPTY);
        // SAFETY: the transaction is live, and so is its cursor.
        let code = unsafe {
            (self.inner.shared.api.cursor_get)(self.cursor.get(py), &mut key, &mut value, op)
        };
        self.seen.set(py, self.inner.writes.get(py));
        let found = code == 0;
        self.at.set(py, found.then_some((key, value)));
        // LMDB says EINVAL of a cursor that stands nowhere.
        if !found && code != lmdb::NOTFOUND && !(code == libc::EINVAL && op == lmdb::GET_CURRENT) {
            return Err(error(py, "mdb_cursor_get", code));
        }
        Ok(found)
    }

    /// What it stands at; empty if it stands nowhere.
    fn here<'a>(&self, py: Python<'a>) -> PyResult<(&'a [u8], &'a [u8])> {
        self.inner.live(py)?;
        if self.at.get(py).is_some() && self.seen.get(py) != self.inner.writes.get(py) {
            // Its page may have moved.
            self.go(py, lmdb::GET_CURRENT, &[])?;
        }
        Ok(match self.at.get(py) {
            // SAFETY: the transaction is live, and has not written since; the caller copies the
            // bytes before it gives up the GIL.
            Some((key, value)) => unsafe { (key.bytes(), value.bytes()) },
            None => (&[], &[]),
        })
    }

    fn step(&self, py: Python<'_>, op: c_int, unplaced: c_int) -> PyResult<bool> {
        let op = if self.at.get(py).is_some() {
            op
        } else {
            unplaced
        };
        self.go(py, op, &[])
    }
}

#[pymethods]
impl Cursor {
    fn set_range(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        self.go(py, lmdb::SET_RANGE, key)
    }

    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        python::bytes(py, self.here(py)?.0)
    }

    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        python::bytes(py, self.here(py)?.1)
    }

    fn item<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (key, value) = self.here(py)?;
        Ok((python::bytes(py, key)?, python::bytes(py, value)?))
    }

    fn next(&self, py: Python<'_>) -> PyResult<bool> {
        self.step(py, lmdb::NEXT, lmdb::FIRST)
    }

    fn prev(&self, py: Python<'_>) -> PyResult<bool> {
        self.step(py, lmdb::PREV, lmdb::LAST)
    }

    fn last(&self, py: Python<'_>) -> PyResult<bool> {
        self.go(py, lmdb::LAST, &[])
    }

    /// From where it stands, or from the first entry.
    #[pyo3(signature = (keys = true, values = true))]
    fn iternext(this: Bound<'_, Self>, keys: bool, values: bool) -> Entries {
        Entries {
            cursor: this.unbind(),
            keys,
            values,
            begun: Gil::new(false),
        }
    }

    fn __iter__(this: Bound<'_, Self>) -> Entries {
        Cursor::iternext(this, true, true)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // A write transaction that is over has freed its cursors, and a fork inherits none.
        let over = self.inner.txn.0.get().is_null();
        if !(self.inner.write && over) && self.inner.shared.pid == std::process::id() {
            // SAFETY: it is open, and not used again. LMDB wants those of a read transaction
            // closed, before or after its end.
            unsafe { (self.inner.shared.api.cursor_close)(self.cursor.0.get()) };
        }
    }
}

/// An iterator over a cursor's entries.
#[pyclass(frozen, module = "percola._native")]
pub struct Entries {
    cursor: Py<Cursor>,
    keys: bool,
    values: bool,
    begun: Gil<bool>,
}

#[pymethods]
impl Entries {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let cursor = self.cursor.get();
        let going = if self.begun.get(py) {
            cursor.go(py, lmdb::NEXT, &[])?
        } else if cursor.at.get(py).is_some() {
            true
        } else {
            cursor.go(py, lmdb::FIRST, &[])?
        };
        self.begun.set(py, true);
        if !going {
            return Ok(None);
        }
        let (key, value) = cursor.here(py)?;
        Ok(Some(match (self.keys, self.values) {
            (true, false) => python::bytes(py, key)?.into_any(),
            (false, true) => python::bytes(py, value)?.into_any(),
            _ => {
                let pair = [python::bytes(py, key)?, python::bytes(py, value)?];
                PyTuple::new(py, pair)?.into_any()
            }
        }))
    }
}
