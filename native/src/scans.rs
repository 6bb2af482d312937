//! Scans of ranges of rows: `percola.store.lmdb.store.LmdbStore.scan`, `scan_columns` and
//! `scan_cells`.
//!
//! They run without the GIL, but for what `scan` finds at once. Whatever is not plain they leave to
//! Python, as `reads` does, but for errors of LMDB: the transaction can do nothing after one.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::cells::{Place, SYSTEM, State, TABLE, column_at, state};
use crate::environment::{Hot, Sent, Shared, Transaction};
use crate::lmdb::{self, Dbi};
use crate::python;
use crate::reads::cell_state;

/// Unwanted cells of a row that are passed one by one before seeking the next wanted one.
const UNWANTED: usize = 24;
/// Cells that `scan` passes before it gives up the GIL, which comes back after milliseconds if other
/// threads compute.
const FEW: usize = 64;
/// Cells that `FewRows::read` passes, and bytes that it copies, before it leaves the range to
/// Python, which gives up the GIL.
const PASSED: usize = 4 * FEW;
const COPIED: usize = 1 << 20;
/// Names of columns of which `FewRows` makes one object.
const NAMES: usize = 16;
/// Long values of about so many bytes end a scan.
const LONG_BYTES: usize = 16 << 20;
const LONG: usize = 256;

/// A range of rows, in a transaction.
#[derive(Clone, Copy)]
struct Range<'a> {
    api: &'static lmdb::Api,
    txn: *mut lmdb::Txn,
    cells: Dbi,
    data: Dbi,
    ts: u64,
    first: &'a [u8],
    last: &'a [u8],
}

/// What takes the cells of a range, in order.
trait Taker<'a> {
    /// Whether a row may begin now; otherwise the walk ends before it.
    fn begins(&mut self) -> bool;
    /// The number of a column among the wanted ones, or None.
    fn place(&self, column: &[u8]) -> Option<usize>;
    /// The names of wanted columns, in order; none if only walking finds them.
    fn names(&self) -> &[&'a [u8]];
    /// A wanted cell that has a lock or a value; `row` is as in its key.
    fn take(&mut self, row: &'a [u8], column: &'a [u8], place: usize, state: State<'a>);
}

/// Why a walk has stopped.
enum Stopped {
    AskPython,
    /// An error of LMDB's, after which it refuses whatever else the transaction is asked.
    Failed(c_int),
}

impl From<c_int> for Stopped {
    fn from(code: c_int) -> Self {
        Stopped::Failed(code)
    }
}

impl Stopped {
    fn told<T>(self, py: Python<'_>) -> PyResult<Option<T>> {
        match self {
            Stopped::AskPython => Ok(None),
            Stopped::Failed(code) => Err(lmdb::error(py, "mdb_cursor_get", code)),
        }
    }
}

impl<'a> Range<'a> {
    fn new(
        py: Python<'_>,
        txn: &Transaction,
        trees: (Dbi, Dbi),
        ts: u64,
        keys: (&'a [u8], &'a [u8]),
    ) -> PyResult<Self> {
        Ok(Range {
            api: txn.inner.shared.api,
            txn: txn.inner.live(py)?,
            cells: trees.0,
            data: trees.1,
            ts,
            first: keys.0,
            last: keys.1,
        })
    }

    /// Passes the cells to `taker`; returns the row to continue from, as in its key.
    ///
    /// # Safety
    /// The transaction is live for `'a` and does not write.
    unsafe fn walk(&self, taker: &mut impl Taker<'a>) -> Result<Option<&'a [u8]>, Stopped> {
        // SAFETY: as the caller promises.
        match unsafe { self.begin() }?.go(taker, usize::MAX)? {
            Walked::Ended(following) => Ok(following),
            Walked::Paused => Err(Stopped::AskPython),
        }
    }

    /// A walk, at the first cell.
    ///
    /// # Safety
    /// The transaction is live for `'a`, and while the walk exists; it does not write.
    unsafe fn begin(&self) -> Result<Walk<'a>, Stopped> {
        let mut cursor = null_mut();
        // SAFETY: the transaction is live.
        let code = unsafe { (self.api.cursor_open)(self.txn, self.cells, &mut cursor) };
        if code != 0 {
            return Err(Stopped::Failed(code));
        }
        let mut walk = Walk {
            range: *self,
            cursor,
            // SAFETY: the cursor is the transaction's, and used here only.
            place: unsafe { Place::new(self.api, cursor) },
            going: false,
            row: &[],
            idle: 0,
        };
        walk.going = walk.place.seek(self.first)?;
        Ok(walk)
    }
}

/// How far a walk has come.
enum Walked<'a> {
    /// All that was wanted has been passed on; the row to continue from, as in its key.
    Ended(Option<&'a [u8]>),
    Paused,
}

/// A walk over the cells of a range, which can pause.
struct Walk<'a> {
    range: Range<'a>,
    cursor: *mut lmdb::Cursor,
    place: Place<'a>,
    going: bool,
    /// With what ends it in a key.
    row: &'a [u8],
    /// Unwanted cells since the last wanted one.
    idle: usize,
}

// SAFETY: as for `Sent`.
unsafe impl Send for Walk<'_> {}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        // SAFETY: it is open, as the transaction is, and not used again.
        unsafe { (self.range.api.cursor_close)(self.cursor) };
    }
}

impl<'a> Walk<'a> {
    /// Passes at most `most` cells, the wanted ones to `taker`.
    fn go(&mut self, taker: &mut impl Taker<'a>, most: usize) -> Result<Walked<'a>, Stopped> {
        let Range { txn, data, ts, .. } = self.range;
        let mut passed = 0;
        while self.going {
            let entry = self.place.key;
            if entry >= self.range.last {
                break;
            }
            if passed == most {
                return Ok(Walked::Paused);
            }
            passed += 1;
            if self.row.is_empty() || !entry.starts_with(self.row) {
                self.row = &entry[..column_at(entry).ok_or(Stopped::AskPython)?];
                self.idle = 0;
                if !taker.begins() {
                    return Ok(Walked::Ended(Some(&self.row[TABLE..self.row.len() - 2])));
                }
            }
            let row = self.row;
            if entry.len() < row.len() + 9 {
                return Err(Stopped::AskPython);
            }
            let key = &entry[..entry.len() - 8];
            let column = &key[row.len()..key.len() - 1];
            if let Some(at) = taker.place(column) {
                self.idle = 0;
                // SAFETY: `begin` was promised it.
                match unsafe { state(&mut self.place, txn, data, key, ts) }? {
                    State::Unclear => return Err(Stopped::AskPython),
                    State::Nothing | State::Deleted(_) => {}
                    found => taker.take(&row[TABLE..row.len() - 2], column, at, found),
                }
            } else if !taker.names().is_empty() {
                self.idle += 1;
                if self.idle > UNWANTED {
                    self.idle = 0;
                    let names = taker.names();
                    let next = names.partition_point(|name| *name < column);
                    let target = match names.get(next) {
                        Some(name) => [row, name].concat(),
                        None => [&row[..row.len() - 1], b"\x02"].concat(),
                    };
                    self.going = self.place.seek(&target)?;
                    continue;
                }
            }
            self.going = self.place.pass(key)?;
        }
        Ok(Walked::Ended(None))
    }
}

/// A row as programs know it, from its part of a key.
fn unescaped(row: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(row.len());
    let mut after_nul = false;
    for &byte in row {
        if !(after_nul && byte == 0xff) {
            plain.push(byte);
        }
        after_nul = byte == 0;
    }
    plain
}

// --- Cell by cell -------------------------------------------------------------------------

/// Columns by name, or by what their names begin with; all but Percola's own if there are none.
struct Wanted<'a> {
    columns: Option<Vec<(&'a [u8], bool)>>,
    names: Vec<&'a [u8]>,
}

impl<'a> Wanted<'a> {
    fn new(columns: Option<&'a Vec<(PyBackedBytes, bool)>>) -> Self {
        let columns = columns.map(|columns| {
            columns
                .iter()
                .map(|(name, is_prefix)| (&name[..], *is_prefix))
                .collect::<Vec<_>>()
        });
        let mut names: Vec<&[u8]> = columns.iter().flatten().map(|(name, _)| *name).collect();
        names.sort_unstable();
        Wanted { columns, names }
    }

    fn has(&self, column: &[u8]) -> bool {
        match &self.columns {
            None => column.first() != Some(&SYSTEM),
            Some(columns) => columns.iter().any(|(name, is_prefix)| {
                if *is_prefix {
                    column.starts_with(name)
                } else {
                    column == *name
                }
            }),
        }
    }
}

struct Cells<'a> {
    wanted: Wanted<'a>,
    limit: usize,
    long: usize,
    found: Vec<(&'a [u8], &'a [u8], State<'a>)>,
}

impl<'a> Cells<'a> {
    fn new(columns: Option<&'a Vec<(PyBackedBytes, bool)>>, limit: usize) -> Self {
        Cells {
            wanted: Wanted::new(columns),
            limit,
            long: 0,
            found: Vec::new(),
        }
    }
}

impl<'a> Taker<'a> for Cells<'a> {
    fn begins(&mut self) -> bool {
        self.found.len() < self.limit && self.long < LONG_BYTES
    }

    fn place(&self, column: &[u8]) -> Option<usize> {
        self.wanted.has(column).then_some(0)
    }

    fn names(&self) -> &[&'a [u8]] {
        &self.wanted.names
    }

    fn take(&mut self, row: &'a [u8], column: &'a [u8], _: usize, state: State<'a>) {
        if let State::Value(_, value) = &state {
            self.long += long_bytes(value);
        }
        self.found.push((row, column, state));
    }
}

/// `LmdbStore.scan` within a transaction: cells with keys in [first, last), and the row to
/// continue from. `cell` makes a `Cell` of a tuple. None: ask Python.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn scan<'py>(
    py: Python<'py>,
    txn: &Transaction,
    trees: (Dbi, Dbi),
    ts: u64,
    first: &[u8],
    last: &[u8],
    columns: Option<Vec<(PyBackedBytes, bool)>>,
    limit: usize,
    table: &Bound<'py, PyAny>,
    cell: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyList>, Option<Bound<'py, PyBytes>>)>> {
    let inner = &txn.inner;
    let range = Sent::new(Range::new(py, txn, trees, ts, (first, last))?);
    let mut taker = Cells::new(columns.as_ref(), limit);
    // SAFETY: the transaction is live while the environment counts this thread as inside, or while
    // it holds the GIL; a transaction that scans does not write.
    let walked =
        unsafe { range.get().begin() }.and_then(|mut walk| match walk.go(&mut taker, FEW)? {
            Walked::Paused => inner.shared.outside(py, || walk.go(&mut taker, usize::MAX)),
            ended => Ok(ended),
        });
    let following = match walked {
        Ok(Walked::Ended(following)) => following,
        Ok(Walked::Paused) => return Ok(None),
        Err(stopped) => return stopped.told(py),
    };
    let list = PyList::empty(py);
    let mut last_row: (&[u8], Option<Bound<'py, PyBytes>>) = (&[], None);
    for (row, column, state) in &taker.found {
        let known = match &last_row {
            (key, Some(known)) if key == row => known.clone(),
            _ => {
                let made = PyBytes::new(py, &unescaped(row));
                last_row = (row, Some(made.clone()));
                made
            }
        };
        let column = PyBytes::new(py, column);
        let address = PyTuple::new(py, [table, known.as_any(), column.as_any()])?;
        list.append((cell.call1((address,))?, cell_state(py, state)?))?;
    }
    Ok(Some((
        list,
        following.map(|row| PyBytes::new(py, &unescaped(row))),
    )))
}

// --- A few rows, at once ------------------------------------------------------------------

/// The first rows of a range, copied: nothing of Python's may run within LMDB's transaction.
pub struct FewRows {
    bytes: Vec<u8>,
    /// The sizes of each cell's row, column and value; no row if it is that of the cell before.
    cells: Vec<(Option<usize>, usize, usize)>,
    following: Option<Vec<u8>>,
}

impl FewRows {
    /// Some rows from the first one on, within the shared transaction, and where to go on.
    ///
    /// None: ask Python, since there is a lock or anything else that is not plain, or there is much to read.
    pub fn read(
        shared: &Shared,
        hot: &Hot,
        trees: (Dbi, Dbi),
        ts: u64,
        keys: (&[u8], &[u8]),
        columns: Option<&Vec<(PyBackedBytes, bool)>>,
    ) -> Option<FewRows> {
        let range = Range {
            api: shared.api,
            txn: hot.txn,
            cells: trees.0,
            data: trees.1,
            ts,
            first: keys.0,
            last: keys.1,
        };
        let mut taker = Cells::new(columns, FEW);
        // SAFETY: the transaction has begun, does not write, and ends after this.
        let walked = unsafe { range.begin() }.and_then(|mut walk| walk.go(&mut taker, PASSED));
        let Ok(Walked::Ended(following)) = walked else {
            return None;
        };
        let mut few = FewRows {
            bytes: Vec::new(),
            cells: Vec::with_capacity(taker.found.len()),
            following: following.map(unescaped),
        };
        let mut last_row: Option<&[u8]> = None;
        for (row, column, state) in taker.found {
            let State::Value(_, value) = state else {
                return None;
            };
            if few.bytes.len() + value.len() > COPIED {
                return None;
            }
            if few
                .bytes
                .try_reserve(row.len() + column.len() + value.len())
                .is_err()
            {
                return None;
            }
            let before = few.bytes.len();
            let size = (last_row != Some(row)).then(|| {
                few.bytes.extend(unescaped(row));
                few.bytes.len() - before
            });
            last_row = Some(row);
            few.bytes.extend_from_slice(column);
            few.bytes.extend_from_slice(value);
            few.cells.push((size, column.len(), value.len()));
        }
        Some(few)
    }

    /// A list of the rows, each with a dictionary of its values, and the row to go on from.
    #[allow(clippy::type_complexity)]
    pub fn objects<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, Option<Bound<'py, PyBytes>>)> {
        let rows = PyList::empty(py);
        let mut values = PyDict::new(py);
        let mut names: Vec<Bound<'py, PyBytes>> = Vec::new();
        let mut left = &self.bytes[..];
        let mut take = |size: usize| {
            let (taken, rest) = left.split_at(size);
            left = rest;
            taken
        };
        for (row, column, value) in &self.cells {
            if let Some(size) = row {
                if !rows.is_empty() {
                    values = PyDict::new(py);
                }
                rows.append((PyBytes::new(py, take(*size)), &values))?;
            }
            let column = take(*column);
            let name = match names.iter().find(|name| name.as_bytes() == column) {
                Some(name) => name.clone(),
                None => {
                    let made = PyBytes::new(py, column);
                    if names.len() < NAMES {
                        names.push(made.clone());
                    }
                    made
                }
            };
            values.set_item(name, python::bytes(py, take(*value))?)?;
        }
        let following = self.following.as_ref().map(|row| PyBytes::new(py, row));
        Ok((rows, following))
    }
}

// --- As arrays ----------------------------------------------------------------------------

/// An Arrow array of bytes under construction.
#[derive(Default)]
struct Array {
    valid: Vec<u8>,
    ends: Vec<i32>,
    bytes: Vec<u8>,
    /// Whether a value is missing: there is no memory for it, or it ends behind what `ends` can say.
    is_full: bool,
}

impl Array {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn push(&mut self, value: Option<&[u8]>) {
        let at = self.len();
        if at % 8 == 0 {
            self.valid.push(0);
        }
        if let Some(value) = value {
            let fits = self.bytes.len() + value.len() <= i32::MAX as usize
                && self.bytes.try_reserve(value.len()).is_ok();
            if fits {
                self.valid[at / 8] |= 1 << (at % 8);
                self.bytes.extend_from_slice(value);
            } else {
                self.is_full = true;
            }
        }
        self.ends.push(self.bytes.len() as i32);
    }

    fn fill(&mut self, count: usize) {
        while self.len() < count {
            self.push(None);
        }
    }

    /// A row, from its part of a key.
    fn push_row(&mut self, row: &[u8]) {
        if row.contains(&0) {
            self.push(Some(&unescaped(row)));
        } else {
            self.push(Some(row));
        }
    }

    /// Its length and buffers, as `pyarrow.Array.from_buffers` takes them.
    fn buffers<'py>(&self, py: Python<'py>) -> PyResult<(usize, [Bound<'py, PyBytes>; 3])> {
        let (valid, offsets) = (&self.valid, offsets(&self.ends));
        let bytes = python::bytes(py, &self.bytes)?;
        let parts = [PyBytes::new(py, valid), PyBytes::new(py, &offsets), bytes];
        Ok((self.len(), parts))
    }
}

/// The bytes of a value that count towards `LONG_BYTES`.
fn long_bytes(value: &[u8]) -> usize {
    if value.len() > LONG { value.len() } else { 0 }
}

/// The offsets of an Arrow array, from where each of its values ends.
fn offsets(ends: &[i32]) -> Vec<u8> {
    let first = std::iter::once(&0i32);
    first
        .chain(ends)
        .flat_map(|end| end.to_ne_bytes())
        .collect()
}

struct Columns<'a> {
    /// Their names, in order, each with its number among those asked for.
    names: Vec<&'a [u8]>,
    places: Vec<usize>,
    limit: usize,
    long: usize,
    row: &'a [u8],
    rows: Array,
    values: Vec<Array>,
    blocked: Vec<(usize, usize, u64, &'a [u8])>,
}

impl<'a> Taker<'a> for Columns<'a> {
    fn begins(&mut self) -> bool {
        self.rows.len() < self.limit && self.long < LONG_BYTES
    }

    fn place(&self, column: &[u8]) -> Option<usize> {
        self.names.binary_search(&column).ok()
    }

    fn names(&self) -> &[&'a [u8]] {
        &self.names
    }

    fn take(&mut self, row: &'a [u8], _: &'a [u8], at: usize, state: State<'a>) {
        if self.rows.len() == 0 || row != self.row {
            self.rows.push_row(row);
            self.row = row;
        }
        let index = self.rows.len() - 1;
        let place = self.places[at];
        let values = &mut self.values[place];
        values.fill(index);
        match state {
            State::Value(_, value) => {
                values.push(Some(value));
                self.long += long_bytes(value);
            }
            State::Locked(ts, record) => {
                values.push(None);
                self.blocked.push((index, place, ts, record));
            }
            _ => {}
        }
    }
}

/// `LmdbStore.scan_columns` within a transaction: the rows and each column's values as the
/// parts of Arrow arrays, the locks, and the row to continue from. None: ask Python.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn scan_columns<'py>(
    py: Python<'py>,
    txn: &Transaction,
    trees: (Dbi, Dbi),
    ts: u64,
    first: &[u8],
    last: &[u8],
    columns: Vec<PyBackedBytes>,
    limit: usize,
) -> PyResult<
    Option<(
        Vec<(usize, [Bound<'py, PyBytes>; 3])>,
        Vec<(usize, usize, (u64, Bound<'py, PyBytes>))>,
        Option<Bound<'py, PyBytes>>,
    )>,
> {
    let inner = &txn.inner;
    let range = Sent::new(Range::new(py, txn, trees, ts, (first, last))?);
    let mut sorted: Vec<(&[u8], usize)> = columns
        .iter()
        .enumerate()
        .map(|(place, name)| (&name[..], place))
        .collect();
    sorted.sort_unstable();
    let mut taker = Columns {
        names: sorted.iter().map(|(name, _)| *name).collect(),
        places: sorted.iter().map(|(_, place)| *place).collect(),
        limit,
        long: 0,
        row: &[],
        rows: Array::default(),
        values: columns.iter().map(|_| Array::default()).collect(),
        blocked: Vec::new(),
    };
    let walked = inner.shared.outside(py, || {
        // SAFETY: as in `scan`.
        let walked = unsafe { range.get().walk(&mut taker) };
        let count = taker.rows.len();
        taker
            .values
            .iter_mut()
            .for_each(|values| values.fill(count));
        walked
    });
    let following = match walked {
        Ok(following) => following,
        Err(stopped) => return stopped.told(py),
    };
    let arrays = || std::iter::once(&taker.rows).chain(&taker.values);
    if arrays().any(|array| array.is_full) {
        return Ok(None);
    }
    Ok(Some((
        arrays()
            .map(|array| array.buffers(py))
            .collect::<PyResult<_>>()?,
        taker
            .blocked
            .iter()
            .map(|(row, place, ts, record)| (*row, *place, (*ts, PyBytes::new(py, record))))
            .collect(),
        following.map(|row| PyBytes::new(py, &unescaped(row))),
    )))
}

/// Cells one after the other, whatever their columns are.
struct Flat<'a> {
    wanted: Wanted<'a>,
    limit: usize,
    long: usize,
    row: &'a [u8],
    rows: Array,
    /// The number of cells up to the end of each row.
    ends: Vec<i32>,
    columns: Array,
    values: Array,
    blocked: Vec<(usize, u64, &'a [u8])>,
}

impl<'a> Taker<'a> for Flat<'a> {
    fn begins(&mut self) -> bool {
        self.values.len() < self.limit && self.long < LONG_BYTES
    }

    fn place(&self, column: &[u8]) -> Option<usize> {
        self.wanted.has(column).then_some(0)
    }

    fn names(&self) -> &[&'a [u8]] {
        &self.wanted.names
    }

    fn take(&mut self, row: &'a [u8], column: &'a [u8], _: usize, state: State<'a>) {
        if self.ends.is_empty() || row != self.row {
            self.rows.push_row(row);
            self.ends.push(self.values.len() as i32);
            self.row = row;
        }
        match state {
            State::Value(_, value) => {
                self.values.push(Some(value));
                self.long += long_bytes(value);
            }
            State::Locked(ts, record) => {
                self.blocked.push((self.values.len(), ts, record));
                self.values.push(None);
            }
            _ => return,
        }
        self.columns.push(Some(column));
        if let Some(end) = self.ends.last_mut() {
            *end += 1;
        }
    }
}

/// `LmdbStore.scan_cells` within a transaction: the rows, the names and the values of their cells
/// as the parts of Arrow arrays, the offsets of the rows among the cells, the locks, and the row to
/// continue from. None: ask Python.
#[pyfunction]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
pub fn scan_cells<'py>(
    py: Python<'py>,
    txn: &Transaction,
    trees: (Dbi, Dbi),
    ts: u64,
    first: &[u8],
    last: &[u8],
    columns: Option<Vec<(PyBackedBytes, bool)>>,
    limit: usize,
) -> PyResult<
    Option<(
        [(usize, [Bound<'py, PyBytes>; 3]); 3],
        Bound<'py, PyBytes>,
        Vec<(usize, (u64, Bound<'py, PyBytes>))>,
        Option<Bound<'py, PyBytes>>,
    )>,
> {
    let inner = &txn.inner;
    let range = Sent::new(Range::new(py, txn, trees, ts, (first, last))?);
    let mut taker = Flat {
        wanted: Wanted::new(columns.as_ref()),
        limit,
        long: 0,
        row: &[],
        rows: Array::default(),
        ends: Vec::new(),
        columns: Array::default(),
        values: Array::default(),
        blocked: Vec::new(),
    };
    let walked = inner
        .shared
        // SAFETY: as in `scan`.
        .outside(py, || unsafe { range.get().walk(&mut taker) });
    let following = match walked {
        Ok(following) => following,
        Err(stopped) => return stopped.told(py),
    };
    let arrays = [&taker.rows, &taker.columns, &taker.values];
    if arrays.iter().any(|array| array.is_full) {
        return Ok(None);
    }
    let [rows, columns, values] = arrays.map(|array| array.buffers(py));
    Ok(Some((
        [rows?, columns?, values?],
        PyBytes::new(py, &offsets(&taker.ends)),
        taker
            .blocked
            .iter()
            .map(|(at, ts, record)| (*at, (*ts, PyBytes::new(py, record))))
            .collect(),
        following.map(|row| PyBytes::new(py, &unescaped(row))),
    )))
}
