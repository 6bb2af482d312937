//! Cells as `percola.store.lmdb.keys` and `percola.cells` encode them, and the version of one that
//! a reader sees: `percola.store.lmdb.store.LmdbStore._state`.
//!
//! Whatever looks damaged is `Unclear`: the caller has the Python function decide, which raises.

use std::ffi::c_int;

use crate::lmdb::{self, Api, Dbi, KEY_BYTES, Val};

/// Bytes of a key before its row: the table.
pub const TABLE: usize = 2;
/// What Percola's own columns begin with.
pub const SYSTEM: u8 = b'@';
pub const TOP: u64 = u64::MAX;
pub const MAX_TS: u64 = (1 << 63) - 1;
/// Bytes of a write record before its value.
pub const HEADER: usize = 10;
pub const INLINE: u8 = 1;
pub const LAST_CHANGE: u8 = 2;
const DECIDES: u8 = 4;
/// The longest value in a record.
pub const INLINE_BYTES: usize = 256;
/// Bytes of a record that repeats a change, before that.
pub const CHANGE: usize = HEADER + 8;
pub const PUT: u8 = b'P';
pub const DELETE: u8 = b'D';
pub const LOCK: u8 = b'L';
const ROLLBACK: u8 = b'R';

/// Entries that are passed one by one before seeking what follows.
const STEPS: usize = 8;

/// The key of an entry, on the stack; a longer one than LMDB takes cannot be made.
pub struct Key {
    bytes: [u8; KEY_BYTES],
    size: usize,
}

impl Key {
    pub fn new() -> Key {
        Key {
            bytes: [0; KEY_BYTES],
            size: 0,
        }
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    #[must_use]
    pub fn add(&mut self, more: &[u8]) -> bool {
        let end = self.size + more.len();
        if end > KEY_BYTES {
            return false;
        }
        self.bytes[self.size..end].copy_from_slice(more);
        self.size = end;
        true
    }

    /// Adds a row, with its NULs escaped.
    #[must_use]
    pub fn add_row(&mut self, row: &[u8]) -> bool {
        if !row.contains(&0) {
            return self.add(row);
        }
        row.iter().all(|byte| {
            self.add(if *byte == 0 {
                b"\0\xff"
            } else {
                std::slice::from_ref(byte)
            })
        })
    }
}

/// Where the column begins in a key.
pub fn column_at(key: &[u8]) -> Option<usize> {
    let mut pairs = key.windows(2).skip(TABLE);
    Some(pairs.position(|pair| pair == b"\0\x01")? + TABLE + 2)
}

pub fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// A cell as a reader sees it.
pub enum State<'a> {
    Nothing,
    Locked(u64, &'a [u8]),
    Value(u64, &'a [u8]),
    Deleted(u64),
    Unclear,
}

/// A cursor with the entry that it stands at.
pub struct Place<'a> {
    api: &'static Api,
    cursor: *mut lmdb::Cursor,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Place<'a> {
    /// # Safety
    /// The cursor is live for `'a`, is used by nobody else, and nothing is written meanwhile.
    pub unsafe fn new(api: &'static Api, cursor: *mut lmdb::Cursor) -> Place<'a> {
        Place {
            api,
            cursor,
            key: &[],
            value: &[],
        }
    }

    fn go(&mut self, key: &[u8], op: c_int) -> Result<bool, c_int> {
        let (mut key, mut value) = (Val::of(key), Val::EMPTY);
        // SAFETY: the cursor is live.
        match unsafe { (self.api.cursor_get)(self.cursor, &mut key, &mut value, op) } {
            0 => {
                // SAFETY: `new` was promised that these stay.
                (self.key, self.value) = unsafe { (key.bytes(), value.bytes()) };
                Ok(true)
            }
            lmdb::NOTFOUND => {
                (self.key, self.value) = (&[], &[]);
                Ok(false)
            }
            code => Err(code),
        }
    }

    /// Goes to the first entry at or after a key.
    pub fn seek(&mut self, key: &[u8]) -> Result<bool, c_int> {
        self.go(key, lmdb::SET_RANGE)
    }

    /// Goes past the entries of a cell; usually the next entry is another's.
    pub fn pass(&mut self, cell: &[u8]) -> Result<bool, c_int> {
        for _ in 0..STEPS {
            if !self.key.starts_with(cell) {
                return Ok(!self.key.is_empty());
            }
            if !self.next()? {
                return Ok(false);
            }
        }
        if !self.key.starts_with(cell) {
            return Ok(true);
        }
        let mut after = Key::new();
        if !after.add(cell) || !after.add(&[0xff; 9]) {
            return Err(lmdb::BAD_VALSIZE);
        }
        self.seek(after.get())
    }

    pub fn next(&mut self) -> Result<bool, c_int> {
        self.go(&[], lmdb::NEXT)
    }
}

/// The state of the cell `key` for a reader at `ts`; `place` is at or after its first entry.
///
/// # Safety
/// `txn` is live for `'a`, has the cursor, and writes nothing meanwhile.
pub unsafe fn state<'a>(
    place: &mut Place<'a>,
    txn: *mut lmdb::Txn,
    data: Dbi,
    key: &[u8],
    ts: u64,
) -> Result<State<'a>, c_int> {
    while let Some(stamp) = place.key.strip_prefix(key) {
        let Some(at) = number(stamp) else {
            return Ok(State::Unclear);
        };
        if at <= MAX_TS {
            if at <= ts {
                return Ok(State::Locked(at, place.value));
            }
        } else {
            let mut commit_ts = TOP - at;
            if commit_ts > ts {
                let mut bound = Key::new();
                if !bound.add(key) || !bound.add(&(TOP - ts).to_be_bytes()) {
                    return Ok(State::Unclear);
                }
                if !place.seek(bound.get())? {
                    return Ok(State::Nothing);
                }
                continue;
            }
            let mut record = place.value;
            if record.len() < HEADER {
                return Ok(State::Unclear);
            }
            if record[1] > INLINE && record[1] & LAST_CHANGE != 0 {
                if record.len() < CHANGE {
                    return Ok(State::Unclear);
                }
                commit_ts = number(&record[HEADER..CHANGE]).unwrap_or(0);
                record = &record[CHANGE..];
                if record.is_empty() {
                    return Ok(State::Nothing);
                }
                if record.len() < HEADER {
                    return Ok(State::Unclear);
                }
            }
            if record[0] == PUT {
                if record[1] != 0 {
                    return Ok(State::Value(commit_ts, &record[HEADER..]));
                }
                let start_ts = number(&record[2..HEADER]).unwrap_or(0) & MAX_TS;
                let mut entry = Key::new();
                if !entry.add(key) || !entry.add(&(TOP - start_ts).to_be_bytes()) {
                    return Ok(State::Unclear);
                }
                let (mut name, mut value) = (Val::of(entry.get()), Val::EMPTY);
                // SAFETY: the transaction is live.
                return match unsafe { (place.api.get)(txn, data, &mut name, &mut value) } {
                    // SAFETY: as the caller promises.
                    0 => Ok(State::Value(commit_ts, unsafe { value.bytes() })),
                    lmdb::NOTFOUND => Ok(State::Unclear),
                    code => Err(code),
                };
            }
            if record[0] == DELETE {
                return Ok(State::Deleted(commit_ts));
            }
        }
        if !place.next()? {
            break;
        }
    }
    Ok(State::Nothing)
}

/// `percola.cells.newest_change` of all records of a cell, as a record repeats it; `place` is at or
/// after the first of them. None: a record looks damaged.
pub fn newest_change(place: &mut Place<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, c_int> {
    let changes = |record: &[u8]| {
        (HEADER..=HEADER + INLINE_BYTES).contains(&record.len())
            && matches!(record[0], PUT | DELETE)
            && (record[1] == INLINE || (record[1] == 0 && record.len() == HEADER))
    };
    while let Some(stamp) = place.key.strip_prefix(key) {
        let (Some(at), record) = (number(stamp), place.value) else {
            return Ok(None);
        };
        if changes(record) {
            let commit_ts = (TOP - at).to_be_bytes();
            return Ok(Some([&commit_ts, record].concat()));
        }
        if record.len() < HEADER || !matches!(record[0], LOCK | ROLLBACK) {
            return Ok(None);
        }
        let (flags, rest) = (record[1], &record[HEADER..]);
        if flags & !(LAST_CHANGE | DECIDES) != 0 {
            return Ok(None);
        }
        if flags & LAST_CHANGE != 0 {
            let Some((commit_ts, repeated)) = rest.split_at_checked(CHANGE - HEADER) else {
                return Ok(None);
            };
            let fits = match number(commit_ts) {
                Some(0) => repeated.is_empty(),
                Some(1..=MAX_TS) => changes(repeated),
                _ => false,
            };
            return Ok(fits.then(|| rest.to_vec()));
        }
        if !rest.is_empty() {
            return Ok(None);
        }
        if !place.next()? {
            break;
        }
    }
    Ok(Some(0u64.to_be_bytes().to_vec()))
}
