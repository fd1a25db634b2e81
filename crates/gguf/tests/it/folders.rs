//! Folders of slices: written once, listed with digests, checked against them.

use std::fs;
use std::path::Path;

use crate::toys::{Shape, open};
use gguf::{
    CutError, FolderError, Identity, MANIFEST_FILE, Manifest, Model, Plan, SliceFolder, Source, WriteError,
    verify_slice,
};

const ID: Identity = Identity([7; 32]);

fn split(source: &Source<'_>, folder: &Path, n_stages: u32) -> Manifest {
    let slices = SliceFolder::open(folder, source, ID).unwrap();
    let plan = Plan::balanced(source, n_stages).unwrap();
    let (mut last, mut all) = (0, 0);
    let paths = slices
        .ensure_all(&plan, &mut |done, total| {
            assert!(done >= last && done <= total);
            (last, all) = (done, total);
        })
        .unwrap();
    assert_eq!(last, all);
    assert_eq!(paths.len(), n_stages as usize);
    assert!(Model::open(&slices.vocab_path()).unwrap().tensors().is_empty());
    Manifest::read(folder).unwrap()
}

#[test]
fn a_manifest_lists_every_slice_with_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "gemma3", 6, Shape::default());
    let source = Source::new(&whole).unwrap();
    let out = folder.path().join("out");
    let manifest = split(&source, &out, 3);
    assert_eq!((manifest.model_id, manifest.arch.as_str(), manifest.n_layers), (ID, "gemma3", 6));
    assert_eq!(manifest.slices.len(), 3);
    for (at, record) in manifest.slices.iter().enumerate() {
        assert_eq!(record.embeddings.is_some(), at == 0);
        assert_eq!(fs::metadata(out.join(&record.slice.file)).unwrap().len(), record.slice.bytes);
        verify_slice(&out, &manifest, &(record.start..record.end), &mut |done, total| assert!(done <= total))
            .unwrap();
    }
    let error = verify_slice(&out, &manifest, &(0..6), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, FolderError::NoSlice { start: 0, end: 6, .. }));
    // Another split of the same model adds to it.
    assert_eq!(split(&source, &out, 2).slices.len(), 5);
}

#[test]
fn one_flipped_bit_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 2, Shape::default());
    let source = Source::new(&whole).unwrap();
    let manifest = split(&source, folder.path(), 2);
    let record = &manifest.slices[0];
    let verify = || verify_slice(folder.path(), &manifest, &(record.start..record.end), &mut |_, _| {});
    for file in [&record.slice, record.embeddings.as_ref().unwrap()] {
        let path = folder.path().join(&file.file);
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(good.len() / 20).chain([good.len() - 1]) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            assert!(matches!(verify(), Err(FolderError::Damaged { .. })), "{at}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(matches!(verify(), Err(FolderError::Damaged { .. })));
        fs::write(&path, [&good[..], &[0]].concat()).unwrap();
        assert!(matches!(verify(), Err(FolderError::Damaged { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(verify(), Err(FolderError::Io { .. })));
        fs::write(&path, good).unwrap();
        verify().unwrap();
    }
}

#[test]
fn slices_are_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 4, Shape::default());
    let source = Source::new(&whole).unwrap();
    let slices = SliceFolder::open(folder.path(), &source, ID).unwrap();
    let path = slices.ensure(0..2, &mut |_, _| {}).unwrap();
    slices.ensure(0..2, &mut |_, _| panic!("it is written again")).unwrap();
    let good = fs::read(&path).unwrap();
    // A lost or shortened file is written again; so is everything when the version changes.
    fs::write(&path, &good[..100]).unwrap();
    slices.ensure(0..2, &mut |_, _| {}).unwrap();
    assert_eq!(fs::read(&path).unwrap(), good);
    fs::remove_file(gguf::embeddings_path(&path)).unwrap();
    slices.ensure(0..2, &mut |_, _| {}).unwrap();
    assert!(gguf::embeddings_path(&path).exists());
    let manifest = folder.path().join(MANIFEST_FILE);
    let version = |n: u32| format!("\"version\": {n}");
    let text = fs::read_to_string(&manifest).unwrap();
    let older = text.replace(&version(gguf::SLICE_VERSION), &version(gguf::SLICE_VERSION - 1));
    assert_ne!(older, text);
    fs::write(&manifest, older).unwrap();
    let mut written = false;
    slices.ensure(0..2, &mut |_, _| written = true).unwrap();
    assert!(written);
}

#[test]
fn several_threads_may_fill_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 6, Shape::default());
    let source = Source::new(&whole).unwrap();
    std::thread::scope(|scope| {
        for at in 0..6_u32 {
            let (source, folder) = (&source, folder.path());
            scope.spawn(move || {
                let slices = SliceFolder::open(folder, source, ID).unwrap();
                // Two of them want the same slice.
                slices.ensure(at / 2 * 2..at / 2 * 2 + 2, &mut |_, _| {}).unwrap();
            });
        }
    });
    let manifest = Manifest::read(folder.path()).unwrap();
    assert_eq!(manifest.slices.len(), 3);
    for record in &manifest.slices {
        verify_slice(folder.path(), &manifest, &(record.start..record.end), &mut |_, _| {}).unwrap();
    }
}

#[test]
fn a_folder_of_another_model_or_without_a_usable_manifest_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 2, Shape::default());
    let source = Source::new(&whole).unwrap();
    split(&source, folder.path(), 2);
    let other = SliceFolder::open(folder.path(), &source, Identity([8; 32]));
    assert!(matches!(other, Err(FolderError::OtherModel { .. })));
    let manifest = folder.path().join(MANIFEST_FILE);
    let text = fs::read_to_string(&manifest).unwrap();
    let long = "x".repeat(70 << 20);
    for bad in [
        "".to_owned(),
        "[]".to_owned(),
        text.replace("layers-000-001.gguf", "../layers-000-001.gguf"),
        text.replace("layers-000-001.gguf", "/etc/passwd"),
        text.replace("layers-000-001.gguf", ".."),
        text.replace("\"arch\"", "\"color\""),
        long,
    ] {
        fs::write(&manifest, bad).unwrap();
        assert!(matches!(Manifest::read(folder.path()), Err(FolderError::Manifest { .. })));
    }
    fs::remove_file(&manifest).unwrap();
    assert!(matches!(Manifest::read(folder.path()), Err(FolderError::Io { .. })));
}

#[test]
fn a_range_that_cannot_be_a_stage_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 2, Shape::default());
    let source = Source::new(&whole).unwrap();
    let slices = SliceFolder::open(folder.path(), &source, ID).unwrap();
    let error = slices.ensure(1..3, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, FolderError::Write(WriteError::Cut(CutError::Range { .. }))));
    assert!(Manifest::read(folder.path()).unwrap().slices.is_empty());
}
