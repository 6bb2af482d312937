//! Which snapshots this process reads: `percola.transactions.active_snapshots.ActiveSnapshots`.
//!
//! Nothing but `hold_back` is Python's, so no other thread comes between the steps of a call that
//! needs only the slot.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::held::{Held, Plain, forks};
use crate::python;

/// How many snapshots may begin before the oldest is published again.
const RENEWED: u32 = 256;

/// The place of a process among those that publish a timestamp, in mapped memory:
/// `percola.coordination.local.active_slots`.
#[pyclass(frozen, module = "percola._native")]
pub struct Slot {
    buffer: Held<Option<PyBuffer<u64>>>,
    index: usize,
}

impl Slot {
    /// Whether the timestamp is published: not after `close`.
    fn publish(&self, py: Python<'_>, ts: u64) -> bool {
        let buffer = self.buffer.get(py);
        let Some(buffer) = &*buffer else {
            return false;
        };
        // SAFETY: the buffer is held, and was found long enough.
        let place = unsafe { AtomicU64::from_ptr(buffer.buf_ptr().cast::<u64>().add(self.index)) };
        place.store(ts, Ordering::Release);
        true
    }
}

#[pymethods]
impl Slot {
    #[new]
    fn new(buffer: PyBuffer<u64>, index: usize) -> PyResult<Self> {
        if buffer.readonly() || index >= buffer.item_count() {
            return Err(PyValueError::new_err("there is no such slot"));
        }
        Ok(Slot {
            buffer: Held::new(Some(buffer)),
            index,
        })
    }

    /// Publishes a timestamp in place of the previous one; ValueError after `close`.
    fn __call__(&self, py: Python<'_>, ts: u64) -> PyResult<()> {
        if self.publish(py, ts) {
            Ok(())
        } else {
            Err(PyValueError::new_err("this slot is another process's"))
        }
    }

    /// Lets the memory go, and never writes to it again.
    fn close(&self, py: Python<'_>) {
        let old = self.buffer.edit(py).take();
        drop(old);
    }
}

#[derive(Default)]
struct State {
    active: HashMap<u64, u64, BuildHasherDefault<Plain>>,
    /// What was published last.
    held: u64,
    since: u32,
    slot: Option<Py<Slot>>,
    forks: u64,
}

/// The timestamps that this process reads at; for all of its threads.
#[pyclass(frozen, module = "percola._native")]
pub struct ActiveSnapshots {
    hold_back: Py<PyAny>,
    state: Held<State>,
}

impl ActiveSnapshots {
    /// Has a child of a fork begin with none.
    fn afresh(&self, py: Python<'_>) {
        if self.state.get(py).forks != forks() {
            let new = State {
                forks: forks(),
                ..State::default()
            };
            let old = std::mem::replace(&mut *self.state.edit(py), new);
            drop(old);
        }
    }

    fn tell(&self, py: Python<'_>, ts: u64) -> PyResult<()> {
        let told = match &self.state.get(py).slot {
            Some(slot) => slot.get().publish(py, ts),
            None => false,
        };
        if !told {
            let slot = python::call(self.hold_back.bind(py), (ts,))?;
            let slot = slot.cast_into::<Slot>().ok().map(Bound::unbind);
            let old = std::mem::replace(&mut self.state.edit(py).slot, slot);
            drop(old);
        }
        Ok(())
    }

    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        self.state.edit(py).since = 0;
        loop {
            // 0 where nothing is read but at timestamp 0, at which a repository is empty.
            let oldest = self.oldest(py).unwrap_or(0);
            self.state.edit(py).held = oldest;
            self.tell(py, oldest)?;
            // `hold_back` may have let other threads begin, end, or publish older values.
            if self.state.get(py).held == oldest && oldest == self.oldest(py).unwrap_or(0) {
                return Ok(());
            }
        }
    }
}

#[pymethods]
impl ActiveSnapshots {
    #[new]
    fn new(hold_back: Py<PyAny>) -> Self {
        ActiveSnapshots {
            hold_back,
            state: Held::new(State {
                forks: forks(),
                ..State::default()
            }),
        }
    }

    /// Registers a snapshot, identified by `key`, that reads at `ts`.
    pub fn add(&self, py: Python<'_>, key: u64, ts: u64) -> PyResult<()> {
        self.afresh(py);
        let mut state = self.state.edit(py);
        state.active.insert(key, ts);
        if state.held == 0 {
            state.held = ts;
            drop(state);
            self.tell(py, ts)?;
            if self.state.get(py).active.len() != 1 {
                self.publish(py)?;
            }
            return Ok(());
        }
        state.since += 1;
        let due = ts < state.held || state.since >= RENEWED;
        drop(state);
        if due { self.publish(py) } else { Ok(()) }
    }

    /// Unregisters a snapshot; harmless if it is not registered.
    pub fn drop(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        self.afresh(py);
        let mut state = self.state.edit(py);
        let Some(ts) = state.active.remove(&key) else {
            return Ok(());
        };
        if state.active.is_empty() {
            state.held = 0;
            drop(state);
            self.tell(py, 0)?;
            if !self.state.get(py).active.is_empty() {
                self.publish(py)?;
            }
            return Ok(());
        }
        let held = state.held;
        drop(state);
        if ts == held && self.oldest(py) != Some(ts) {
            self.publish(py)?;
        }
        Ok(())
    }

    /// The oldest timestamp that is read at, or None. Not 0, which says that nothing is.
    fn oldest(&self, py: Python<'_>) -> Option<u64> {
        self.afresh(py);
        let state = self.state.get(py);
        state.active.values().filter(|ts| **ts != 0).min().copied()
    }
}
