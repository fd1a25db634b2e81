//! Opening, sharding, identity, the identity cache and the toys' own edits.

use std::fs;
use std::time::Duration;

use crate::toys::{self, Shape, open};
use gguf::toy::{self, Toy, Weights};
use gguf::{HeaderError, Identity, IdentityCache, IdentityError, Model, OpenError, identity};
use proptest::prelude::*;

fn id(model: &Model) -> Identity {
    let (mut last, mut all) = (0, 0);
    let id = identity(model, &mut |done, total| (last, all) = (done, total)).unwrap();
    assert_eq!(last, all);
    id
}

fn same(a: &Model, b: &Model) {
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (a_tensor, b_tensor) in a.tensors().iter().zip(b.tensors()) {
        assert_eq!(a_tensor.name, b_tensor.name);
        assert_eq!(a.read_tensor(a_tensor).unwrap(), b.read_tensor(b_tensor).unwrap());
    }
}

#[test]
fn a_sharded_model_reads_as_one_and_has_the_same_identity() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 3, Shape::default());
    for (n, empty_first) in [(1, false), (2, false), (3, true), (5, true), (7, false)] {
        let first = toy::shard(&whole, n, empty_first, folder.path(), "part").unwrap();
        let parts = Model::open(&first).unwrap();
        same(&whole, &parts);
        assert_eq!(parts.files().len(), usize::from(n));
        assert_eq!(parts.tensors()[0].shard, usize::from(empty_first));
        assert_eq!(id(&whole), id(&parts), "{n}");
    }
    assert!(toy::shard(&whole, 0, false, folder.path(), "none").is_err());
    assert!(toy::shard(&whole, 1, true, folder.path(), "none").is_err());
    assert!(toy::shard(&whole, 1000, false, folder.path(), "none").is_err());
}

#[test]
fn a_sharded_model_that_is_not_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let part = |i: u16| folder.path().join(format!("m-0000{i}-of-00003.gguf"));
    let whole = open(folder.path(), "llama", 3, Shape::default());
    let make = |model: &Model| toy::shard(model, 3, true, folder.path(), "m").unwrap();
    let error = || Model::open(&part(1)).unwrap_err();
    make(&whole);
    assert!(matches!(Model::open(&part(2)), Err(OpenError::NotFirstShard { number: 2, count: 3, .. })));
    fs::remove_file(part(3)).unwrap();
    assert!(error().to_string().contains("m-00003-of-00003.gguf is missing"), "{}", error());
    fs::copy(part(2), part(3)).unwrap();
    assert!(matches!(error(), OpenError::WrongShard { number: 3, .. }));
    make(&whole);
    fs::rename(part(1), folder.path().join("renamed.gguf")).unwrap();
    let renamed = Model::open(&folder.path().join("renamed.gguf"));
    assert!(matches!(renamed, Err(OpenError::ShardName { count: 3, .. })));
    // The last part of a deeper model: its tensors are others, and there are more of them.
    let deeper = open(folder.path(), "llama", 4, Shape::default());
    make(&deeper);
    fs::rename(part(3), folder.path().join("kept")).unwrap();
    make(&whole);
    fs::rename(folder.path().join("kept"), part(3)).unwrap();
    assert!(
        matches!(error(), OpenError::TensorCount { .. } | OpenError::DuplicateTensor { .. }),
        "{}",
        error()
    );
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Model::open(folder.path()), Err(OpenError::Io { .. })));
    assert!(matches!(Model::open(&folder.path().join("none.gguf")), Err(OpenError::Io { .. })));
    let page = folder.path().join("page.gguf");
    fs::write(&page, "<!doctype html><title>404: not found, says the hub</title>").unwrap();
    let error = Model::open(&page).unwrap_err();
    assert!(matches!(error, OpenError::Header { source: HeaderError::Magic, .. }));
    assert!(error.to_string().contains("page.gguf: it is not a GGUF file"));
}

#[test]
fn identity_sees_every_part_of_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let toy = Toy::named("llama").unwrap();
    let mut ids = vec![];
    let mut add = |toy: Toy, n_layers, change: &dyn Fn(&mut gguf::Metadata)| {
        toys::write_with(&path, toy, n_layers, change);
        ids.push(id(&Model::open(&path).unwrap()));
    };
    add(toy, 2, &|_| {});
    add(toy.seed(1), 2, &|_| {});
    add(toy.weights(Weights::Q8_0), 2, &|_| {});
    add(toy, 3, &|_| {});
    add(toy, 2, &|m| m.set("general.name", gguf::Value::string("other")));
    add(toy, 2, &|m| m.set("llama.rope.freq_base", 1e4_f32));
    add(toy, 2, &|m| m.set("llama.rope.freq_base", 1e4_f64));
    add(toy, 2, &|m| m.set("llama.vocab_size", 513_u32));
    assert!((0..ids.len()).all(|i| (0..i).all(|j| ids[i] != ids[j])));
    let shown = ids[0].to_string();
    assert_eq!((shown.len(), shown.parse()), (64, Ok(ids[0])));
    assert!("xyz".parse::<Identity>().is_err() && shown.to_uppercase().parse::<Identity>().is_err());
}

#[test]
fn one_flipped_bit_of_data_changes_the_identity() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(folder.path(), "llama", 2, Shape::default());
    let before = id(&model);
    let mut bytes = fs::read(model.path()).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(model.path(), bytes).unwrap();
    assert_ne!(id(&Model::open(model.path()).unwrap()), before);
}

#[test]
fn a_cached_identity_lasts_until_length_or_time_changes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = IdentityCache::new(folder.path().join("cache"));
    let model = open(folder.path(), "llama", 2, Shape::default());
    assert_eq!(cache.known(&model).unwrap(), None);
    let first = cache.identity(&model, &mut |_, _| {}).unwrap();
    assert_eq!(first, id(&model));
    let again = cache.identity(&model, &mut |_, _| panic!("it is read again")).unwrap();
    assert_eq!(first, again);
    let file = fs::File::options().write(true).open(model.path()).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.set_modified(modified + Duration::from_nanos(1000)).unwrap();
    assert_eq!(cache.known(&model).unwrap(), None);
    file.set_modified(modified).unwrap();
    assert_eq!(cache.known(&model).unwrap(), Some(first));
    file.set_len(file.metadata().unwrap().len() + 1).unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(cache.known(&model).unwrap(), None);
    // A damaged entry is computed again.
    for entry in fs::read_dir(folder.path().join("cache")).unwrap() {
        fs::write(entry.unwrap().path(), "nonsense").unwrap();
    }
    assert_eq!(cache.identity(&model, &mut |_, _| {}).unwrap(), first);
}

#[test]
fn a_model_is_found_by_identity_among_others() {
    let folder = tempfile::tempdir().unwrap();
    let cache = IdentityCache::new(folder.path().join("cache"));
    let models: Vec<_> = (2..5).map(|n| open(folder.path(), "llama", n, Shape::default())).collect();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    toy::shard(&models[1], 3, true, &parts, "p").unwrap();
    fs::write(parts.join("a.gguf"), "no model").unwrap();
    fs::write(parts.join("z.txt"), "no model").unwrap();
    gguf::write_vocab(&models[1], &parts.join("b.gguf")).unwrap();
    let find = |folder: &std::path::Path, model: &Model| {
        cache.find(folder, id(model), &mut |_, _| {}).unwrap().map(|model| model.path().to_owned())
    };
    assert_eq!(find(folder.path(), &models[2]), Some(models[2].path().to_owned()));
    assert_eq!(find(folder.path(), &models[0]), Some(models[0].path().to_owned()));
    assert_eq!(find(&parts, &models[1]), Some(parts.join("p-00001-of-00003.gguf")));
    assert_eq!(find(&parts, &models[0]), None);
    assert!(cache.find(&parts.join("none"), id(&models[0]), &mut |_, _| {}).is_err());
    cache.find(folder.path(), id(&models[1]), &mut |_, _| panic!("it is read again")).unwrap();
}

#[test]
fn a_changed_later_part_invalidates_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = IdentityCache::new(folder.path().join("cache"));
    let whole = open(folder.path(), "llama", 2, Shape::default());
    let parts = Model::open(&toy::shard(&whole, 3, false, folder.path(), "p").unwrap()).unwrap();
    cache.identity(&parts, &mut |_, _| {}).unwrap();
    assert!(cache.known(&parts).unwrap().is_some());
    assert_eq!(cache.known(&whole).unwrap(), None);
    let last = parts.files().last().unwrap();
    let file = fs::File::options().write(true).open(last).unwrap();
    file.set_modified(file.metadata().unwrap().modified().unwrap() + Duration::from_secs(1)).unwrap();
    assert_eq!(cache.known(&parts).unwrap(), None);
}

#[test]
fn a_model_that_changes_while_it_is_read_has_no_identity() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(folder.path(), "llama", 2, Shape::default());
    let file = fs::File::options().write(true).open(model.path()).unwrap();
    let later = file.metadata().unwrap().modified().unwrap() + Duration::from_secs(1);
    let result = identity(&model, &mut |_, _| file.set_modified(later).unwrap());
    assert!(matches!(result, Err(IdentityError::Changed { .. })));
    file.set_len(4096).unwrap();
    assert!(matches!(identity(&model, &mut |_, _| {}), Err(IdentityError::Read { .. })));
}

#[test]
fn swapped_layers_trade_places() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 3, Shape::default());
    let path = folder.path().join("swapped.gguf");
    toy::swap_layers(&whole, 0, 2, &path).unwrap();
    let swapped = Model::open(&path).unwrap();
    let data = |model: &Model, name: &str| model.read_tensor(model.tensor(name).unwrap()).unwrap();
    assert_eq!(data(&whole, "blk.0.attn_q.weight"), data(&swapped, "blk.2.attn_q.weight"));
    assert_eq!(data(&whole, "blk.2.attn_q.weight"), data(&swapped, "blk.0.attn_q.weight"));
    assert_eq!(data(&whole, "blk.1.attn_q.weight"), data(&swapped, "blk.1.attn_q.weight"));
    assert!(toy::swap_layers(&whole, 0, 3, &path).is_err());
}

#[test]
fn toys_are_the_same_every_time_and_differ_by_seed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.gguf");
    let write = |toy: Toy| {
        toy.write(&toys::tensors(2, Shape::default()), &path).unwrap();
        fs::read(&path).unwrap()
    };
    let toy = Toy::named("llama").unwrap().layers(2);
    assert_eq!(write(toy), write(toy));
    assert_ne!(write(toy), write(toy.seed(1)));
    assert!(Toy::named("none").is_none());
}

/// A value that a hostile or broken converter might write.
fn odd_value() -> impl Strategy<Value = gguf::Value> {
    let number = prop_oneof![any::<u32>(), 0..10_u32];
    prop_oneof![
        number.clone().prop_map(gguf::Value::from),
        any::<i32>().prop_map(gguf::Value::from),
        any::<u64>().prop_map(gguf::Value::from),
        any::<f32>().prop_map(gguf::Value::from),
        any::<bool>().prop_map(gguf::Value::from),
        ".{0,8}".prop_map(|text| gguf::Value::string(&text)),
        prop::collection::vec(number, 0..6).prop_map(|v| gguf::Value::u32s(&v)),
        prop::collection::vec(any::<bool>(), 3).prop_map(|v| gguf::Value::bools(&v)),
        prop::collection::vec(".{0,4}", 0..4).prop_map(|v| gguf::Value::strings(&v)),
    ]
}

/// Keys that the rules of some architecture look at.
const KEYS: &[&str] = &[
    "block_count",
    "embedding_length",
    "nextn_predict_layers",
    "leading_dense_block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.q_lora_rank",
    "expert_gating_func",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.scaling.attn_factor",
    "residual_scale",
    "vocab_size",
];

/// Cuts a file in several ways; whatever is written must open again.
pub(crate) fn cut(path: &std::path::Path, end: u32) {
    let Ok(model) = Model::open(path) else { return };
    let Ok(source) = gguf::Source::new(&model) else { return };
    let _ = gguf::Plan::balanced(&source, end);
    for range in [0..end, end..3, 0..3] {
        let slice = path.with_file_name("slice.gguf");
        if gguf::write_slice(&source, Identity([0; 32]), range.clone(), &slice, &mut |_, _| {}).is_ok() {
            let info = gguf::SliceInfo::read(&Model::open(&slice).unwrap()).unwrap();
            assert_eq!(info.range, range);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn metadata_comes_back_as_it_was_written(values in prop::collection::vec(("[a-z.]{1,12}", odd_value()), 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let mut want = None;
        toys::write_with(&path, Toy::named("llama").unwrap(), 1, |metadata| {
            values.iter().for_each(|(key, value)| metadata.set(key.clone(), value.clone()));
            want = Some(metadata.clone());
        });
        let model = Model::open(&path).unwrap();
        prop_assert!(model.metadata().iter().eq(want.unwrap().iter()));
    }

    #[test]
    fn a_model_with_damaged_bytes_never_panics(
        changes in prop::collection::vec((0..3000_usize, any::<u8>()), 1..6),
        end in 0..4_u32,
        which in 0..toy::specs().len(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let toy = Toy::new(&toy::specs()[which]);
        let path = toys::write(folder.path(), toy, 3, Shape { has_output: true, ..Shape::default() });
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in changes {
            bytes[at] = value;
        }
        fs::write(&path, &bytes).unwrap();
        cut(&path, end);
    }

    #[test]
    fn a_model_with_odd_metadata_never_panics(
        changes in prop::collection::vec((0..KEYS.len(), odd_value()), 1..4),
        end in 0..4_u32,
        which in 0..toy::specs().len(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let toy = Toy::new(&toy::specs()[which]);
        let path = folder.path().join("odd.gguf");
        toys::write_with(&path, toy, 3, |metadata| {
            for (key, value) in changes {
                metadata.set(format!("{}.{}", toy.spec().arch, KEYS[key]), value);
            }
        });
        cut(&path, end);
    }
}
