//! The one-step commit: the checks and puts of `LmdbStore._commit_cells`, within a transaction.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::cells::{DELETE, Key, MAX_TS, PUT, Place, TOP, number};
use crate::environment::{Sent, Transaction};
use crate::lmdb::{self, Api, Dbi, Val};

const INLINE_BYTES: usize = 256;
const SILENT: u64 = 1 << 63;
/// Cells from which on they are written without the GIL.
const MANY: usize = 32;

struct Write {
    key: Vec<u8>,
    op: u8,
    value: Option<PyBackedBytes>,
    notifies: bool,
    silent: bool,
}

impl Write {
    /// A `OneStepWrite` of `percola.store.base`; None: ask Python.
    fn of(write: &Bound<'_, PyAny>, prefixes: &Bound<'_, PyDict>) -> Option<Write> {
        let write = write.cast::<PyTuple>().ok()?;
        let cell = write.get_item(0).ok()?;
        let cell = cell.cast::<PyTuple>().ok()?;
        let op: u8 = write.get_item(1).ok()?.extract().ok()?;
        if op != PUT && op != DELETE {
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
            silent: observed.is_none(),
        })
    }
}

/// What stopped a commit.
enum Stopped<'a> {
    Failed(&'static str, c_int),
    /// The number of the write, the lock, the commit_ts of a newer write.
    Conflict(usize, Option<(u64, &'a [u8])>, u64),
    AskPython,
}

/// Trees by their handles.
#[derive(Clone, Copy)]
struct Trees {
    cells: Dbi,
    data: Dbi,
    notify: Dbi,
}

/// Checks all cells, draws a commit_ts and puts records, long values and notify entries.
///
/// # Safety
/// The transaction is live, writes, and is used by nobody else.
unsafe fn commit<'a>(
    api: &'static Api,
    txn: *mut lmdb::Txn,
    trees: Trees,
    start_ts: u64,
    writes: &[Write],
) -> Result<u64, Stopped<'a>> {
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
    let checked = (|| {
        // SAFETY: it is this transaction's, and nothing is written before it is closed.
        let mut place = unsafe { Place::new(api, cursor) };
        for (at, write) in writes.iter().enumerate() {
            let key = &write.key[..];
            let found = place
                .seek(key)
                .map_err(|code| Stopped::Failed("mdb_cursor_get", code))?;
            if !found {
                continue;
            }
            let Some(stamp) = place.key.strip_prefix(key) else {
                continue;
            };
            let ts = number(stamp).ok_or(Stopped::AskPython)?;
            if ts <= MAX_TS {
                return Err(Stopped::Conflict(at, Some((ts, place.value)), 0));
            }
            if TOP - ts > start_ts {
                return Err(Stopped::Conflict(at, None, TOP - ts));
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
    for write in writes {
        let mut record = [0; 10 + INLINE_BYTES];
        let mut size = 10;
        let start = start_ts | if write.silent { SILENT } else { 0 };
        record[0] = write.op;
        record[2..10].copy_from_slice(&start.to_be_bytes());
        let entry = |stamp: u64| {
            let mut entry = Key::new();
            match entry.add(&write.key) && entry.add(&stamp.to_be_bytes()) {
                true => Ok(entry),
                false => Err(Stopped::Failed("mdb_put", lmdb::BAD_VALSIZE)),
            }
        };
        if let Some(value) = &write.value {
            if value.len() <= INLINE_BYTES {
                record[1] = 1;
                size += value.len();
                record[10..size].copy_from_slice(value);
            } else {
                put(trees.data, entry(TOP - start_ts)?.get(), value)?;
            }
        }
        put(trees.cells, entry(TOP - commit_ts)?.get(), &record[..size])?;
        if write.notifies {
            put(trees.notify, entry(commit_ts)?.get(), &[])?;
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
    trees: (Dbi, Dbi, Dbi),
    start_ts: u64,
    writes: &Bound<'py, PyAny>,
    prefixes: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let inner = &txn.inner;
    let live = Sent::new(inner.live(py)?);
    let Ok(writes) = writes.cast::<PyList>() else {
        return Ok(None);
    };
    let parsed = writes
        .iter()
        .map(|write| Write::of(&write, prefixes))
        .collect::<Option<Vec<_>>>();
    let Some(parsed) = parsed else {
        return Ok(None);
    };
    let trees = Trees {
        cells: trees.0,
        data: trees.1,
        notify: trees.2,
    };
    let api = inner.shared.api;
    inner.noted(py);
    // SAFETY: the transaction is live while the environment counts this thread as inside, or
    // while it holds the GIL, and no other thread has it.
    let run = || unsafe { commit(api, live.get(), trees, start_ts, &parsed) };
    let outcome = if parsed.len() < MANY {
        run()
    } else {
        inner.shared.outside(py, run)
    };
    Ok(match outcome {
        Ok(commit_ts) => Some(commit_ts.into_pyobject(py)?.into_any()),
        Err(Stopped::AskPython) => None,
        Err(Stopped::Failed(what, code)) => return Err(lmdb::error(py, what, code)),
        Err(Stopped::Conflict(at, lock, commit_ts)) => {
            let lock = lock.map(|(ts, record)| (ts, PyBytes::new(py, record)));
            Some((at, lock, commit_ts).into_pyobject(py)?.into_any())
        }
    })
}
