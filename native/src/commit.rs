//! The one-step commit: the checks and puts of `LmdbStore._commit_cells`, within a transaction of
//! Python's, or within one that is begun and committed here.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::cells::{
    CHANGE, DELETE, HEADER, INLINE, INLINE_BYTES, Key, LAST_CHANGE, LOCK, MAX_TS, PUT, Place,
    SYSTEM, TABLE, TOP, column_at, newest_change, number,
};
use crate::environment::{Sent, Transaction};
use crate::lmdb::{self, Api, Dbi, Val};
use crate::python::{self, intern};
use crate::reads::Reads;

const SILENT: u64 = 1 << 63;
/// Cells from which on they are written without the GIL.
const MANY: usize = 32;
/// How long to try for the turn before Python waits for it.
const SPIN: Duration = Duration::from_micros(60);

pub struct Write {
    pub key: Vec<u8>,
    pub op: u8,
    pub value: Option<PyBackedBytes>,
    pub notifies: bool,
    pub silent: bool,
}

impl Write {
    /// A `OneStepWrite` of `percola.store.base`; None: ask Python.
    fn of(write: &Bound<'_, PyAny>, prefixes: &Bound<'_, PyDict>) -> Option<Write> {
        let write = write.cast::<PyTuple>().ok()?;
        let cell = write.get_item(0).ok()?;
        let cell = cell.cast::<PyTuple>().ok()?;
        let op: u8 = write.get_item(1).ok()?.extract().ok()?;
        if !matches!(op, PUT | DELETE | LOCK) {
            return None;
        }
        let value = write.get_item(2).ok()?;
        let observed = write.get_item(3).ok()?;
        let table = cell.get_item(0).ok()?;
        let prefix = prefixes.get_item(table.cast::<PyString>().ok()?).ok()??;
        let (row, column) = (cell.get_item(1).ok()?, cell.get_item(2).ok()?);
        let mut key = Key::new();
        let fits = key.add(prefix.cast::<PyBytes>().ok()?.as_bytes())
            && key.add_row(row.cast::<PyBytes>().ok()?.as_bytes())
            && key.add(b"\0\x01")
            && key.add(column.cast::<PyBytes>().ok()?.as_bytes())
            && key.add(b"\0");
        fits.then_some(Write {
            key: key.get().to_vec(),
            op,
            value: value.extract().ok()?,
            notifies: observed
                .cast::<PyBool>()
                .is_ok_and(|observed| observed.is_true()),
            silent: observed.is_none() && op != LOCK,
        })
    }
}

/// The writes of a list of them; None: ask Python.
fn parsed(writes: &Bound<'_, PyAny>, prefixes: &Bound<'_, PyDict>) -> Option<Vec<Write>> {
    let writes = writes.cast::<PyList>().ok()?;
    writes
        .iter()
        .map(|write| Write::of(&write, prefixes))
        .collect()
}

/// What stopped a commit.
enum Stopped {
    Failed(&'static str, c_int),
    /// The number of the write, the lock, the commit_ts of a newer write.
    Conflict(usize, Option<(u64, Vec<u8>)>, u64),
    AskPython,
}

/// The commit_ts, or what `LmdbStore` is told of a conflict.
fn told<'py>(
    py: Python<'py>,
    outcome: Result<u64, Stopped>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(match outcome {
        Ok(commit_ts) => Some(commit_ts.into_pyobject(py)?.into_any()),
        Err(Stopped::AskPython) => None,
        Err(Stopped::Failed(what, code)) => return Err(lmdb::error(py, what, code)),
        Err(Stopped::Conflict(at, lock, commit_ts)) => {
            let lock = lock.map(|(ts, record)| (ts, PyBytes::new(py, &record)));
            Some((at, lock, commit_ts).into_pyobject(py)?.into_any())
        }
    })
}

/// Trees by their handles.
#[derive(Clone, Copy)]
struct Trees {
    cells: Dbi,
    data: Dbi,
    notify: Dbi,
    changes: Dbi,
}

/// What the keys of a table begin with.
type Table = [u8; TABLE];

fn table_of(key: &[u8]) -> Option<Table> {
    key.get(..TABLE)?.try_into().ok()
}

/// Those of the tables of some writes that are in a set of Python's: the ones that keep a feed.
pub fn with_feeds(writes: &[Write], known: &Bound<'_, PyAny>) -> PyResult<Vec<Table>> {
    let (mut seen, mut found) = (Vec::new(), Vec::new());
    if known.is_truthy()? {
        for table in writes.iter().filter_map(|write| table_of(&write.key)) {
            if !seen.contains(&table) {
                seen.push(table);
                if known.contains(PyBytes::new(known.py(), &table))? {
                    found.push(table);
                }
            }
        }
    }
    Ok(found)
}

/// Whether a cell is in one of Percola's own columns.
fn is_own(key: &[u8]) -> bool {
    column_at(key).is_some_and(|at| key.get(at) == Some(&SYSTEM))
}

/// Checks all cells, draws a commit_ts and puts records, long values and notify entries, and
/// entries of feeds for the tables `fed`.
///
/// # Safety
/// The transaction is live, writes, and is used by nobody else.
unsafe fn commit(
    api: &'static Api,
    txn: *mut lmdb::Txn,
    trees: Trees,
    start_ts: u64,
    writes: &[Write],
    fed: &[Table],
) -> Result<u64, Stopped> {
    let put = |db: Dbi, key: &[u8], value: &[u8]| {
        let (mut key, mut value) = (Val::of(key), Val::of(value));
        // SAFETY: as the caller promises; LMDB copies key and value.
        match unsafe { (api.put)(txn, db, &mut key, &mut value, 0) } {
            0 => Ok(()),
            code => Err(Stopped::Failed("mdb_put", code)),
        }
    };
    let mut cursor = null_mut();
    // SAFETY: as the caller promises.
    match unsafe { (api.cursor_open)(txn, trees.cells, &mut cursor) } {
        0 => {}
        code => return Err(Stopped::Failed("mdb_cursor_open", code)),
    }
    // What the records of the cells that are only locked repeat, in the order of these.
    let mut changes = Vec::new();
    let checked = (|| {
        // SAFETY: it is this transaction's, and nothing is written before it is closed.
        let mut place = unsafe { Place::new(api, cursor) };
        for (at, write) in writes.iter().enumerate() {
            let key = &write.key[..];
            place
                .seek(key)
                .map_err(|code| Stopped::Failed("mdb_cursor_get", code))?;
            if let Some(stamp) = place.key.strip_prefix(key) {
                let ts = number(stamp).ok_or(Stopped::AskPython)?;
                if ts <= MAX_TS {
                    return Err(Stopped::Conflict(at, Some((ts, place.value.to_vec())), 0));
                }
                if TOP - ts > start_ts {
                    return Err(Stopped::Conflict(at, None, TOP - ts));
                }
            }
            if write.op == LOCK {
                let change = newest_change(&mut place, key)
                    .map_err(|code| Stopped::Failed("mdb_cursor_get", code))?;
                changes.push(change.ok_or(Stopped::AskPython)?);
            }
        }
        Ok(())
    })();
    // SAFETY: it is open, and not used again.
    unsafe { (api.cursor_close)(cursor) };
    checked?;

    let (mut name, mut value) = (Val::of(b"ts"), Val::EMPTY);
    // SAFETY: as the caller promises.
    let drawn = match unsafe { (api.get)(txn, lmdb::ROOT, &mut name, &mut value) } {
        // SAFETY: nothing is written before it is used.
        0 => number(unsafe { value.bytes() }).ok_or(Stopped::AskPython)?,
        lmdb::NOTFOUND => 0,
        code => return Err(Stopped::Failed("mdb_get", code)),
    };
    let commit_ts = drawn + 1;
    let plain = commit_ts.to_be_bytes();
    put(lmdb::ROOT, b"ts", &plain)?;
    let mut changes = changes.iter();
    for write in writes {
        let mut record = [0; CHANGE + HEADER + INLINE_BYTES];
        let mut size = HEADER;
        let start = start_ts | if write.silent { SILENT } else { 0 };
        record[0] = write.op;
        record[2..HEADER].copy_from_slice(&start.to_be_bytes());
        let entry = |stamp: u64| {
            let mut entry = Key::new();
            match entry.add(&write.key) && entry.add(&stamp.to_be_bytes()) {
                true => Ok(entry),
                false => Err(Stopped::Failed("mdb_put", lmdb::BAD_VALSIZE)),
            }
        };
        if write.op == LOCK {
            let change = changes.next().ok_or(Stopped::AskPython)?;
            record[1] = LAST_CHANGE;
            size += change.len();
            record[HEADER..size].copy_from_slice(change);
        } else if let Some(value) = &write.value {
            if value.len() <= INLINE_BYTES {
                record[1] = INLINE;
                size += value.len();
                record[HEADER..size].copy_from_slice(value);
            } else {
                put(trees.data, entry(TOP - start_ts)?.get(), value)?;
            }
        }
        put(trees.cells, entry(TOP - commit_ts)?.get(), &record[..size])?;
        if write.notifies {
            put(trees.notify, entry(commit_ts)?.get(), &[])?;
        }
        let table = table_of(&write.key).filter(|table| fed.contains(table));
        if let Some(table) = table.filter(|_| write.op != LOCK && !is_own(&write.key)) {
            let mut change = Key::new();
            if !(change.add(&table) && change.add(&plain) && change.add(&write.key[TABLE..])) {
                return Err(Stopped::Failed("mdb_put", lmdb::BAD_VALSIZE));
            }
            put(trees.changes, change.get(), &[])?;
        }
    }
    Ok(commit_ts)
}

/// `LmdbStore._commit_cells`: returns commit_ts, or why it was refused, as (the number of the
/// write, the lock or None, the commit_ts of a newer write). None: ask Python; nothing is written.
#[pyfunction]
pub fn commit_cells<'py>(
    py: Python<'py>,
    txn: &Transaction,
    trees: (Dbi, Dbi, Dbi, Dbi),
    start_ts: u64,
    writes: &Bound<'py, PyAny>,
    prefixes: &Bound<'py, PyDict>,
    feeds: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let inner = &txn.inner;
    let live = Sent::new(inner.live(py)?);
    let Some(parsed) = parsed(writes, prefixes) else {
        return Ok(None);
    };
    let trees = Trees {
        cells: trees.0,
        data: trees.1,
        notify: trees.2,
        changes: trees.3,
    };
    let fed = with_feeds(&parsed, feeds)?;
    let api = inner.shared.api;
    inner.noted(py);
    // SAFETY: the transaction is live while the environment counts this thread as inside, or
    // while it holds the GIL, and no other thread has it.
    let run = || unsafe { commit(api, live.get(), trees, start_ts, &parsed, &fed) };
    let outcome = if parsed.len() < MANY {
        run()
    } else {
        inner.shared.outside(py, run)
    };
    told(py, outcome)
}

/// The turn among the processes' writers: `percola.platform.file_locks.TurnLock`.
struct Turn(c_int);

impl Turn {
    /// Takes it, if it is free.
    fn free(file: c_int) -> Option<Turn> {
        // SAFETY: it only takes a number.
        match unsafe { libc::flock(file, libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Some(Turn(file)),
            _ => None,
        }
    }

    /// Takes it, if it is free soon.
    fn take(file: c_int) -> Option<Turn> {
        let until = Instant::now() + SPIN;
        loop {
            let taken = Turn::free(file);
            if taken.is_some()
                || std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock
                || Instant::now() >= until
            {
                return taken;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::flock(self.0, libc::LOCK_UN) };
    }
}

/// One-step commits, each in a write transaction of its own:
/// `percola.store.lmdb.store.LmdbStore.commit_one_step`.
#[pyclass(frozen, module = "percola._native")]
pub struct Commits {
    reads: Py<Reads>,
    /// The numbers of the trees: cells, data, notify, changes.
    trees: (usize, usize, usize, usize),
    /// The safe point, and the number of the list of feeds.
    shared: PyBuffer<u64>,
    prefixes: Py<PyDict>,
}

#[pymethods]
impl Commits {
    #[new]
    fn new(
        reads: Py<Reads>,
        trees: (usize, usize, usize, usize),
        shared: PyBuffer<u64>,
        prefixes: Py<PyDict>,
    ) -> Self {
        Commits {
            reads,
            trees,
            shared,
            prefixes,
        }
    }

    /// Commits, if no other process writes and the list of feeds is still that of number `as_of`,
    /// which has the tables `feeds`.
    ///
    /// `turn` is the file of the turn lock, `noted` has the keys of cells that are notified,
    /// `removed` those of notify entries that are deleted. Returns what `commit_cells` does, None
    /// if nothing is written: ask Python. Raises LMDB's error if it refused the commit.
    #[allow(clippy::too_many_arguments)]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        turn: c_int,
        start_ts: u64,
        writes: &Bound<'py, PyAny>,
        noted: Vec<PyBackedBytes>,
        removed: Vec<PyBackedBytes>,
        as_of: u64,
        feeds: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(parsed) = parsed(writes, self.prefixes.bind(py)) else {
            return Ok(None);
        };
        let fed = with_feeds(&parsed, feeds)?;
        let what = What {
            writes: &parsed,
            noted: &noted,
            removed: &removed,
            fed: &fed,
        };
        told(py, self.run(py, turn, start_ts, what, as_of))
    }
}

/// What a transaction commits, and in which of the tables that it writes it is listed in a feed.
#[derive(Clone, Copy)]
struct What<'a> {
    writes: &'a [Write],
    noted: &'a [PyBackedBytes],
    removed: &'a [PyBackedBytes],
    fed: &'a [Table],
}

impl Commits {
    /// See `commit`.
    fn run(
        &self,
        py: Python<'_>,
        turn: c_int,
        start_ts: u64,
        what: What<'_>,
        as_of: u64,
    ) -> Result<u64, Stopped> {
        let (cells, data, notify, changes) = self.trees;
        let found = self.reads.get().current(|shared, databases| {
            let tree = |number: usize| databases.get(number).copied();
            let trees = Trees {
                cells: tree(cells)?,
                data: tree(data)?,
                notify: tree(notify)?,
                changes: tree(changes)?,
            };
            Some((shared.clone(), trees))
        });
        let Some((shared, trees)) = found.flatten() else {
            return Err(Stopped::AskPython);
        };
        let (api, env) = (shared.api, shared.env.get(py));
        if env.is_null() {
            return Err(Stopped::AskPython);
        }
        let (env, integers) = (
            Sent::new(env),
            Sent::new(self.shared.buf_ptr().cast::<u64>()),
        );
        let run = |_turn: Turn| -> Result<u64, Stopped> {
            let mut txn = null_mut();
            // SAFETY: the environment stays open while this is inside, or holds the GIL.
            if unsafe { (api.txn_begin)(env.get(), null_mut(), 0, &mut txn) } != 0 {
                return Err(Stopped::AskPython);
            }
            // SAFETY: the environment and the transaction are live, and the buffer has two aligned
            // integers, which other processes change.
            let current = unsafe {
                let integer =
                    |at| AtomicU64::from_ptr(integers.get().add(at)).load(Ordering::Acquire);
                follows(api, env.get(), txn) && integer(0) <= start_ts && integer(1) == as_of
            };
            let outcome = if current {
                // SAFETY: the transaction is live, and this thread's alone.
                let done = unsafe { commit(api, txn, trees, start_ts, what.writes, what.fed) };
                done.and_then(|commit_ts| {
                    let (noted, removed) = (what.noted, what.removed);
                    // SAFETY: as above.
                    unsafe { settle(api, txn, trees.notify, commit_ts, noted, removed) }
                })
            } else {
                Err(Stopped::AskPython)
            };
            match outcome {
                // SAFETY: as above; it is not used again.
                Ok(commit_ts) => match unsafe { (api.txn_commit)(txn) } {
                    0 => Ok(commit_ts),
                    code => Err(Stopped::Failed("mdb_txn_commit", code)),
                },
                Err(stopped) => {
                    // SAFETY: as above.
                    unsafe { (api.txn_abort)(txn) };
                    Err(match stopped {
                        Stopped::Failed(..) => Stopped::AskPython,
                        other => other,
                    })
                }
            }
        };
        // Without a wait for the disk or for another process, a commit takes microseconds. To get
        // the GIL back takes milliseconds if other threads compute. The turn keeps other processes
        // from writing, and the lock that the caller holds the threads of this one: nobody who
        // needs the GIL has LMDB's own lock.
        let free = match !shared.synced && what.writes.len() < MANY {
            true => Turn::free(turn),
            false => None,
        };
        match free {
            Some(turn) => run(turn),
            None => shared.outside(py, || run(Turn::take(turn).ok_or(Stopped::AskPython)?)),
        }
    }
}

/// What decides in Python whether a thread may write at once, and is to be told of a commit:
/// `percola.store.lmdb.environment.Environment.write_at_once`.
///
/// The fields hold it together with `Environment`, so Python's garbage collection visits them.
pub struct Gate {
    /// The requests that wait, and the methods of the lock of this process's writers.
    queue: Py<PyAny>,
    acquire: Py<PyAny>,
    release: Py<PyAny>,
    /// Has an attribute `failure`, which is to be told first; or None.
    background: Py<PyAny>,
    /// Wakes the first waiting thread; sees to what commits leave to be done; explains an error.
    promote: Py<PyAny>,
    note_commit: Py<PyAny>,
    explained: Py<PyAny>,
}

impl Gate {
    pub fn of(environment: &Bound<'_, PyAny>) -> PyResult<Gate> {
        let of = |name: &str| environment.getattr(name).map(Bound::unbind);
        let writing = environment.getattr("_writing")?;
        Ok(Gate {
            queue: of("_queue")?,
            acquire: writing.getattr("acquire")?.unbind(),
            release: writing.getattr("release")?.unbind(),
            background: of("_background")?,
            promote: of("_promote")?,
            note_commit: of("_note_commit")?,
            explained: of("_explain")?,
        })
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queue)?;
        visit.call(&self.acquire)?;
        visit.call(&self.release)?;
        visit.call(&self.background)?;
        visit.call(&self.promote)?;
        visit.call(&self.note_commit)?;
        visit.call(&self.explained)
    }
}

impl Commits {
    /// Commits a transaction's own writes, if no other thread of this process writes. None: nothing
    /// is written, and Python is to be asked. Raises StoreError if LMDB refused the commit.
    pub fn at_once(
        &self,
        py: Python<'_>,
        start_ts: u64,
        writes: &[Write],
        as_of: u64,
        fed: &[Table],
    ) -> PyResult<Option<u64>> {
        let reads = self.reads.get();
        let Some((gate, turn)) = reads.gate(py) else {
            return Ok(None);
        };
        let waiting = || -> PyResult<bool> { Ok(gate.queue.bind(py).len()? > 0) };
        let background = gate.background.bind(py);
        if waiting()?
            || !(background.is_none() || background.getattr(intern!(py, "failure"))?.is_none())
            || !gate.acquire.bind(py).call1((false,))?.is_truthy()?
        {
            return Ok(None);
        }
        let what = What {
            writes,
            noted: &[],
            removed: &[],
            fed,
        };
        let outcome = reads.busy(py, || self.run(py, turn, start_ts, what, as_of));
        gate.release.bind(py).call0()?;
        if waiting()? {
            let promote = gate.promote.bind(py);
            if let Err(interrupted) = python::call(promote, ()) {
                // Ctrl-C during the commit is raised by this call, before it has woken anybody.
                python::call(promote, ())?;
                return Err(interrupted);
            }
        }
        match outcome {
            Ok(commit_ts) => {
                python::call(gate.note_commit.bind(py), ())?;
                Ok(Some(commit_ts))
            }
            Err(Stopped::Failed(_, lmdb::MAP_FULL | lmdb::MAP_RESIZED)) => Ok(None),
            Err(Stopped::Failed(what, code)) => {
                let error = lmdb::error(py, what, code).into_value(py);
                let told = python::call(gate.explained.bind(py), (error,))?;
                Err(PyErr::from_value(told))
            }
            Err(_) => Ok(None),
        }
    }
}

/// Whether a transaction that writes follows the last one of any process:
/// `percola.store.lmdb.environment.Environment._check_lock_file`.
///
/// # Safety
/// The environment is open, and the transaction live.
unsafe fn follows(api: &'static Api, env: *mut lmdb::Env, txn: *mut lmdb::Txn) -> bool {
    let mut found = std::mem::MaybeUninit::<lmdb::EnvInfo>::zeroed();
    // SAFETY: as the caller promises; the call fills in all of it.
    unsafe {
        (api.env_info)(env, found.as_mut_ptr()) == 0
            && (api.txn_id)(txn) == found.assume_init().last_txnid + 1
    }
}

/// Puts and deletes notify entries.
///
/// # Safety
/// As for `commit`.
unsafe fn settle(
    api: &'static Api,
    txn: *mut lmdb::Txn,
    notify: Dbi,
    commit_ts: u64,
    noted: &[PyBackedBytes],
    removed: &[PyBackedBytes],
) -> Result<u64, Stopped> {
    for key in noted {
        let mut entry = Key::new();
        if !(entry.add(key) && entry.add(&commit_ts.to_be_bytes())) {
            return Err(Stopped::AskPython);
        }
        let (mut key, mut value) = (Val::of(entry.get()), Val::of(&[]));
        // SAFETY: as the caller promises.
        if unsafe { (api.put)(txn, notify, &mut key, &mut value, 0) } != 0 {
            return Err(Stopped::AskPython);
        }
    }
    for key in removed {
        let mut key = Val::of(key);
        // SAFETY: as the caller promises.
        let code = unsafe { (api.del)(txn, notify, &mut key, null_mut()) };
        if code != 0 && code != lmdb::NOTFOUND {
            return Err(Stopped::AskPython);
        }
    }
    Ok(commit_ts)
}
