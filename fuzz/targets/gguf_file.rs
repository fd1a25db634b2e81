//! Model files: header, metadata and tensor table of any bytes, what they say of a slice, and the plan that would be made of
//! them.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use gguf::{Model, Plan, SliceInfo, Source};
use libfuzzer_sys::fuzz_target;

/// The file of this process, in memory where the system has such a folder.
fn file() -> &'static (tempfile::TempDir, PathBuf) {
    static FILE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    FILE.get_or_init(|| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a temporary folder can be made");
        let path = folder.path().join("model.gguf");
        (folder, path)
    })
}

fuzz_target!(|data: &[u8]| {
    let (_, path) = file();
    std::fs::write(path, data).expect("the file can be written");
    let Ok(model) = Model::open(path) else { return };
    let _ = SliceInfo::read(&model);
    let Ok(source) = Source::new(&model) else { return };
    let _ = Plan::at_cuts(&source, &[1]);
});
