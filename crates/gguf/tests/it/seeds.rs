//! What fuzzing of model files and manifests begins with: small whole models, what is cut from one, and the lists of that.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::files::{self, Seeds};
use crate::models;
use crate::toys::{self, Shape};
use gguf::toy::{Toy, ToyTensor, Weights};
use gguf::{Identity, MANIFEST_FILE, Manifest, Model, Plan, SliceFolder, SliceInfo, Source, Value};

const N_LAYERS: u32 = 2;
/// Values in a hidden row: the fewest that blocks of quantised weights allow.
const WIDTH: u32 = 32;
const VOCABULARY: u32 = 8;

/// As few rows as can be, as narrow as can be.
fn small(tensor: ToyTensor) -> ToyTensor {
    let mut dims = tensor.dims;
    dims[0] = (dims[0] / 4).max(1);
    dims[1..].iter_mut().for_each(|dim| *dim = (*dim / 64).max(1));
    ToyTensor { dims, ..tensor }
}

fn write(path: &Path, toy: Toy, shape: Shape) {
    let tensors: Vec<_> = toys::tensors(N_LAYERS, shape).into_iter().map(small).collect();
    let arch = toy.spec().arch;
    let written = toy.layers(N_LAYERS).write_changed(&tensors, path, |metadata| {
        metadata.set(format!("{arch}.embedding_length"), WIDTH);
        metadata.set(format!("{arch}.attention.head_count"), 1_u32);
        metadata.set(format!("{arch}.attention.head_count_kv"), 1_u32);
        metadata.set(format!("{arch}.vocab_size"), VOCABULARY);
        metadata.set("tokenizer.ggml.tokens", Value::strings(&["<s>", "</s>", "a", "é"]));
    });
    written.unwrap();
}

/// What the fuzz target of model files does.
fn is_cuttable(path: &Path) -> bool {
    let Ok(model) = Model::open(path) else { return false };
    let _ = SliceInfo::read(&model);
    let Ok(source) = Source::new(&model) else { return false };
    let _ = Plan::at_cuts(&source, &[1]);
    true
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_owned()
}

/// Cuts a model in two; a manifest, and all that it lists.
fn cut(model: &Path, out: &Path) -> Manifest {
    let model = Model::open(model).unwrap();
    let source = Source::new(&model).unwrap();
    let slices = SliceFolder::open(out, &source, Identity([7; 32])).unwrap();
    slices.ensure_all(&Plan::at_cuts(&source, &[1]).unwrap(), &mut |_, _| {}).unwrap();
    Manifest::read(out).unwrap()
}

#[test]
fn fuzzing_begins_with_models_that_can_be_cut_and_what_is_cut_from_them() {
    let folder = tempfile::tempdir().unwrap();
    let (mut models, mut manifests) = (Seeds::new(), Seeds::new());
    let whole = Shape { has_output: true, ..Shape::default() };
    let drafts = Shape { drafting: 1, ..Shape::default() };
    let fused = Shape { fused: true, ..Shape::default() };
    for (name, weights, shape) in [
        ("llama", Weights::Q4_0, whole),
        ("gemma3", Weights::F32, Shape::default()),
        ("phi3", Weights::Q8_0, fused),
        ("glm4moe-nextn", Weights::F32, drafts),
    ] {
        let path = folder.path().join(format!("{name}.gguf"));
        write(&path, Toy::named(name).unwrap().weights(weights), shape);
        assert!(is_cuttable(&path), "{name}");
        models.insert(name.into(), fs::read(&path).unwrap());
        let out = folder.path().join(name);
        let manifest = cut(&path, &out);
        manifests.insert(name.into(), fs::read(out.join(MANIFEST_FILE)).unwrap());
        // The one with a file of each sort beside its slices.
        if shape.drafting > 0 {
            for record in manifest.files() {
                let file = out.join(&record.file);
                let _ = is_cuttable(&file);
                models.insert(self::name(&file), fs::read(&file).unwrap());
            }
        }
    }
    files::are_current("gguf_file", &models);
    files::are_current("manifest", &manifests);
}

/// One of a target's seeds with some bytes changed, and perhaps cut short.
fn spoiled(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let value =
        prop_oneof![any::<u8>(), Just(0), Just(0xff), (0..4_u8).prop_map(|i| b"\"{./"[usize::from(i)])];
    let changes = prop::collection::vec((any::<Index>(), value), 1..5);
    let seeds: Vec<_> = files::of(target).into_values().collect();
    (prop::sample::select(seeds), changes, prop::option::weighted(0.2, any::<Index>())).prop_map(
        |(mut bytes, changes, cut)| {
            let len = bytes.len();
            changes.into_iter().for_each(|(at, with)| bytes[at.index(len)] = with);
            bytes.truncate(cut.map_or(len, |cut| cut.index(len)));
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_model_that_was_changed_is_cut_or_refused(bytes in spoiled("gguf_file"), end in 0..3_u32) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        is_cuttable(&path);
        models::cut(&path, end);
    }

    #[test]
    fn a_manifest_that_was_changed_names_no_file_elsewhere(bytes in spoiled("manifest")) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MANIFEST_FILE), bytes).unwrap();
        if let Ok(manifest) = Manifest::read(folder.path()) {
            for file in manifest.files() {
                prop_assert_eq!(Path::new(&file.file).file_name().unwrap(), file.file.as_str());
            }
        }
    }
}
