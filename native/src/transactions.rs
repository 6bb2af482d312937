//! Snapshots and transactions: what each read, each write, a beginning and an end do, if nothing is
//! unusual: `percola.transactions.calls`, which is the same in Python.
//!
//! A method here either does all of it or has the Python method do it: `_get`, `_set`, `_delete`,
//! `_commit`. Whatever could raise an error of Percola's is left to Python.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PySet, PyString, PyTuple};

use crate::active::ActiveSnapshots;
use crate::cells::{DELETE, INLINE_BYTES, Key, PUT};
use crate::columns::{Calls, Column, SWITCH};
use crate::commit::{Write, with_feeds};
use crate::environment::Gil;
use crate::held::{Held, forks};
use crate::python::{self, Once, intern};

/// Own writes from which on they are found by an index.
const INDEXED: usize = 8;
/// Own writes from which on they are Python's.
const MOST: usize = 10_000;
/// The most own writes that are compared with a range of rows.
const COMPARED: usize = 32;
/// How many cells are read between two looks at the clock.
const TIMED: usize = 16;

/// A transaction's own writes, which are Python's once it has asked for them.
#[derive(Default)]
struct Own {
    writes: Vec<Write>,
    columns: Vec<Rc<Column>>,
    /// Where they are, once there are many.
    index: Option<HashMap<Vec<u8>, usize>>,
    in_python: Option<Py<PyDict>>,
}

impl Own {
    fn find(&self, key: &[u8]) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(key).copied(),
            None => self.writes.iter().position(|write| write.key == key),
        }
    }

    /// Returns the value that it replaces, if any.
    fn put(&mut self, write: Write, column: Rc<Column>) -> Option<Write> {
        if let Some(at) = self.find(&write.key) {
            return Some(std::mem::replace(&mut self.writes[at], write));
        }
        let at = self.writes.len();
        if let Some(index) = &mut self.index {
            index.insert(write.key.clone(), at);
        } else if at == INDEXED {
            let keys = self.writes.iter().chain([&write]).enumerate();
            self.index = Some(keys.map(|(at, one)| (one.key.clone(), at)).collect());
        }
        self.writes.push(write);
        self.columns.push(column);
        None
    }
}

/// The snapshots for which garbage collection waits: `percola.transactions.active_snapshots`.
enum Leases {
    Native(Py<ActiveSnapshots>),
    Python(Py<PyAny>),
}

impl Leases {
    fn add(&self, py: Python<'_>, key: u64, ts: u64) -> PyResult<()> {
        match self {
            Leases::Native(leases) => leases.get().add(py, key, ts),
            Leases::Python(leases) => {
                let leases = leases.bind(py);
                python::call_method(leases, intern!(py, "add"), (key, ts)).map(drop)
            }
        }
    }

    fn drop(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        match self {
            Leases::Native(leases) => leases.get().drop(py, key),
            Leases::Python(leases) => {
                let leases = leases.bind(py);
                python::call_method(leases, intern!(py, "drop"), (key,)).map(drop)
            }
        }
    }
}

/// What a snapshot and a transaction share.
#[pyclass(frozen, subclass, module = "percola._native")]
pub struct SnapshotBase {
    context: Py<PyAny>,
    calls: Option<Py<Calls>>,
    cache: Option<Py<PyAny>>,
    leases: Leases,
    start_ts: Gil<u64>,
    forks: u64,
    used_up: Held<Option<Py<PyAny>>>,
    own: Held<Own>,
    /// What garbage collection knows it by, until it has ended; or 0.
    registered: Gil<u64>,
}

/// Numbers for `registered`.
static BEGUN: AtomicU64 = AtomicU64::new(1);

impl SnapshotBase {
    fn begun(
        context: &Bound<'_, PyAny>,
        start_ts: u64,
        calls: Option<Py<Calls>>,
    ) -> PyResult<Self> {
        let py = context.py();
        let cache = match calls {
            None if context.getattr(intern!(py, "caches_reads"))?.is_truthy()? => {
                Some(python::call_method(context, intern!(py, "new_cache"), ())?.unbind())
            }
            _ => None,
        };
        let leases = match &calls {
            Some(calls) => Leases::Native(calls.get().leases.clone_ref(py)),
            None => Leases::Python(context.getattr(intern!(py, "leases"))?.unbind()),
        };
        let begun = SnapshotBase {
            calls,
            cache,
            leases,
            context: context.clone().unbind(),
            start_ts: Gil::new(start_ts),
            forks: forks(),
            used_up: Held::new(None),
            own: Held::new(Own::default()),
            registered: Gil::new(BEGUN.fetch_add(1, Ordering::Relaxed)),
        };
        begun.leases.add(py, begun.registered.get(py), start_ts)?;
        Ok(begun)
    }

    /// Has garbage collection wait for it no longer.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let registered = self.registered.get(py);
        if registered != 0 {
            self.registered.set(py, 0);
            self.leases.drop(py, registered)?;
        }
        Ok(())
    }

    /// Whether the end of a `with` block commits; see `TOO_LARGE` in percola/transactions/calls.py.
    fn should_commit(&self, py: Python<'_>) -> PyResult<bool> {
        match &*self.used_up.get(py) {
            None => Ok(true),
            Some(why) => {
                let too_large = intern!(py, "was too large, and nothing of it was written");
                why.bind(py).eq(too_large)
            }
        }
    }

    /// What calls natively, while nothing is unusual.
    fn calls(&self, py: Python<'_>) -> Option<&Calls> {
        let calls = self.calls.as_ref()?;
        let usual = self.used_up.get(py).is_none() && self.forks == forks();
        usual.then(|| calls.get())
    }

    /// A value, or that Python is to be asked.
    fn found<'py>(
        &self,
        column: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = column.py();
        let Some(calls) = self.calls(py) else {
            return Ok(None);
        };
        let Some(column) = calls.column(column) else {
            return Ok(None);
        };
        let Some(key) = column.key(row) else {
            return Ok(None);
        };
        {
            let own = self.own.get(py);
            if let Some(writes) = &own.in_python {
                let writes = writes.bind(py).clone();
                drop(own);
                if !writes.is_empty() {
                    let row = column.row(py, key.get());
                    if writes.contains((&column.table, row, &column.name))? {
                        return Ok(None);
                    }
                }
            } else if !own.writes.is_empty()
                && let Some(at) = own.find(key.get())
            {
                let value = own.writes[at].value.as_ref().map(|raw| raw.to_vec());
                drop(own);
                return match value {
                    Some(raw) => column.decoded(py, &raw),
                    None => Ok(Some(py.None().into_bound(py))),
                };
            }
        }
        calls.read(py, &column, &key, self.start_ts.get(py))
    }

    fn has_writes(&self, py: Python<'_>) -> bool {
        let own = self.own.get(py);
        match &own.in_python {
            Some(writes) => !writes.bind(py).is_empty(),
            None => !own.writes.is_empty(),
        }
    }

    /// Whether there may be own writes in a range of rows, whose keys are between two.
    fn writes_in(
        &self,
        table: &Bound<'_, PyString>,
        (start, end): (&[u8], &[u8]),
        (first, last): &(Key, Key),
    ) -> PyResult<bool> {
        let py = table.py();
        let own = self.own.get(py);
        let Some(writes) = &own.in_python else {
            let is_in =
                |write: &Write| first.get() <= &write.key[..] && &write.key[..] < last.get();
            return Ok(own.writes.len() > COMPARED || own.writes.iter().any(is_in));
        };
        let writes = writes.bind(py).clone();
        drop(own);
        if writes.len() > COMPARED {
            return Ok(true);
        }
        for cell in writes.keys() {
            let cell = cell.cast::<PyTuple>()?;
            let row = cell.get_item(1)?.cast_into::<PyBytes>()?;
            let row = row.as_bytes();
            if start <= row && (end.is_empty() || row < end) && cell.get_item(0)?.eq(table)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The own writes as Python has them, from now on.
    fn in_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Some(writes) = &self.own.get(py).in_python {
            return Ok(writes.bind(py).clone());
        }
        let own = std::mem::take(&mut *self.own.edit(py));
        let made = (|| {
            let writes = PyDict::new(py);
            for (write, column) in own.writes.iter().zip(&own.columns) {
                let value = write.value.as_ref().map(|raw| PyBytes::new(py, raw));
                writes.set_item(column.cell(py, &write.key)?, (write.op, value))?;
            }
            Ok(writes)
        })();
        let writes = match made {
            Ok(writes) => writes,
            Err(error) => {
                *self.own.edit(py) = own;
                return Err(error);
            }
        };
        self.own.edit(py).in_python = Some(writes.clone().unbind());
        Ok(writes)
    }
}

impl Drop for SnapshotBase {
    fn drop(&mut self) {
        if self.registered.0.get() != 0
            || (self.cache.is_some() && self.used_up.try_get().is_none_or(|why| why.is_none()))
        {
            Python::attach(|py| {
                let _kept = Raised::kept(py);
                let ended = self.end(py).and_then(|()| match &self.cache {
                    Some(cache) if self.used_up.get(py).is_none() => {
                        python::call_method(cache.bind(py), intern!(py, "end"), ()).map(drop)
                    }
                    _ => Ok(()),
                });
                // Python's garbage collection may have emptied what ends with it, as `__del__` in
                // `percola.transactions.calls` may find: then nobody uses it any more.
                if let Err(error) = ended
                    && !error.is_instance_of::<PyAttributeError>(py)
                {
                    error.write_unraisable(py, None);
                }
            });
        }
    }
}

/// The exception that is being raised, kept while something else calls Python; raised again at the
/// end: an object may be dropped because of it.
struct Raised([*mut pyo3::ffi::PyObject; 3]);

impl Raised {
    fn kept(_: Python<'_>) -> Raised {
        let mut raised = [std::ptr::null_mut(); 3];
        let [kind, value, traceback] = &mut raised;
        // SAFETY: this thread holds the GIL, as its token says; all three are filled in.
        unsafe { pyo3::ffi::PyErr_Fetch(kind, value, traceback) };
        Raised(raised)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let [kind, value, traceback] = self.0;
        // SAFETY: it is dropped where it was made, and owns the three.
        unsafe { pyo3::ffi::PyErr_Restore(kind, value, traceback) };
    }
}

#[pymethods]
impl SnapshotBase {
    #[new]
    fn new(context: &Bound<'_, PyAny>, start_ts: u64) -> PyResult<Self> {
        let py = context.py();
        let calls = context.getattr(intern!(py, "calls_natively"))?.extract()?;
        SnapshotBase::begun(context, start_ts, calls)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.context)?;
        match &self.leases {
            Leases::Native(leases) => visit.call(leases)?,
            Leases::Python(leases) => visit.call(leases)?,
        }
        visit.call(&self.calls)?;
        visit.call(&self.cache)?;
        if let Some(used_up) = self.used_up.try_get() {
            visit.call(&*used_up)?;
        }
        if let Some(own) = self.own.try_get() {
            visit.call(&own.in_python)?;
        }
        Ok(())
    }

    fn __enter__<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let py = this.py();
        if this.get().used_up.get(py).is_some() {
            python::call_method(&this, intern!(py, "_check_usable"), ())?;
        }
        Ok(this)
    }

    fn __exit__(
        this: &Bound<'_, Self>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        python::call_method(this, intern!(this.py(), "close"), ()).map(drop)
    }

    fn get<'py>(
        this: &Bound<'py, Self>,
        column: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match this.get().found(column, row)? {
            Some(value) => Ok(value),
            None => python::call_method(this, intern!(this.py(), "_get"), (column, row)),
        }
    }

    fn get_many<'py>(
        this: &Bound<'py, Self>,
        cells: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let ask = |cells| python::call_method(this, intern!(py, "_get_many"), (cells,));
        let me = this.get();
        if me.calls(py).is_none() {
            return ask(cells.clone());
        }
        let cells = python::call(&py.get_type::<PyList>(), (cells,))?.cast_into::<PyList>()?;
        let values = PyList::empty(py);
        let began = Instant::now();
        for (at, cell) in cells.iter().enumerate() {
            let found = match cell.cast_exact::<PyTuple>() {
                _ if at % TIMED == TIMED - 1 && began.elapsed() > SWITCH => None,
                Ok(cell) if cell.len() == 2 => me.found(&cell.get_item(0)?, &cell.get_item(1)?)?,
                _ => None,
            };
            match found {
                Some(value) => values.append(value)?,
                None => {
                    let rest = ask(cells.get_slice(at, cells.len()).into_any())?;
                    return values.into_any().add(rest);
                }
            }
        }
        Ok(values.into_any())
    }

    /// The first rows of a range, with their values, and the row to go on from; None: ask Python.
    #[allow(clippy::type_complexity)]
    fn _few_rows<'py>(
        &self,
        table: &Bound<'py, PyString>,
        start: &[u8],
        end: &[u8],
        columns: Option<Vec<(PyBackedBytes, bool)>>,
    ) -> PyResult<Option<(Bound<'py, PyList>, Option<Bound<'py, PyBytes>>)>> {
        let py = table.py();
        let Some(calls) = self.calls(py) else {
            return Ok(None);
        };
        let Some(keys) = calls.keys(table, start, end)? else {
            return Ok(None);
        };
        if self.writes_in(table, (start, end), &keys)? {
            return Ok(None);
        }
        let found = calls.few_rows(py, &keys, columns.as_ref(), self.start_ts.get(py));
        found.map(|few| few.objects(py)).transpose()
    }

    fn _unregister(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }

    #[getter]
    fn start_ts(&self, py: Python<'_>) -> u64 {
        self.start_ts.get(py)
    }

    #[setter]
    fn set_start_ts(&self, py: Python<'_>, ts: u64) {
        self.start_ts.set(py, ts);
    }

    #[getter]
    fn _context<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.context.bind(py).clone()
    }

    #[getter]
    fn _cache<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.cache.as_ref().map(|cache| cache.bind(py).clone())
    }

    /// The readers of columns; in the child of a fork others than the context's.
    #[getter]
    fn _readers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.forks != forks() {
            return Ok(PyDict::new(py).into_any());
        }
        let readers = self.context.bind(py).getattr(intern!(py, "readers"))?;
        readers.getattr(intern!(py, "by_column"))
    }

    #[getter]
    fn _used_up<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.used_up
            .get(py)
            .as_ref()
            .map(|why| why.bind(py).clone())
    }

    #[setter(_used_up)]
    fn set_used_up(&self, py: Python<'_>, why: Option<Py<PyAny>>) {
        let old = std::mem::replace(&mut *self.used_up.edit(py), why);
        drop(old);
    }

    #[getter]
    fn _writes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.in_python(py)
    }

    #[setter(_writes)]
    fn set_writes(&self, py: Python<'_>, writes: Py<PyDict>) {
        let new = Own {
            in_python: Some(writes),
            ..Own::default()
        };
        let old = std::mem::replace(&mut *self.own.edit(py), new);
        drop(old);
    }
}

/// What few transactions have.
#[derive(Default)]
struct Rare {
    notifications: Option<Py<PyDict>>,
    last_changes: Option<Py<PyDict>>,
    answers: Option<Py<PyList>>,
    callbacks: Option<Py<PyDict>>,
    own: Option<Py<PyAny>>,
    bytes: u64,
    unfinished: Option<Py<PyAny>>,
    began: Option<Py<PyAny>>,
    causes: Option<Py<PyAny>>,
}

/// What a transaction has beyond a snapshot.
#[pyclass(frozen, subclass, extends = SnapshotBase, module = "percola._native")]
pub struct TransactionBase {
    silent: bool,
    two_phase: bool,
    commit_ts: Held<Option<u64>>,
    rare: Held<Option<Box<Rare>>>,
}

impl TransactionBase {
    fn rare<R>(&self, py: Python<'_>, take: impl FnOnce(&mut Rare) -> R) -> R {
        take(self.rare.edit(py).get_or_insert_default())
    }

    fn kept<'py>(
        &self,
        py: Python<'py>,
        field: impl Fn(&Rare) -> &Option<Py<PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        let rare = self.rare.get(py);
        Some(field(rare.as_ref()?).as_ref()?.bind(py).clone())
    }

    /// Whether it is nothing but its own writes.
    fn is_plain(&self, py: Python<'_>) -> bool {
        self.rare.get(py).as_ref().is_none_or(|rare| {
            let none =
                |one: &Option<Py<PyDict>>| one.as_ref().is_none_or(|one| one.bind(py).is_empty());
            none(&rare.notifications)
                && rare
                    .answers
                    .as_ref()
                    .is_none_or(|one| one.bind(py).is_empty())
        })
    }

    /// Commits its own writes; None: nothing is written, and Python is to be asked.
    fn committed(&self, py: Python<'_>, base: &SnapshotBase) -> PyResult<Option<u64>> {
        let Some(calls) = base.calls(py) else {
            return Ok(None);
        };
        if self.two_phase || !self.is_plain(py) {
            return Ok(None);
        }
        // In this order, as `Feeds.current` stores them in the other one.
        let feeds = calls.feeds.bind(py);
        let Ok(as_of) = feeds.getattr(intern!(py, "as_of"))?.extract() else {
            return Ok(None);
        };
        let known = feeds.getattr(intern!(py, "known"))?;
        // Taken, so that nothing else has the writes while they are read without the GIL.
        let own = std::mem::take(&mut *base.own.edit(py));
        if own.in_python.is_some() {
            *base.own.edit(py) = own;
            return Ok(None);
        }
        let trying = intern!(py, "has tried to commit and failed");
        base.set_used_up(py, Some(trying.clone().into_any().unbind()));
        let start_ts = base.start_ts.get(py);
        let commits = calls.commits.get();
        let outcome = with_feeds(&own.writes, &known)
            .and_then(|fed| commits.at_once(py, start_ts, &own.writes, as_of, &fed));
        let Ok(None) = outcome else {
            base.end(py)?;
            let commit_ts = outcome?;
            *self.commit_ts.edit(py) = commit_ts;
            let done = intern!(py, "has committed").clone().into_any().unbind();
            base.set_used_up(py, Some(done));
            if own.writes.iter().any(|write| write.notifies) {
                let tables = PySet::empty(py)?;
                for (write, column) in own.writes.iter().zip(&own.columns) {
                    if write.notifies {
                        tables.add(&column.table)?;
                    }
                }
                let context = base.context.bind(py);
                python::call_method(context, intern!(py, "wake"), (tables,))?;
            }
            return Ok(commit_ts);
        };
        *base.own.edit(py) = own;
        // Unless another thread has given it up.
        let mine = base
            .used_up
            .get(py)
            .as_ref()
            .is_some_and(|why| why.is(trying));
        if mine {
            base.set_used_up(py, None);
        }
        Ok(None)
    }

    /// Buffers a write, unless Python is to be asked.
    fn buffered<'py>(
        &self,
        base: &SnapshotBase,
        column: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Buffered<'py>> {
        let py = column.py();
        let Some(calls) = base.calls(py) else {
            return Ok(Buffered::AskPython(None));
        };
        let Some(column) = calls.column(column) else {
            return Ok(Buffered::AskPython(None));
        };
        let Some(key) = column.key(row) else {
            return Ok(Buffered::AskPython(None));
        };
        let raw = match value {
            Some(value) => match column.encoded(value)? {
                Some(raw) if raw.as_bytes().len() <= INLINE_BYTES => Some(raw),
                raw => return Ok(Buffered::AskPython(raw)),
            },
            None => None,
        };
        let observed = column.observed;
        let write = Write {
            key: key.get().to_vec(),
            op: if raw.is_some() { PUT } else { DELETE },
            value: raw.clone().map(PyBackedBytes::from),
            notifies: observed && !self.silent,
            silent: observed && self.silent,
        };
        let mut own = base.own.edit(py);
        if let Some(writes) = &own.in_python {
            let writes = writes.bind(py).clone();
            drop(own);
            // Long values are counted.
            if writes.len() >= MOST || self._bytes(py) != 0 {
                return Ok(Buffered::AskPython(raw));
            }
            writes.set_item(column.cell(py, &write.key)?, (write.op, write.value))?;
            return Ok(Buffered::Done);
        }
        if own.writes.len() >= MOST {
            return Ok(Buffered::AskPython(raw));
        }
        let old = own.put(write, column);
        drop(own);
        drop(old);
        Ok(Buffered::Done)
    }
}

/// What has come of a write.
enum Buffered<'py> {
    Done,
    /// With the value as the store holds it, if it was encoded: that may take long.
    AskPython(Option<Bound<'py, PyBytes>>),
}

fn lazily<'py, T>(
    this: &TransactionBase,
    py: Python<'py>,
    field: impl Fn(&mut Rare) -> &mut Option<Py<T>>,
    make: impl FnOnce() -> Bound<'py, T>,
) -> Bound<'py, T> {
    if let Some(found) = this.rare(py, |rare| field(rare).as_ref().map(|one| one.clone_ref(py))) {
        return found.into_bound(py);
    }
    let made = make();
    this.rare(py, |rare| *field(rare) = Some(made.clone().unbind()));
    made
}

#[pymethods]
impl TransactionBase {
    #[new]
    #[pyo3(signature = (context, *, two_phase = false, notify = true))]
    fn new(
        context: &Bound<'_, PyAny>,
        two_phase: bool,
        notify: bool,
    ) -> PyResult<(Self, SnapshotBase)> {
        let py = context.py();
        let calls: Option<Py<Calls>> = context.getattr(intern!(py, "calls_natively"))?.extract()?;
        // With native calls a repository commits in one step, unless it is told not to.
        let two_phase =
            two_phase || (calls.is_none() && context.getattr(intern!(py, "one_step"))?.is_none());
        let drawn = match &calls {
            Some(calls) if !two_phase => calls.get().drawn.get().find(py),
            _ => None,
        };
        let mut rare = None;
        if calls.is_none() && !context.getattr(intern!(py, "spans"))?.is_none() {
            let now = py.import("time")?.call_method0("time_ns")?.unbind();
            rare = Some(Box::new(Rare {
                began: Some(now),
                causes: Some(PyList::empty(py).into_any().unbind()),
                ..Rare::default()
            }));
        }
        let start_ts = match drawn {
            Some(ts) => ts,
            None => {
                let oracle = context.getattr(intern!(py, "oracle"))?;
                let draw = if two_phase {
                    intern!(py, "timestamp")
                } else {
                    intern!(py, "read_timestamp")
                };
                python::call_method(&oracle, draw, ())?.extract()?
            }
        };
        let this = TransactionBase {
            silent: !notify,
            two_phase,
            commit_ts: Held::new(None),
            rare: Held::new(rare),
        };
        Ok((this, SnapshotBase::begun(context, start_ts, calls)?))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(rare) = self.rare.try_get()
            && let Some(rare) = &*rare
        {
            visit.call(&rare.notifications)?;
            visit.call(&rare.last_changes)?;
            visit.call(&rare.answers)?;
            visit.call(&rare.callbacks)?;
            visit.call(&rare.own)?;
            visit.call(&rare.unfinished)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Some(mut rare) = self.rare.try_edit() {
            let old = rare.take();
            drop(rare);
            drop(old);
        }
    }

    fn __exit__(
        this: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = this.py();
        if !kind.is_none() {
            python::call_method(this, intern!(py, "rollback"), ())?;
        } else if this.as_super().get().should_commit(py)? {
            static COMMIT: Once<Py<PyAny>> = Once::new();
            let name = intern!(py, "commit");
            let mine = COMMIT.get(py, || {
                let found = py.get_type::<TransactionBase>().getattr(name)?;
                Ok(found.unbind())
            })?;
            // A bound method is not made, unless a class or a test has another one.
            if this.get_type().getattr(name)?.is(mine) {
                TransactionBase::commit(this)?;
            } else {
                python::call_method(this, name, ())?;
            }
        }
        Ok(())
    }

    fn set<'py>(
        this: &Bound<'py, Self>,
        column: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let base = this.as_super().get();
        if let Buffered::AskPython(raw) = this.get().buffered(base, column, row, Some(value))? {
            python::call_method(this, intern!(this.py(), "_set"), (column, row, value, raw))?;
        }
        Ok(())
    }

    fn delete<'py>(
        this: &Bound<'py, Self>,
        column: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let base = this.as_super().get();
        if let Buffered::AskPython(_) = this.get().buffered(base, column, row, None)? {
            python::call_method(this, intern!(this.py(), "_delete"), (column, row))?;
        }
        Ok(())
    }

    fn commit<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let (me, base) = (this.get(), this.as_super().get());
        if base.calls(py).is_some() && me.is_plain(py) && !base.has_writes(py) {
            base.set_used_up(
                py,
                Some(intern!(py, "has committed").clone().into_any().unbind()),
            );
            base.end(py)?;
            return Ok(base.start_ts.get(py).into_pyobject(py)?.into_any());
        }
        if let Some(commit_ts) = me.committed(py, base)? {
            return Ok(commit_ts.into_pyobject(py)?.into_any());
        }
        python::call_method(this, intern!(py, "_commit"), ())
    }

    #[getter]
    fn _silent(&self) -> bool {
        self.silent
    }

    #[getter]
    fn _two_phase(&self) -> bool {
        self.two_phase
    }

    #[getter]
    fn commit_ts(&self, py: Python<'_>) -> Option<u64> {
        *self.commit_ts.get(py)
    }

    #[setter]
    fn set_commit_ts(&self, py: Python<'_>, ts: Option<u64>) {
        *self.commit_ts.edit(py) = ts;
    }

    #[getter]
    fn _bytes(&self, py: Python<'_>) -> u64 {
        self.rare.get(py).as_ref().map_or(0, |rare| rare.bytes)
    }

    #[setter(_bytes)]
    fn set_bytes(&self, py: Python<'_>, bytes: u64) {
        self.rare(py, |rare| rare.bytes = bytes);
    }

    #[getter]
    fn _notifications<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        lazily(self, py, |rare| &mut rare.notifications, || PyDict::new(py))
    }

    #[getter]
    fn _last_changes<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        lazily(self, py, |rare| &mut rare.last_changes, || PyDict::new(py))
    }

    #[getter]
    fn _answers<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        lazily(self, py, |rare| &mut rare.answers, || PyList::empty(py))
    }

    #[getter]
    fn _conflict_callbacks<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        lazily(self, py, |rare| &mut rare.callbacks, || PyDict::new(py))
    }

    #[getter]
    fn _own<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.kept(py, |rare| &rare.own)
    }

    #[setter(_own)]
    fn set_own(&self, py: Python<'_>, own: Option<Py<PyAny>>) {
        let old = self.rare(py, |rare| std::mem::replace(&mut rare.own, own));
        drop(old);
    }

    #[getter]
    fn unfinished<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.kept(py, |rare| &rare.unfinished)
    }

    #[setter]
    fn set_unfinished(&self, py: Python<'_>, error: Option<Py<PyAny>>) {
        let old = self.rare(py, |rare| std::mem::replace(&mut rare.unfinished, error));
        drop(old);
    }

    /// Missing without spans.
    #[getter]
    fn _began<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.kept(py, |rare| &rare.began);
        found.ok_or_else(|| PyAttributeError::new_err("_began"))
    }

    /// Missing without spans.
    #[getter]
    fn _causes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.kept(py, |rare| &rare.causes);
        found.ok_or_else(|| PyAttributeError::new_err("_causes"))
    }
}
