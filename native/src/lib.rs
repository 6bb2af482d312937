//! percola._native: LMDB for `percola.store.lmdb`, with its hot paths in native code.
//!
//! `docs/decisions/058-native-lmdb.md` says why it is here and what it may do.

mod active;
mod cells;
mod columns;
mod commit;
mod environment;
mod held;
mod lmdb;
mod python;
mod reads;
mod scans;
mod transactions;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let (major, minor, patch) = lmdb::api(py)?.numbers();
    // To be raised with `percola.store.lmdb.driver` whenever `percola/_native.pyi` changes.
    module.add("INTERFACE", 3)?;
    module.add("LMDB_VERSION", format!("{major}.{minor}.{patch}"))?;
    module.add_class::<environment::Environment>()?;
    module.add_class::<environment::Transaction>()?;
    module.add_class::<environment::Cursor>()?;
    module.add_class::<reads::Reads>()?;
    module.add_class::<reads::Reader>()?;
    module.add_class::<reads::LastDrawn>()?;
    module.add_function(wrap_pyfunction!(reads::states, module)?)?;
    module.add_function(wrap_pyfunction!(scans::scan, module)?)?;
    module.add_function(wrap_pyfunction!(scans::scan_columns, module)?)?;
    module.add_function(wrap_pyfunction!(scans::scan_cells, module)?)?;
    module.add_class::<active::Slot>()?;
    module.add_class::<active::ActiveSnapshots>()?;
    module.add_class::<columns::Calls>()?;
    module.add_class::<transactions::SnapshotBase>()?;
    module.add_class::<transactions::TransactionBase>()?;
    module.add_function(wrap_pyfunction!(held::forked, module)?)?;
    module.add_class::<commit::Commits>()?;
    module.add_function(wrap_pyfunction!(commit::commit_cells, module)?)?;
    let ending = wrap_pyfunction!(python::ending, module)?;
    py.import("atexit")?.call_method1("register", (ending,))?;
    Ok(())
}
