//! Manifests of sliced models.
#![no_main]

use std::sync::OnceLock;

use gguf::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        folder.expect("a temporary folder can be made")
    });
    std::fs::write(folder.path().join(gguf::MANIFEST_FILE), data).expect("the file can be written");
    if let Ok(manifest) = Manifest::read(folder.path()) {
        manifest.files().for_each(|file| assert!(!format!("{file:?}").is_empty()));
    }
});
