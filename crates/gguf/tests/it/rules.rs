//! What single architectures need in their slices: tensors that are left out, zero, scaled or renamed, layers that are added.

use std::path::Path;

use gguf::toy::{Toy, ToyTensor, Weights};
use gguf::{CutError, Identity, Metadata, Model, SliceInfo, Source, Value, write_slice};

use crate::toys::{self, Shape};

/// Writes a toy with more tensors, and opens it.
fn open(folder: &Path, toy: Toy, more: &[(&str, &[u64])], change: impl FnOnce(&mut Metadata)) -> Model {
    let path = folder.join("whole.gguf");
    let n_layers = toy.spec().n_layers;
    let mut tensors = toys::tensors(n_layers, Shape { has_output: true, ..Shape::default() });
    tensors.extend(more.iter().map(|(name, dims)| ToyTensor { name: (*name).into(), dims: dims.to_vec() }));
    toy.write_changed(&tensors, &path, change).unwrap();
    Model::open(&path).unwrap()
}

fn named(name: &str) -> Toy {
    Toy::named(name).unwrap()
}

fn cut(whole: &Model, start: u32, end: u32, folder: &Path) -> Model {
    let path = folder.join(format!("{start}-{end}.gguf"));
    let source = Source::new(whole).unwrap();
    write_slice(&source, Identity([7; 32]), start..end, &path, &mut |_, _| {}).unwrap();
    Model::open(&path).unwrap()
}

fn data(model: &Model, name: &str) -> Vec<f32> {
    let bytes = model.read_tensor(model.tensor(name).unwrap()).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn refused(whole: &Model) -> String {
    Source::new(whole).unwrap_err().to_string()
}

#[test]
fn positions_are_added_in_the_first_stage_only() {
    let folder = tempfile::tempdir().unwrap();
    let positions: &[(&str, &[u64])] = &[("position_embd.weight", &[128, 256])];
    let whole = open(folder.path(), named("gpt2"), positions, |_| {});
    let (first, later) = (cut(&whole, 0, 4, folder.path()), cut(&whole, 4, 8, folder.path()));
    assert_eq!(data(&first, "position_embd.weight"), data(&whole, "position_embd.weight"));
    assert_eq!(data(&later, "position_embd.weight"), vec![0.0; 128 * 256]);
    let whole = open(folder.path(), named("mpt-positions"), positions, |_| {});
    assert!(cut(&whole, 0, 4, folder.path()).tensor("position_embd.weight").is_some());
    assert!(cut(&whole, 4, 8, folder.path()).tensor("position_embd.weight").is_none());
}

#[test]
fn later_stages_of_bloom_are_mpt() {
    let folder = tempfile::tempdir().unwrap();
    let norm: &[(&str, &[u64])] = &[("token_embd_norm.weight", &[128]), ("token_embd_norm.bias", &[128])];
    let whole = open(folder.path(), named("bloom"), norm, |_| {});
    let (first, later) = (cut(&whole, 0, 4, folder.path()), cut(&whole, 4, 8, folder.path()));
    assert_eq!((first.arch(), later.arch()), ("bloom", "mpt"));
    assert!(first.tensor("token_embd_norm.bias").is_some());
    assert!(later.tensors().iter().all(|tensor| !tensor.name.starts_with("token_embd_norm")));
    assert_eq!(later.arch_value("attention.max_alibi_bias").and_then(Value::as_f64), Some(8.0));
    assert_eq!((later.n_layers(), later.n_embd()), (4, 128));
    assert!(later.metadata().iter().all(|(key, _)| !key.starts_with("bloom.")));
    assert_eq!(SliceInfo::read(&later).unwrap().range, 4..8);
}

#[test]
fn baichuan_is_written_as_what_its_depth_means() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arch) in [("baichuan-7b", "llama"), ("baichuan-13b", "refact")] {
        let whole = open(folder.path(), named(name), &[], |_| {});
        assert_eq!(cut(&whole, 0, 4, folder.path()).arch(), arch);
        assert_eq!(cut(&whole, 4, 9, folder.path()).arch(), arch);
    }
    let path = toys::write(folder.path(), named("baichuan-7b"), 33, Shape::default());
    assert!(refused(&Model::open(&path).unwrap()).contains("32 or 40 layers only"));
}

#[test]
fn what_is_scaled_by_depth_is_scaled_back() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), named("minicpm3"), &[], |_| {});
    let slice = cut(&whole, 4, 6, folder.path());
    let factor = (2.0_f32 / 8.0).sqrt();
    for name in ["attn_output.weight", "ffn_down.weight"] {
        let want: Vec<f32> = data(&whole, &format!("blk.5.{name}")).iter().map(|v| v * factor).collect();
        assert_eq!(data(&slice, &format!("blk.1.{name}")), want);
    }
    assert_eq!(data(&slice, "blk.1.attn_q.weight"), data(&whole, "blk.5.attn_q.weight"));
    assert_eq!(SliceInfo::read(&slice).unwrap().input_scale, 1.0 / 12.0);
    let whole = open(folder.path(), named("minicpm3").weights(Weights::Q8_0), &[], |_| {});
    let source = Source::new(&whole).unwrap();
    assert!(matches!(source.check(4..6), Err(CutError::Range { reason, .. }) if reason.contains("floats")));
    source.check(0..8).unwrap();
}

#[test]
fn layers_that_pass_everything_on_keep_its_scale() {
    let folder = tempfile::tempdir().unwrap();
    let scales: &[(&str, &[u64])] =
        &[("blk.6.layer_output_scale.weight", &[1]), ("blk.7.layer_output_scale.weight", &[1])];
    let whole = open(folder.path(), named("gemma4"), scales, |_| {});
    // Layer 7 attends to everything: one with a window stands before it.
    let slice = cut(&whole, 7, 8, folder.path());
    assert_eq!(SliceInfo::read(&slice).unwrap().n_file_layers, 2);
    assert_eq!(data(&slice, "blk.0.layer_output_scale.weight"), [1.0]);
    assert_eq!(data(&slice, "blk.0.ffn_down.weight"), vec![0.0; 256 * 128]);
    assert!(slice.tensor("rope_freqs.weight").is_some());
    // One with a window alone gets another one, and nobody uses the rotation's factors.
    let slice = cut(&whole, 1, 2, folder.path());
    assert_eq!(SliceInfo::read(&slice).unwrap().n_file_layers, 2);
    assert!(slice.tensor("rope_freqs.weight").is_none());
}

#[test]
fn slices_without_a_layer_of_some_kind_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let layers = |name: &str, start: u32, end: u32| {
        let whole = open(folder.path(), named(name), &[], |_| {});
        let slice = cut(&whole, start, end, folder.path());
        let kv_heads = slice.arch_value("attention.head_count_kv").and_then(Value::as_array);
        (SliceInfo::read(&slice).unwrap().n_file_layers, kv_heads.and_then(gguf::Array::to_u64s))
    };
    // A recurrent layer alone, one with attention alone, both.
    assert_eq!(layers("jamba", 3, 5), (3, Some(vec![2, 0, 0])));
    assert_eq!(layers("jamba", 2, 3), (2, Some(vec![0, 2])));
    assert_eq!(layers("jamba", 0, 1), (2, Some(vec![0, 2])));
    assert_eq!(layers("jamba", 1, 3), (2, Some(vec![0, 2])));
    // A layer with nothing but a feed-forward part is of neither kind.
    assert_eq!(layers("nemotron_h", 1, 2), (3, Some(vec![0, 0, 2])));
    // Leading dense layers only.
    assert_eq!(layers("minimax-m3", 0, 2).0, 3);
    // A head count of 0 in the first layer, a last one without a feed-forward part.
    assert_eq!(layers("deci", 2, 4), (4, Some(vec![2, 0, 2, 2])));
    // A multiple of four and a layer without rotation, which is the fourth.
    assert_eq!((layers("llama4", 5, 6).0, layers("llama4", 0, 1).0, layers("llama4", 4, 8).0), (4, 4, 4));
    assert_eq!((layers("smallthinker", 4, 8).0, layers("smallthinker", 5, 6).0), (5, 2));
}

#[test]
fn layers_that_reuse_a_choice_do_not_begin_a_slice() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), named("glm-dsa"), &[], |_| {});
    let source = Source::new(&whole).unwrap();
    assert!(
        matches!(source.check(4..8), Err(CutError::Range { reason, .. }) if reason.contains("layer 4 reuses"))
    );
    let types = |whole: &Model| {
        let slice = cut(whole, 6, 8, folder.path());
        slice.arch_value("attention.indexer.types").unwrap().as_array().unwrap().to_u64s().unwrap()
    };
    assert_eq!(types(&whole), [1, 0]);
    // Where the file does not say it, it follows from the layer's number, or all have one.
    let path = folder.path().join("bare.gguf");
    for (context, want) in [(1 << 20, [1, 0]), (4096, [1, 1])] {
        toys::write_with(&path, named("deepseek32"), 8, |metadata| {
            let own: Vec<(String, Value)> = metadata
                .iter()
                .map(|(key, value)| (key.replace("deepseek32", "glm-dsa"), value.clone()))
                .collect();
            *metadata = Metadata::default();
            own.into_iter().for_each(|(key, value)| metadata.set(key, value));
            metadata.set("general.architecture", Value::string("glm-dsa"));
            metadata.set("glm-dsa.context_length", context);
        });
        assert_eq!(types(&Model::open(&path).unwrap()), want);
    }
}

#[test]
fn slices_take_text_only() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), named("qwen3vl"), &[], |m| m.set("qwen3vl.n_deepstack_layers", 3_u32));
    assert_eq!(cut(&whole, 0, 4, folder.path()).arch_u32("n_deepstack_layers"), Some(0));
}

#[test]
fn variants_that_cannot_be_cut_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, key: &str, value: u32| {
        let toy = named(name);
        open(folder.path(), toy, &[], |m| m.set(format!("{}.{key}", toy.spec().arch), value))
    };
    assert!(refused(&with("gemma4", "embedding_length_per_layer_input", 16)).contains("token ids"));
    assert!(refused(&with("gemma4", "attention.shared_kv_layers", 2)).contains("share keys and values"));
    Source::new(&with("gemma4", "attention.shared_kv_layers", 0)).unwrap();
    assert!(refused(&with("llama4", "attention.sliding_window", 0)).contains("aborts"));
    assert!(refused(&with("afmoe", "attention.sliding_window", 0)).contains("crashes"));
    let path = toys::write(folder.path(), named("smallthinker"), 4, Shape::default());
    assert!(refused(&Model::open(&path).unwrap()).contains("exactly 4"));
}

/// The layers of a slice that lack a kind get one of the model's; a model that has none is refused before anything is cut.
#[test]
fn models_without_a_layer_of_some_kind_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, key: &str, value: Value| {
        let toy = named(name);
        let whole = open(folder.path(), toy, &[], |m| m.set(format!("{}.{key}", toy.spec().arch), value));
        Source::new(&whole).map(drop)
    };
    let eight = |value: u32| Value::u32s(&[value; 8]);
    let (windows, kv_heads) = ("attention.sliding_window_pattern", "attention.head_count_kv");
    let cases = [
        ("qwen35", "full_attention_interval", 1_u32.into(), "no layer is recurrent"),
        ("qwen35moe", "full_attention_interval", 99_u32.into(), "no layer has attention"),
        ("qwen3next", "attention.recurrent_layers", Value::bools(&[false; 8]), "no layer is recurrent"),
        ("jamba", kv_heads, eight(2), "no layer is recurrent"),
        ("lfm2", kv_heads, 2_u32.into(), "no layer is recurrent"),
        ("kimi-linear", kv_heads, eight(0), "no layer has attention"),
        // One with a feed-forward part is of neither kind, whatever heads it has.
        (
            "nemotron_h",
            "feed_forward_length",
            Value::u32s(&[0, 256, 256, 0, 0, 256, 256, 256]),
            "has attention",
        ),
        ("nemotron_h", "feed_forward_length", eight(256), "no layer is recurrent"),
        ("gemma3", windows, Value::bools(&[false; 8]), "no layer has a sliding window"),
        ("gpt-oss", windows, 1_u32.into(), "no layer has a sliding window"),
        ("step35", windows, Value::bools(&[false; 8]), "no layer has a sliding window"),
        ("minimax-m3", "leading_dense_block_count", 8_u32.into(), "no layer lies behind the dense ones"),
        ("glm-dsa", "attention.indexer.types", eight(0), "the first layer has no indexer of its own"),
    ];
    for (name, key, value, without) in cases {
        let error = with(name, key, value).unwrap_err();
        assert!(matches!(error, CutError::Kind { .. }), "{name}: {error}");
        assert!(error.to_string().contains(without), "{name}: {error}");
    }
    // A window in every layer is one, and no window needs none.
    with("gemma3", windows, 0_u32.into()).unwrap();
    let toy = named("gemma3");
    let whole = open(folder.path(), toy, &[], |m| {
        m.set("gemma3.attention.sliding_window", 0_u32);
        m.set("gemma3.attention.sliding_window_pattern", 1_u32);
    });
    Source::new(&whole).unwrap();
}

#[test]
fn arrays_without_a_prefix_are_cut_too() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), named("apertus"), &[], |_| {});
    let slice = cut(&whole, 3, 6, folder.path());
    let own = slice.metadata().get("xielu.alpha_n").unwrap();
    assert_eq!(own, &Value::f32s(&[0.8, 0.6, 0.6]));
}

#[test]
fn what_leaves_a_stage_and_its_norm_have_the_names_of_the_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let info = |name: &str| {
        let whole = open(folder.path(), named(name), &[], |_| {});
        let info = SliceInfo::read(&cut(&whole, 0, 3, folder.path())).unwrap();
        (info.capture, info.final_norm)
    };
    assert_eq!(info("llama"), ("l_out-2".into(), Some("output_norm".into())));
    assert_eq!(info("nemotron_h").0, "nemotron_h_block_out-2");
    assert_eq!(info("step35").0, "h_nextn");
    assert_eq!(info("lfm2").1, Some("token_embd_norm".into()));
    assert_eq!(info("plamo3").1, None);
}
