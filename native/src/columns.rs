//! The columns of a repository, and the values of their cells.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyString, PyTuple, PyType};

use crate::active::ActiveSnapshots;
use crate::cells::Key;
use crate::commit::Commits;
use crate::environment::Gil;
use crate::held::{Held, Plain};
use crate::python::{self, Once, intern};
use crate::reads::{LastDrawn, Looked, Reads};
use crate::scans::FewRows;

/// Longer rows are checked by Python: `percola.transactions.snapshot._SURELY_SHORT`.
const SURELY_SHORT: usize = 96;
/// For how long anything is read with the GIL. If it takes longer, pages come from the disk, and Python
/// reads what is left without it.
pub const SWITCH: Duration = Duration::from_millis(1);
/// How many ranges are left to Python after one that took longer.
const UNHURRIED: u32 = 8;
/// Columns that are known; then all are forgotten.
const COLUMNS: usize = 1000;

enum Rows {
    Text,
    Bytes,
    Other,
}

enum Codec {
    Bytes,
    Text,
    Int,
    Other,
}

/// A declared column, and its keys.
pub struct Column {
    /// Kept, so that no other object has its address.
    _object: Py<PyAny>,
    pub table: Py<PyString>,
    pub name: Py<PyBytes>,
    /// What its keys have before and behind the row.
    head: Vec<u8>,
    tail: Vec<u8>,
    rows: Rows,
    codec: Codec,
    encode: Py<PyAny>,
    decode: Py<PyAny>,
    pub observed: bool,
}

impl Column {
    /// The key of a row; None: ask Python.
    pub fn key(&self, row: &Bound<'_, PyAny>) -> Option<Key> {
        let row = match self.rows {
            Rows::Text => row.cast_exact::<PyString>().ok()?.to_str().ok()?.as_bytes(),
            Rows::Bytes => row.cast_exact::<PyBytes>().ok()?.as_bytes(),
            Rows::Other => return None,
        };
        if row.is_empty() || row.len() > SURELY_SHORT {
            return None;
        }
        let mut key = Key::new();
        (key.add(&self.head) && key.add_row(row) && key.add(&self.tail)).then_some(key)
    }

    /// The row of a key.
    pub fn row<'py>(&self, py: Python<'py>, key: &[u8]) -> Bound<'py, PyBytes> {
        let mut row = Vec::new();
        let mut escaped = &key[self.head.len()..key.len() - self.tail.len()];
        while let Some((first, rest)) = escaped.split_first() {
            row.push(*first);
            escaped = if *first == 0 { &rest[1..] } else { rest };
        }
        PyBytes::new(py, &row)
    }

    /// The `percola.cells.Cell` of a key.
    pub fn cell<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        static NEW: Once<Py<PyAny>> = Once::new();
        let new = NEW.get(py, || {
            let class = py.import("percola.cells")?.getattr("Cell")?;
            let new = py.get_type::<PyTuple>().getattr("__new__")?;
            let partial = py.import("functools")?.getattr("partial")?;
            Ok(partial.call1((new, class))?.unbind())
        })?;
        let address = (&self.table, self.row(py, key), &self.name);
        python::call(new.bind(py), (address,))
    }

    /// A value as the store holds it; None: ask Python.
    pub fn encoded<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = value.py();
        Ok(match self.codec {
            Codec::Bytes => value.cast_exact::<PyBytes>().ok().cloned(),
            Codec::Text => match value.cast_exact::<PyString>().map(PyStringMethods::to_str) {
                Ok(Ok(text)) => Some(PyBytes::new(py, text.as_bytes())),
                _ => None,
            },
            Codec::Int => match value.cast_exact::<PyInt>().map(|number| number.extract()) {
                Ok(Ok(number)) => {
                    let number: i64 = number;
                    Some(PyBytes::new(py, number.to_string().as_bytes()))
                }
                _ => None,
            },
            Codec::Other => match python::call(self.encode.bind(py), (value,)) {
                Ok(found) => found.cast_into_exact().ok(),
                Err(error) if error.is_instance_of::<PyException>(py) => None,
                Err(error) => return Err(error), // Ctrl-C.
            },
        })
    }

    /// What the store holds as a value; None: ask Python.
    pub fn decoded<'py>(&self, py: Python<'py>, raw: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let decode = || match python::call(self.decode.bind(py), (python::bytes(py, raw)?,)) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(None),
            Err(error) => Err(error),
        };
        match self.codec {
            Codec::Bytes => Ok(Some(python::bytes(py, raw)?.into_any())),
            Codec::Text => match std::str::from_utf8(raw) {
                Ok(text) => python::string(py, text).map(Some),
                Err(_) => Ok(None),
            },
            Codec::Int => match raw.len() {
                1..18 if raw.iter().all(u8::is_ascii_digit) => {
                    let number = raw
                        .iter()
                        .fold(0, |sum: u64, digit| sum * 10 + u64::from(digit - b'0'));
                    Ok(Some(number.into_pyobject(py)?.into_any()))
                }
                _ => decode(),
            },
            Codec::Other => decode(),
        }
    }
}

type Columns = HashMap<usize, Rc<Column>, BuildHasherDefault<Plain>>;

/// What the snapshots and transactions of one repository on LMDB share.
#[pyclass(frozen, module = "percola._native")]
pub struct Calls {
    reads: Py<Reads>,
    pub drawn: Py<LastDrawn>,
    /// The numbers of the trees: cells and data.
    trees: (usize, usize),
    /// The safe point, and the number of the list of feeds.
    shared: PyBuffer<u64>,
    prefixes: Py<PyDict>,
    declared: Py<PyDict>,
    class: Py<PyType>,
    /// How bytes, text and integers are encoded and decoded.
    codecs: [(Py<PyAny>, Py<PyAny>); 3],
    columns: Held<Columns>,
    /// How many ranges are left to Python, which reads them without the GIL.
    unhurried: Gil<u32>,
    pub commits: Py<Commits>,
    /// Has the attributes `as_of` and `known`: `percola.store.lmdb.feed.Feeds`.
    pub feeds: Py<PyAny>,
    pub leases: Py<ActiveSnapshots>,
}

#[pymethods]
impl Calls {
    /// `prefixes` has what the keys of tables begin with, `declared` the columns of the schema by
    /// their addresses, and whether each is observed; `class` is `percola.schema.Column`, `codecs`
    /// the functions that encode and decode bytes, text and integers.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        reads: Py<Reads>,
        drawn: Py<LastDrawn>,
        trees: (usize, usize),
        shared: PyBuffer<u64>,
        prefixes: Py<PyDict>,
        declared: Py<PyDict>,
        class: Py<PyType>,
        codecs: [(Py<PyAny>, Py<PyAny>); 3],
        commits: Py<Commits>,
        feeds: Py<PyAny>,
        leases: Py<ActiveSnapshots>,
    ) -> Self {
        Calls {
            reads,
            drawn,
            trees,
            shared,
            prefixes,
            declared,
            class,
            codecs,
            commits,
            feeds,
            leases,
            columns: Held::new(Columns::default()),
            unhurried: Gil::new(0),
        }
    }
}

impl Calls {
    pub fn column(&self, object: &Bound<'_, PyAny>) -> Option<Rc<Column>> {
        let py = object.py();
        let at = object.as_ptr() as usize;
        if let Some(known) = self.columns.get(py).get(&at) {
            return Some(known.clone());
        }
        let found = Rc::new(self.learnt(object).ok()??);
        let mut columns = self.columns.edit(py);
        let old = if columns.len() >= COLUMNS {
            std::mem::take(&mut *columns)
        } else {
            Columns::default()
        };
        columns.insert(at, found.clone());
        drop(columns);
        drop(old);
        Some(found)
    }

    /// None: it is not a column of the schema; or one of a family, which may have any number.
    fn learnt(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Column>> {
        let py = object.py();
        if !object.get_type().is(&self.class) {
            return Ok(None);
        }
        let name = object.getattr(intern!(py, "key"))?.cast_into::<PyBytes>()?;
        if name.as_bytes().contains(&b':') {
            return Ok(None);
        }
        let address = object.getattr(intern!(py, "address"))?;
        let Some(observed) = self.declared.bind(py).get_item(address)? else {
            return Ok(None);
        };
        let Ok(observed) = observed.cast::<PyBool>().map(PyBoolMethods::is_true) else {
            return Ok(None);
        };
        let table = object
            .getattr(intern!(py, "table_name"))?
            .cast_into::<PyString>()?;
        let Some(prefix) = self.prefixes.bind(py).get_item(&table)? else {
            return Ok(None);
        };
        let rows = object
            .getattr(intern!(py, "table"))?
            .getattr(intern!(py, "rows"))?;
        let (encode, decode) = (
            object.getattr(intern!(py, "encode"))?,
            object.getattr(intern!(py, "decode"))?,
        );
        let known = |at: usize| self.codecs[at].0.is(&encode) && self.codecs[at].1.is(&decode);
        Ok(Some(Column {
            _object: object.clone().unbind(),
            head: prefix.cast::<PyBytes>()?.as_bytes().to_vec(),
            tail: [b"\0\x01", name.as_bytes(), b"\0"].concat(),
            rows: match () {
                () if rows.is(py.get_type::<PyString>()) => Rows::Text,
                () if rows.is(py.get_type::<PyBytes>()) => Rows::Bytes,
                () => Rows::Other,
            },
            codec: match () {
                () if known(0) => Codec::Bytes,
                () if known(1) => Codec::Text,
                () if known(2) => Codec::Int,
                () => Codec::Other,
            },
            table: table.unbind(),
            name: name.unbind(),
            encode: encode.unbind(),
            decode: decode.unbind(),
            observed,
        }))
    }

    /// What the keys of a range of rows begin at and end before; None: ask Python.
    pub fn keys(
        &self,
        table: &Bound<'_, PyString>,
        start: &[u8],
        end: &[u8],
    ) -> PyResult<Option<(Key, Key)>> {
        let Some(prefix) = self.prefixes.bind(table.py()).get_item(table)? else {
            return Ok(None);
        };
        let prefix = prefix.cast::<PyBytes>()?.as_bytes();
        let (mut first, mut last) = (Key::new(), Key::new());
        let is_short = first.add(prefix)
            && first.add_row(start)
            && match end {
                // The next table's.
                [] => prefix
                    .try_into()
                    .ok()
                    .and_then(|number| u16::from_be_bytes(number).checked_add(1))
                    .is_some_and(|number| last.add(&number.to_be_bytes())),
                _ => last.add(prefix) && last.add_row(end),
            };
        Ok(is_short.then_some((first, last)))
    }

    /// The first rows between two keys at `ts`; None: ask Python.
    pub fn few_rows(
        &self,
        py: Python<'_>,
        (first, last): &(Key, Key),
        columns: Option<&Vec<(PyBackedBytes, bool)>>,
        ts: u64,
    ) -> Option<FewRows> {
        let unhurried = self.unhurried.get(py);
        if unhurried > 0 {
            self.unhurried.set(py, unhurried - 1);
            return None;
        }
        let (keys, began) = ((first.get(), last.get()), Instant::now());
        let reads = self.reads.get();
        let found = reads.few_rows(py, keys, columns, ts, self.trees, &self.shared);
        if began.elapsed() > SWITCH {
            self.unhurried.set(py, UNHURRIED);
        }
        found
    }

    /// The value of a cell at `ts`; None: ask Python.
    pub fn read<'py>(
        &self,
        py: Python<'py>,
        column: &Column,
        key: &Key,
        ts: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (cells, data) = self.trees;
        let reads = self.reads.get();
        if let Codec::Bytes = column.codec {
            // Copied once.
            let found = reads.look(py, key.get(), ts, (cells, data), &self.shared, |value| {
                python::bytes(py, value)
            });
            return Ok(match found {
                Looked::Value(value) => Some(value?.into_any()),
                Looked::None => Some(py.None().into_bound(py)),
                Looked::Blocked | Looked::AskPython => None,
            });
        }
        // Decoding may call Python's functions, which must not run within LMDB's transaction.
        let found = reads.look(
            py,
            key.get(),
            ts,
            (cells, data),
            &self.shared,
            python::copied,
        );
        match found {
            Looked::Value(value) => column.decoded(py, &value?),
            Looked::None => Ok(Some(py.None().into_bound(py))),
            Looked::Blocked | Looked::AskPython => Ok(None),
        }
    }
}
