//! The store for prefixes on this machine's disk, if the user gives it any.

use store::Store;

use crate::args::Disk;
use crate::engines::{ALL_LAYERS, EngineOptions};
use crate::{paths, signals};

/// Opens it. Without room for prefixes there is none.
///
/// # Errors
/// If the folder cannot be used.
pub(crate) fn open(disk: &Disk) -> anyhow::Result<Option<Store>> {
    if disk.bytes == 0 {
        return Ok(None);
    }
    let folder = match &disk.folder {
        Some(folder) => folder.join("prefixes"),
        None => paths::cache_dir()?.join("prefixes"),
    };
    Ok(Some(Store::open(folder, disk.bytes)?))
}

/// A stage's share of it.
pub(crate) fn of_stage(store: Option<Store>, options: &EngineOptions) -> Option<line::PrefixStore> {
    let gpu_layers = options.gpu_layers.unwrap_or(ALL_LAYERS);
    let engine = format!("{}, {gpu_layers} on {:?}", signals::build(), options.device);
    store.map(|store| line::PrefixStore { store, engine })
}
