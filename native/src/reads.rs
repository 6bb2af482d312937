//! Reads: a cell, several cells, the rows of a range.
//!
//! Each does what the Python function named at it does, and leaves to that function whatever is
//! not plain: an environment that is not open, an error of LMDB, damaged records, reads below the
//! safe point. So errors are raised in one place. In a transaction of Python's, LMDB refuses whatever
//! follows an error, so that is raised here.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use pyo3::buffer::PyBuffer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::cells::{Key, Place, State, number, state};
use crate::commit::Gate;
use crate::environment::{Environment, Hot, Sent, Shared, Transaction, lock};
use crate::lmdb::{self, Dbi, Val};
use crate::python;
use crate::scans::FewRows;

/// Cells of a batch from which on it is read without the GIL.
const MANY: usize = 32;

/// Single reads of whichever environment is open at the moment.
#[pyclass(frozen, module = "percola._native")]
#[derive(Default)]
pub struct Reads {
    current: Mutex<Option<(Arc<Shared>, Vec<Dbi>)>>,
    /// The last timestamp drawn, and the number of LMDB's transaction that left it so.
    drawn: Mutex<Option<(usize, u64)>>,
    /// What lets a thread write at once, and the descriptor of the turn lock.
    gate: Mutex<Option<(Arc<Gate>, c_int)>>,
    /// Whether no thread may write at once, and how many do.
    paused: AtomicBool,
    busy: AtomicUsize,
}

impl Reads {
    /// What lets a thread write at once, unless no thread may.
    pub fn gate(&self, _: Python<'_>) -> Option<(Arc<Gate>, c_int)> {
        if self.paused.load(Ordering::Relaxed) {
            return None;
        }
        lock(&self.gate).clone()
    }

    /// Does something that a pause waits for.
    pub fn busy<R>(&self, _: Python<'_>, what: impl FnOnce() -> R) -> R {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let result = what();
        self.busy.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// What `take` makes of the environment and its trees; it must not give up the GIL.
    pub fn current<R>(&self, take: impl FnOnce(&Arc<Shared>, &[Dbi]) -> R) -> Option<R> {
        let guard = lock(&self.current);
        let (shared, databases) = guard.as_ref()?;
        Some(take(shared, databases))
    }

    fn hot<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&Shared, &[Dbi], &mut Hot) -> R,
    ) -> Option<R> {
        self.current(|shared, databases| shared.hot(py, |hot| read(shared, databases, hot)))?
    }
}

#[pymethods]
impl Reads {
    #[new]
    fn new() -> Self {
        Reads::default()
    }

    /// From now on, read this environment; and write at once, as far as `owner` allows it, which is
    /// `percola.store.lmdb.environment.Environment`, with the descriptor of its turn lock.
    fn attach(
        &self,
        environment: &Environment,
        databases: Vec<Dbi>,
        owner: &Bound<'_, PyAny>,
        turn: c_int,
    ) -> PyResult<()> {
        let gate = Arc::new(Gate::of(owner)?);
        let old = lock(&self.current).replace((environment.shared.clone(), databases));
        let old_gate = lock(&self.gate).replace((gate, turn));
        *lock(&self.drawn) = None;
        // Without the mutex: closing an environment may give up the GIL.
        drop(old);
        drop(old_gate);
        Ok(())
    }

    /// From now on, have Python's functions read and write.
    fn detach(&self) {
        let old = lock(&self.current).take();
        let old_gate = lock(&self.gate).take();
        drop(old);
        drop(old_gate);
    }

    /// From now on, let no thread write at once, or let them again.
    #[setter]
    fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether a thread writes at once.
    #[getter]
    fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// In the child of a fork: forget the parent's threads.
    fn start_afresh(&self) {
        self.detach();
        self.paused.store(false, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(gate) = self.gate.try_lock()
            && let Some((gate, _)) = &*gate
        {
            gate.traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let old = lock(&self.gate).take();
        drop(old);
    }

    /// The last timestamp drawn: `percola.store.lmdb.store.LmdbStore.last_drawn`, which is `slow`.
    fn last_drawn(this: Py<Self>, slow: Py<PyAny>) -> LastDrawn {
        LastDrawn { reads: this, slow }
    }

    /// A reader of one column: `percola.store.lmdb.store.LmdbStore.reader`.
    ///
    /// `head` and `tail` are what its keys have before and behind the row, `cells` and `data`
    /// the numbers of the trees, `safe_point` the shared integers of which the first is the safe
    /// point, `blocked` what a read returns that a lock blocks, `slow` the function in Python.
    #[allow(clippy::too_many_arguments)]
    fn reader(
        this: Py<Self>,
        head: Vec<u8>,
        tail: Vec<u8>,
        cells: usize,
        data: usize,
        safe_point: PyBuffer<u64>,
        blocked: Py<PyAny>,
        slow: Py<PyAny>,
    ) -> Reader {
        Reader {
            reads: this,
            head,
            tail,
            cells,
            data,
            safe_point,
            blocked,
            slow,
        }
    }
}

/// Reads the last timestamp drawn.
#[pyclass(frozen, module = "percola._native")]
pub struct LastDrawn {
    reads: Py<Reads>,
    slow: Py<PyAny>,
}

impl LastDrawn {
    pub fn find(&self, py: Python<'_>) -> Option<u64> {
        let reads = self.reads.get();
        let mut known = lock(&reads.drawn);
        let last = reads.current(|shared, _| shared.last_commit(py))??;
        match *known {
            Some((commit, ts)) if commit == last => return Some(ts),
            _ => {}
        }
        let (commit, ts) = reads.hot(py, |shared, _, hot| {
            let (mut key, mut value) = (Val::of(b"ts"), Val::EMPTY);
            // SAFETY: the transaction has begun; nobody ends it meanwhile.
            unsafe {
                let commit = (shared.api.txn_id)(hot.txn);
                match (shared.api.get)(hot.txn, lmdb::ROOT, &mut key, &mut value) {
                    0 => Some((commit, number(value.bytes())?)),
                    lmdb::NOTFOUND => Some((commit, 0)),
                    _ => None,
                }
            }
        })??;
        *known = Some((commit, ts));
        Some(ts)
    }
}

#[pymethods]
impl LastDrawn {
    // The store refers to this, and `slow` to the store.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.slow)
    }

    fn __call__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.find(py) {
            Some(ts) => Ok(ts.into_pyobject(py)?.into_any()),
            None => python::call(self.slow.bind(py), ()),
        }
    }
}

/// Reads one column.
#[pyclass(frozen, module = "percola._native")]
pub struct Reader {
    reads: Py<Reads>,
    head: Vec<u8>,
    tail: Vec<u8>,
    cells: usize,
    data: usize,
    safe_point: PyBuffer<u64>,
    blocked: Py<PyAny>,
    slow: Py<PyAny>,
}

/// What a read of one cell has found.
pub enum Looked<R> {
    Value(R),
    None,
    Blocked,
    AskPython,
}

impl Reads {
    /// What `take` makes of the value of the cell `key` for a reader at `ts`. `trees` are the numbers
    /// of cells and data, `safe_point` the shared integers of which the first is the safe point.
    ///
    /// `take` must not call Python's functions.
    pub fn look<R>(
        &self,
        py: Python<'_>,
        key: &[u8],
        ts: u64,
        trees: (usize, usize),
        safe_point: &PyBuffer<u64>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Looked<R> {
        let found = self.hot(py, |shared, databases, hot| {
            let (Some(&cells), Some(&data)) = (databases.get(trees.0), databases.get(trees.1))
            else {
                return Looked::AskPython;
            };
            if is_below(safe_point, ts) {
                return Looked::AskPython;
            }
            if placed(shared, hot, cells) != 0 {
                return Looked::AskPython;
            }
            // SAFETY: the transaction has begun, the cursor is its own, and nobody else uses them
            // while this thread holds the GIL.
            let mut place = unsafe { Place::new(shared.api, hot.cursor) };
            match place.seek(key) {
                Ok(true) => {}
                Ok(false) => return Looked::None,
                Err(_) => return Looked::AskPython,
            }
            // SAFETY: as above.
            match unsafe { state(&mut place, hot.txn, data, key, ts) } {
                Ok(State::Value(_, value)) => Looked::Value(take(value)),
                Ok(State::Nothing | State::Deleted(_)) => Looked::None,
                Ok(State::Locked(..)) => Looked::Blocked,
                Ok(State::Unclear) | Err(_) => Looked::AskPython,
            }
        });
        found.unwrap_or(Looked::AskPython)
    }

    /// The first rows with keys in [first, last) for a reader at `ts`; see `look` and `FewRows`.
    pub fn few_rows(
        &self,
        py: Python<'_>,
        keys: (&[u8], &[u8]),
        columns: Option<&Vec<(PyBackedBytes, bool)>>,
        ts: u64,
        trees: (usize, usize),
        safe_point: &PyBuffer<u64>,
    ) -> Option<FewRows> {
        self.hot(py, |shared, databases, hot| {
            let (&cells, &data) = (databases.get(trees.0)?, databases.get(trees.1)?);
            if is_below(safe_point, ts) {
                return None;
            }
            FewRows::read(shared, hot, (cells, data), ts, keys, columns)
        })?
    }
}

/// Whether a reader at `ts` is below the safe point. Its transaction has begun: see
/// `percola.store.lmdb.safe_point`.
fn is_below(safe_point: &PyBuffer<u64>, ts: u64) -> bool {
    // SAFETY: the buffer has at least one aligned integer, which other processes change.
    let safe_point = unsafe { AtomicU64::from_ptr(safe_point.buf_ptr().cast()) };
    // After what the transaction has read of LMDB's: arm64 may change the order of two loads.
    fence(Ordering::Acquire);
    safe_point.load(Ordering::Acquire) > ts
}

#[pymethods]
impl Reader {
    /// The value of the cell for a reader at `ts`, None, or what says that a lock blocks it.
    fn read<'py>(
        &self,
        py: Python<'py>,
        row: &Bound<'py, PyAny>,
        ts: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut key = Key::new();
        let found = match (row.cast_exact::<PyBytes>(), ts.extract()) {
            (Ok(row), Ok(ts))
                if key.add(&self.head) && key.add_row(row.as_bytes()) && key.add(&self.tail) =>
            {
                let (reads, trees) = (self.reads.get(), (self.cells, self.data));
                reads.look(py, key.get(), ts, trees, &self.safe_point, |value| {
                    python::bytes(py, value)
                })
            }
            _ => Looked::AskPython,
        };
        match found {
            Looked::Value(value) => Ok(value?.into_any()),
            Looked::None => Ok(py.None().into_bound(py)),
            Looked::Blocked => Ok(self.blocked.bind(py).clone()),
            Looked::AskPython => python::call(self.slow.bind(py), (row, ts)),
        }
    }
}

/// Readies the shared cursor for a tree.
fn placed(shared: &Shared, hot: &mut Hot, cells: Dbi) -> c_int {
    let api = shared.api;
    // SAFETY: the transaction has begun, and the cursor belongs to it alone.
    unsafe {
        if !hot.cursor.is_null() && hot.db == cells {
            return (api.cursor_renew)(hot.txn, hot.cursor);
        }
        if !hot.cursor.is_null() {
            (api.cursor_close)(hot.cursor);
            hot.cursor = null_mut();
        }
        hot.db = cells;
        let code = (api.cursor_open)(hot.txn, cells, &mut hot.cursor);
        if code != 0 {
            hot.cursor = null_mut();
        }
        code
    }
}

/// A `CellState` of `percola.store.base`.
pub fn cell_state<'py>(py: Python<'py>, state: &State<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let none = || py.None().into_bound(py);
    let (lock, commit_ts, value) = match state {
        State::Locked(at, record) => {
            let lock = (*at, PyBytes::new(py, record))
                .into_pyobject(py)?
                .into_any();
            (lock, 0, none())
        }
        State::Value(at, value) => (none(), *at, python::bytes(py, value)?.into_any()),
        State::Deleted(at) => (none(), *at, none()),
        State::Nothing | State::Unclear => (none(), 0, none()),
    };
    PyTuple::new(py, [lock, PyInt::new(py, commit_ts).into_any(), value])
}

/// The states of cells: `percola.store.lmdb.store.LmdbStore.read`, within a transaction.
///
/// `keys` are theirs, without a timestamp. None: ask Python.
#[pyfunction]
pub fn states<'py>(
    py: Python<'py>,
    txn: &Transaction,
    keys: Vec<PyBackedBytes>,
    ts: u64,
    cells: Dbi,
    data: Dbi,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let inner = &txn.inner;
    let live = Sent::new(inner.live(py)?);
    let api = inner.shared.api;
    let read = || -> Result<Vec<State<'_>>, c_int> {
        let mut cursor = null_mut();
        // SAFETY: the transaction is live while the environment counts this thread as inside, or
        // while it holds the GIL.
        match unsafe { (api.cursor_open)(live.get(), cells, &mut cursor) } {
            0 => {}
            code => return Err(code),
        }
        // SAFETY: the cursor is of a live transaction, and used here only.
        let mut place = unsafe { Place::new(api, cursor) };
        let found = keys
            .iter()
            .map(|key| match place.seek(key)? {
                // SAFETY: as above.
                true => unsafe { state(&mut place, live.get(), data, key, ts) },
                false => Ok(State::Nothing),
            })
            .collect();
        // SAFETY: it is open, and not used again.
        unsafe { (api.cursor_close)(cursor) };
        found
    };
    let found = if keys.len() < MANY {
        read()
    } else {
        inner.shared.outside(py, read)
    };
    // Python could not ask this transaction again: LMDB refuses that after an error.
    let found = found.map_err(|code| lmdb::error(py, "mdb_cursor_get", code))?;
    if found.iter().any(|one| matches!(one, State::Unclear)) {
        return Ok(None);
    }
    let list = PyList::empty(py);
    for one in &found {
        list.append(cell_state(py, one)?)?;
    }
    Ok(Some(list))
}
