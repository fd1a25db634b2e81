//! Files in a store's folder: what is not whole is never given to anybody, and what is whole comes back.
#![no_main]

use std::path::PathBuf;
use std::sync::{OnceLock, mpsc};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use store::{Name, Store};

/// The store of this process, in memory where the system has such a folder, and the place of its one file.
fn place() -> &'static (Store, PathBuf, tempfile::TempDir) {
    static PLACE: OnceLock<(Store, PathBuf, tempfile::TempDir)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a temporary folder can be made");
        let store = Store::open(folder.path().to_owned(), 1 << 30).expect("the folder can be read");
        let digits: String = name().digest().iter().map(|byte| format!("{byte:02x}")).collect();
        let file = folder.path().join(format!("{digits}.kv"));
        (store, file, folder)
    })
}

fn name() -> Name {
    Name::new("kv", &[b"fuzz"])
}

fn read(store: &Store) -> Option<Bytes> {
    let (tell, told) = mpsc::channel();
    store.read(name(), move |bytes| tell.send(bytes).expect("somebody waits"));
    told.recv().expect("an answer")
}

fuzz_target!(|data: &[u8]| {
    let (store, file, _) = place();
    std::fs::write(file, data).expect("the file can be written");
    // Only what carries the digest of all the rest.
    let is_whole = data.len() >= 72
        && data[..8] == *b"PACELIN1"
        && data[8..40] == *blake3::hash(&data[40..]).as_bytes()
        && data[40..72] == name().digest();
    assert_eq!(read(store).as_deref(), is_whole.then(|| &data[72..]));
    assert_eq!(file.exists(), is_whole, "what is spoiled is removed");
    let digest = blake3::Hasher::new().update(&name().digest()).update(data).finalize();
    let whole = [&b"PACELIN1"[..], digest.as_bytes(), &name().digest(), data].concat();
    std::fs::write(file, whole).expect("the file can be written");
    assert_eq!(read(store).as_deref(), Some(data));
});
