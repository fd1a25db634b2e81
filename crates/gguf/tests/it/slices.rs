//! Slices hold the right tensors, byte for byte, and the metadata that each architecture needs.

use std::path::Path;

use crate::toys::{self, Shape, open};
use gguf::toy::{Toy, Weights, specs};
use gguf::{
    CutError, Identity, Model, NoDrafts, SliceError, SliceInfo, SliceNextN, Source, TensorType, WriteError,
    embeddings_path, nextn_path, write_slice, write_vocab,
};

const ID: Identity = Identity([7; 32]);

pub(crate) struct Cut {
    pub model: Model,
    pub info: SliceInfo,
    pub embeddings: Option<Model>,
}

pub(crate) fn cut(source: &Source<'_>, start: u32, end: u32, folder: &Path) -> Cut {
    let path = folder.join(format!("{start}-{end}.gguf"));
    write_slice(source, ID, start..end, &path, &mut |done, total| assert!(done <= total)).unwrap();
    let model = Model::open(&path).unwrap();
    let info = SliceInfo::read(&model).unwrap();
    let embeddings = embeddings_path(&path);
    Cut { model, info, embeddings: embeddings.exists().then(|| Model::open(&embeddings).unwrap()) }
}

pub(crate) fn same_data(whole: &Model, name: &str, slice: &Model, slice_name: &str) {
    let (a, b) = (whole.tensor(name).unwrap(), slice.tensor(slice_name).unwrap());
    assert_eq!((&a.dims, a.ty), (&b.dims, b.ty));
    assert_eq!(whole.read_tensor(a).unwrap(), slice.read_tensor(b).unwrap(), "{name}");
}

fn is_zero(model: &Model, name: &str) -> bool {
    model.read_tensor(model.tensor(name).unwrap()).unwrap().iter().all(|&byte| byte == 0)
}

fn bools(model: &Model, key: &str) -> Vec<bool> {
    model.arch_value(key).unwrap().as_array().unwrap().to_bools().unwrap()
}

fn f32s(model: &Model, name: &str) -> Vec<f32> {
    let bytes = model.read_tensor(model.tensor(name).unwrap()).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn layers_are_renumbered_and_equal_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { has_output: true, ..Shape::default() };
    let path = toys::write(folder.path(), Toy::named("llama").unwrap().weights(Weights::Q4_0), 5, shape);
    let whole = Model::open(&path).unwrap();
    let source = Source::new(&whole).unwrap();
    let n_layer_tensors =
        whole.tensors().iter().filter(|t| t.layer().is_some_and(|(layer, _)| layer == 0)).count();
    for (start, end) in [(0, 2), (2, 4), (4, 5), (1, 5), (0, 5)] {
        let slice = cut(&source, start, end, folder.path());
        assert_eq!((slice.info.range.clone(), slice.info.n_layers), (start..end, 5));
        assert_eq!(slice.model.n_layers(), end - start);
        assert_eq!(slice.info.capture, format!("l_out-{}", end - start - 1));
        for tensor in whole.tensors() {
            match tensor.layer() {
                Some((layer, rest)) if (start..end).contains(&layer) => {
                    same_data(&whole, &tensor.name, &slice.model, &format!("blk.{}.{rest}", layer - start));
                }
                _ => {}
            }
        }
        same_data(&whole, "rope_freqs.weight", &slice.model, "rope_freqs.weight");
        same_data(&whole, "output_norm.weight", &slice.model, "output_norm.weight");
        let n_layers = (end - start) as usize;
        assert_eq!(slice.model.tensors().len(), 5 + n_layers * n_layer_tensors);
    }
}

#[test]
fn slices_of_a_sharded_model_are_those_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "gemma3", 6, Shape::default());
    let parts = Model::open(&gguf::toy::shard(&whole, 4, true, folder.path(), "p").unwrap()).unwrap();
    let path = folder.path().join("slice.gguf");
    for range in [0..2, 2..5, 5..6, 0..6] {
        let [a, b] = [&whole, &parts].map(|model| {
            write_slice(&Source::new(model).unwrap(), ID, range.clone(), &path, &mut |_, _| {}).unwrap()
        });
        assert_eq!(a, b);
    }
}

#[test]
fn only_the_tail_has_a_head_and_a_tokenizer_and_only_the_first_has_rows() {
    let folder = tempfile::tempdir().unwrap();
    for has_output in [true, false] {
        let whole = open(folder.path(), "llama", 4, Shape { has_output, ..Shape::default() });
        let source = Source::new(&whole).unwrap();
        let dir = folder.path().join(format!("{has_output}"));
        std::fs::create_dir(&dir).unwrap();
        for (start, end) in [(0, 2), (2, 3)] {
            let slice = cut(&source, start, end, &dir);
            assert_eq!(slice.model.arch_u32("vocab_size"), Some(1));
            assert_eq!(slice.model.tensor("token_embd.weight").unwrap().dims, [128, 1]);
            assert_eq!(
                slice.model.tensor("output.weight").map(|t| t.dims.clone()),
                has_output.then(|| vec![128, 1])
            );
            assert_eq!(
                slice.model.tensor("output.bias").map(|t| t.dims.clone()),
                has_output.then(|| vec![1])
            );
            assert_eq!(slice.embeddings.is_some(), start == 0);
            if let Some(rows) = &slice.embeddings {
                same_data(&whole, "token_embd.weight", rows, "token_embd.weight");
            }
        }
        let tail = cut(&source, 3, 4, &dir);
        assert_eq!(tail.model.arch_u32("vocab_size"), Some(512));
        assert!(tail.embeddings.is_none());
        if has_output {
            same_data(&whole, "output.weight", &tail.model, "output.weight");
            let unread = tail.model.tensor("token_embd.weight").unwrap();
            assert_eq!((unread.ty, unread.dims.as_slice()), (TensorType::Q4_0, [128, 512].as_slice()));
            assert!(is_zero(&tail.model, "token_embd.weight"));
        } else {
            same_data(&whole, "token_embd.weight", &tail.model, "token_embd.weight");
        }
        let all = cut(&source, 0, 4, &dir);
        assert!(all.embeddings.is_none() && all.info.is_first() && all.info.is_tail());
        same_data(&whole, "token_embd.weight", &all.model, "token_embd.weight");
    }
}

#[test]
fn the_tokenizer_stays_in_tail_and_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.gguf");
    toys::write_with(&path, Toy::named("llama").unwrap(), 2, |metadata| {
        metadata.set("tokenizer.ggml.model", gguf::Value::string("gpt2"));
        metadata.set("tokenizer.ggml.tokens", gguf::Value::strings(&["a", "b"]));
    });
    let whole = Model::open(&path).unwrap();
    let source = Source::new(&whole).unwrap();
    let first = cut(&source, 0, 1, folder.path());
    assert_eq!(first.model.metadata().get_str("tokenizer.ggml.model"), Some("no_vocab"));
    assert!(first.model.metadata().get("tokenizer.ggml.tokens").is_none());
    let tail = cut(&source, 1, 2, folder.path());
    assert_eq!(
        tail.model.metadata().get("tokenizer.ggml.tokens"),
        whole.metadata().get("tokenizer.ggml.tokens")
    );
    let vocab = folder.path().join("vocab.gguf");
    write_vocab(&whole, &vocab).unwrap();
    let vocab = Model::open(&vocab).unwrap();
    assert!(vocab.tensors().is_empty());
    assert!(whole.metadata().iter().eq(vocab.metadata().iter()));
}

#[test]
fn window_patterns_are_written_out_and_a_slice_without_windows_is_padded() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "gemma3", 8, Shape::default());
    let source = Source::new(&whole).unwrap();
    const KEY: &str = "attention.sliding_window_pattern";
    let slice = cut(&source, 3, 7, folder.path());
    assert_eq!(bools(&slice.model, KEY), [true, true, false, true]);
    // Layer 5 attends to everything; layer 4, all zero, stands before it.
    let alone = cut(&source, 5, 6, folder.path());
    assert_eq!(bools(&alone.model, KEY), [true, false]);
    assert_eq!((alone.info.n_file_layers, alone.info.capture.as_str()), (2, "l_out-1"));
    assert!(is_zero(&alone.model, "blk.0.attn_norm.weight"));
    assert!(is_zero(&alone.model, "blk.0.ffn_down.weight"));
    same_data(&whole, "blk.5.ffn_down.weight", &alone.model, "blk.1.ffn_down.weight");
    let (first, later) = (cut(&source, 0, 2, folder.path()), slice);
    assert_eq!((first.info.input_scale, later.info.input_scale), (128_f32.sqrt(), 1.0));
}

#[test]
fn a_file_may_name_its_windows_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.gguf");
    let pattern = [false, false, true, false];
    const KEY: &str = "gemma3.attention.sliding_window_pattern";
    toys::write_with(&path, Toy::named("gemma3").unwrap(), 4, |m| m.set(KEY, gguf::Value::bools(&pattern)));
    let whole = Model::open(&path).unwrap();
    let source = Source::new(&whole).unwrap();
    let slice = cut(&source, 1, 3, folder.path());
    assert_eq!(bools(&slice.model, "attention.sliding_window_pattern"), [false, true]);
    // No layer before has a window, so the padding stands at the end.
    let first = cut(&source, 0, 2, folder.path());
    assert_eq!(bools(&first.model, "attention.sliding_window_pattern"), [false, false, true]);
    assert!(is_zero(&first.model, "blk.2.attn_norm.weight"));
    toys::write_with(&path, Toy::named("gemma3").unwrap(), 4, |m| m.set(KEY, 2_u32));
    let whole = Model::open(&path).unwrap();
    let slice = cut(&Source::new(&whole).unwrap(), 1, 4, folder.path());
    assert_eq!(bools(&slice.model, "attention.sliding_window_pattern"), [false, true, false]);
}

#[test]
fn models_without_a_window_get_no_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "olmo2", 4, Shape::default());
    let slice = cut(&Source::new(&whole).unwrap(), 1, 3, folder.path());
    assert!(slice.model.arch_value("attention.sliding_window_pattern").is_none());
}

#[test]
fn gemma_2_undoes_the_factor_on_hidden_rows() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "gemma2", 8, Shape::default());
    let source = Source::new(&whole).unwrap();
    assert_eq!(cut(&source, 0, 4, folder.path()).info.input_scale, 1.0);
    let later = cut(&source, 4, 8, folder.path());
    assert_eq!(later.info.input_scale, 1.0 / 128_f32.sqrt());
    assert!(later.info.tolerance > 0.0);
}

#[test]
fn attention_scales_chosen_by_layer_count_are_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    // Head size 32, nominal head size 128 / 2.
    let factor = (32_f32 / 64.0).sqrt();
    let whole = open(folder.path(), "gemma3-62", 62, Shape::default());
    let source = Source::new(&whole).unwrap();
    let slice = cut(&source, 60, 62, folder.path());
    let want: Vec<_> = f32s(&whole, "blk.60.attn_q_norm.weight").iter().map(|v| v * factor).collect();
    assert_eq!(f32s(&slice.model, "blk.0.attn_q_norm.weight"), want);
    same_data(&whole, "blk.60.attn_q.weight", &slice.model, "blk.0.attn_q.weight");
    let all = cut(&source, 0, 62, folder.path());
    same_data(&whole, "blk.3.attn_q_norm.weight", &all.model, "blk.3.attn_q_norm.weight");
    let whole = open(folder.path(), "gemma2-46", 46, Shape::default());
    let slice = cut(&Source::new(&whole).unwrap(), 0, 2, folder.path());
    let written = slice.model.arch_value("rope.scaling.attn_factor").unwrap().as_f64().unwrap();
    assert_eq!(written as f32, factor.sqrt());
    let longer = open(folder.path(), "gemma3-62", 64, Shape::default());
    let source = Source::new(&longer).unwrap();
    assert!(matches!(source.check(1..63), Err(CutError::Range { .. })));
    source.check(0..63).unwrap();
}

#[test]
fn scales_on_every_input_are_applied_once() {
    let folder = tempfile::tempdir().unwrap();
    let scale = |slice: &Cut, key| slice.model.arch_value(key).and_then(gguf::Value::as_f64);
    let whole = open(folder.path(), "granite", 4, Shape::default());
    let source = Source::new(&whole).unwrap();
    assert_eq!(scale(&cut(&source, 0, 2, folder.path()), "embedding_scale"), Some(6.0));
    assert_eq!(scale(&cut(&source, 2, 4, folder.path()), "embedding_scale"), Some(1.0));
    let whole = open(folder.path(), "minicpm", 4, Shape::default());
    let source = Source::new(&whole).unwrap();
    let (first, later) = (cut(&source, 0, 2, folder.path()), cut(&source, 2, 4, folder.path()));
    assert_eq!((scale(&first, "embedding_scale"), scale(&later, "embedding_scale")), (None, Some(1.0)));
    assert_eq!(scale(&first, "residual_scale"), Some(f64::from(1.4_f32 / 2.0)));
    assert_eq!(scale(&later, "residual_scale"), scale(&first, "residual_scale"));
}

#[test]
fn neighbour_rotation_becomes_half_rotation_by_moving_whole_rows() {
    let folder = tempfile::tempdir().unwrap();
    for (fused, weights) in [(false, Weights::F32), (false, Weights::Q4_0), (true, Weights::Q8_0)] {
        let shape = Shape { fused, ..Shape::default() };
        let path = toys::write(folder.path(), Toy::named("glm4").unwrap().weights(weights), 3, shape);
        let whole = Model::open(&path).unwrap();
        let slice = cut(&Source::new(&whole).unwrap(), 1, 3, folder.path());
        let sections =
            slice.model.arch_value("rope.dimension_sections").unwrap().as_array().unwrap().to_u64s();
        assert_eq!(sections.unwrap(), [7, 1, 0, 0]);
        let names: &[&str] =
            if fused { &["attn_qkv.weight"] } else { &["attn_q.weight", "attn_k.weight", "attn_q.bias"] };
        for name in names {
            let (from, to) =
                (whole.tensor(&format!("blk.1.{name}")), slice.model.tensor(&format!("blk.0.{name}")));
            let (before, after) =
                (whole.read_tensor(from.unwrap()).unwrap(), slice.model.read_tensor(to.unwrap()).unwrap());
            let row_bytes = if name.ends_with("bias") { 4 } else { from.unwrap().row_bytes() as usize };
            let row = |data: &[u8], row: usize| data[row * row_bytes..(row + 1) * row_bytes].to_vec();
            let n_moved = if fused { 192 } else { before.len() / row_bytes };
            for at in 0..before.len() / row_bytes {
                // Heads of 32 rows, 16 of them rotated.
                let (head, within) = (at / 32 * 32, at % 32);
                let want = match within {
                    _ if at >= n_moved => at,
                    0..8 => head + 2 * within,
                    8..16 => head + 2 * (within - 8) + 1,
                    _ => at,
                };
                assert_eq!(row(&after, at), row(&before, want), "{name} {at}");
            }
        }
        if !fused {
            same_data(&whole, "blk.1.attn_v.weight", &slice.model, "blk.0.attn_v.weight");
        }
    }
}

const NEXTN: Shape = Shape { drafting: 1, has_output: true, fused: false };

fn u64s(model: &Model, key: &str) -> Vec<u64> {
    model.arch_value(key).unwrap().as_array().unwrap().to_u64s().unwrap()
}

#[test]
fn blocks_that_draft_go_with_the_tail_and_are_no_layers() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "hy_v3-nextn", 4, NEXTN);
    assert_eq!((whole.n_blocks(), whole.n_layers()), (5, 4));
    let source = Source::new(&whole).unwrap();
    assert_eq!((source.n_layers(), source.nextn()), (4, 4..5));
    let middle = cut(&source, 1, 3, folder.path());
    assert_eq!((middle.model.n_blocks(), middle.info.n_file_layers, middle.info.nextn), (2, 2, None));
    assert!(middle.model.arch_value("nextn_predict_layers").is_none());
    assert!(middle.model.tensors().iter().all(|t| !t.name.contains("nextn")));
    let tail = cut(&source, 3, 4, folder.path());
    let nextn = SliceNextN { n_blocks: 1, is_apart: false };
    assert_eq!((tail.info.range.clone(), tail.info.n_layers, tail.info.nextn), (3..4, 4, Some(nextn)));
    assert_eq!((tail.model.n_blocks(), tail.model.n_layers(), tail.info.n_file_layers), (2, 1, 1));
    same_data(&whole, "blk.3.attn_q.weight", &tail.model, "blk.0.attn_q.weight");
    same_data(&whole, "blk.4.nextn.eh_proj.weight", &tail.model, "blk.1.nextn.eh_proj.weight");
    // They look tokens up.
    same_data(&whole, "token_embd.weight", &tail.model, "token_embd.weight");
    assert!(!nextn_path(tail.model.path()).exists());
    // So they do in a slice of everything; a shallow model has none.
    let all = cut(&source, 0, 4, folder.path());
    assert_eq!(all.info.nextn, Some(nextn));
    let shallow = folder.path().join("shallow.gguf");
    gguf::write_shallow(&source, 2, &shallow, &mut |_, _| {}).unwrap();
    let shallow = Model::open(&shallow).unwrap();
    assert_eq!((shallow.n_blocks(), shallow.arch_value("nextn_predict_layers")), (2, None));
}

#[test]
fn blocks_that_draft_have_entries_in_per_layer_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let toy = Toy::named("qwen35-nextn").unwrap();
    let path = folder.path().join("arrays.gguf");
    let write = |key: &str, values: &[u32]| {
        toy.layers(4)
            .write_changed(&toys::tensors(4, NEXTN), &path, |m| m.set(key, gguf::Value::u32s(values)))
            .unwrap();
        Model::open(&path).unwrap()
    };
    let whole = write("qwen35.feed_forward_length", &[10, 11, 12, 13, 14]);
    let source = Source::new(&whole).unwrap();
    let (middle, tail) = (cut(&source, 1, 3, folder.path()), cut(&source, 3, 4, folder.path()));
    // Layer 3 has attention, so a recurrent one is put before it, and an attention one behind 1 and 2.
    assert_eq!(u64s(&tail.model, "feed_forward_length"), [12, 13, 14]);
    assert_eq!(bools(&tail.model, "attention.recurrent_layers"), [true, false, false]);
    assert_eq!((tail.model.n_blocks(), tail.info.n_file_layers), (3, 2));
    assert!(is_zero(&tail.model, "blk.0.attn_q.weight"));
    assert_eq!(u64s(&middle.model, "feed_forward_length"), [11, 12, 13]);
    assert_eq!(bools(&middle.model, "attention.recurrent_layers"), [true, true, false]);
    assert!(middle.model.arch_value("full_attention_interval").is_none());
    // An array may also be of the layers alone.
    let whole = write("qwen35.feed_forward_length", &[10, 11, 12, 13]);
    let tail = cut(&Source::new(&whole).unwrap(), 3, 4, folder.path());
    assert_eq!(u64s(&tail.model, "feed_forward_length"), [12, 13]);
    let whole = write("qwen35.feed_forward_length", &[10, 11, 12]);
    assert!(matches!(Source::new(&whole).unwrap_err(), CutError::Metadata { .. }));
}

#[test]
fn blocks_that_draft_have_a_file_of_their_own_where_rewrites_would_break_them() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "glm4moe-nextn", 4, NEXTN);
    let source = Source::new(&whole).unwrap();
    let tail = cut(&source, 1, 4, folder.path());
    assert_eq!(tail.info.nextn, Some(SliceNextN { n_blocks: 1, is_apart: true }));
    assert_eq!((tail.model.n_blocks(), tail.model.n_layers()), (3, 3));
    assert!(tail.model.arch_value("nextn_predict_layers").is_none());
    assert!(tail.model.tensors().iter().all(|t| !t.name.contains("nextn")));
    assert_eq!(tail.model.arch_u32("leading_dense_block_count"), Some(1));
    assert!(tail.model.arch_value("rope.dimension_sections").is_some());
    same_data(&whole, "blk.1.attn_q.weight", &tail.model, "blk.0.attn_q.weight");
    let head = Model::open(&nextn_path(tail.model.path())).unwrap();
    assert_eq!((head.n_blocks(), head.n_layers()), (1, 0));
    assert_eq!(head.arch_u32("nextn_predict_layers"), Some(1));
    assert_eq!(head.arch_u32("leading_dense_block_count"), Some(0));
    assert!(head.arch_value("rope.dimension_sections").is_none());
    same_data(&whole, "blk.4.attn_q.weight", &head, "blk.0.attn_q.weight");
    same_data(&whole, "blk.4.nextn.hnorm.weight", &head, "blk.0.nextn.hnorm.weight");
    for global in ["token_embd.weight", "output_norm.weight", "output.weight"] {
        same_data(&whole, global, &head, global);
    }
    assert!(matches!(SliceInfo::read(&head), Err(SliceError::NotSlice(_))));
    let first = cut(&source, 0, 1, folder.path());
    assert!(first.info.nextn.is_none() && !nextn_path(first.model.path()).exists());
}

#[test]
fn blocks_that_draft_and_cannot_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    // Announced but not there, and more than llama.cpp's graph takes.
    for (announced, there) in [(1, 0), (2, 2)] {
        let toy = Toy::named("hy_v3-nextn").unwrap().layers(4);
        let path = folder.path().join("odd.gguf");
        let tensors = toys::tensors(4, Shape { drafting: there, ..NEXTN });
        toy.write_changed(&tensors, &path, |m| {
            m.set("hy_v3.nextn_predict_layers", announced);
            m.set("hy_v3.block_count", 4 + announced);
        })
        .unwrap();
        let whole = Model::open(&path).unwrap();
        let source = Source::new(&whole).unwrap();
        assert_eq!((source.n_layers(), source.nextn().len()), (4, 0));
        let tail = cut(&source, 2, 4, folder.path());
        assert_eq!((tail.info.nextn, tail.model.n_blocks()), (None, 2));
        assert!(tail.model.arch_value("nextn_predict_layers").is_none());
    }
    // Sections of the model's own, where the block does not know any.
    let toy = Toy::named("glm4moe-nextn").unwrap().layers(4);
    let path = folder.path().join("sections.gguf");
    for (sections, expected) in [([0; 4], Ok(4..5)), ([7, 1, 0, 0], Err(NoDrafts::Sections))] {
        toy.write_changed(&toys::tensors(4, NEXTN), &path, |m| {
            m.set("glm4moe.rope.dimension_sections", gguf::Value::u32s(&sections));
        })
        .unwrap();
        let whole = Model::open(&path).unwrap();
        let source = Source::new(&whole).unwrap();
        assert_eq!(source.drafts(), expected);
        let tail = cut(&source, 2, 4, folder.path());
        assert_eq!((tail.info.nextn.is_some(), tail.model.n_blocks()), (expected.is_ok(), 2));
        assert_eq!(nextn_path(tail.model.path()).exists(), expected.is_ok());
        std::fs::remove_file(nextn_path(tail.model.path())).ok();
    }
}

#[test]
fn layers_without_rotation_keep_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "smollm3", 8, Shape::default());
    let source = Source::new(&whole).unwrap();
    assert_eq!(cut(&source, 4, 8, folder.path()).info.n_file_layers, 4);
    let slice = cut(&source, 6, 8, folder.path());
    assert_eq!((slice.info.n_file_layers, slice.info.capture.as_str()), (4, "l_out-3"));
    assert!(is_zero(&slice.model, "blk.0.attn_q.weight") && is_zero(&slice.model, "blk.1.attn_norm.weight"));
    same_data(&whole, "blk.6.attn_q.weight", &slice.model, "blk.2.attn_q.weight");
}

#[test]
fn deepseek_slices_avoid_the_sizes_that_mean_full_queries() {
    let folder = tempfile::tempdir().unwrap();
    let rank = |slice: &Cut| slice.model.arch_u32("attention.q_lora_rank");
    let whole = open(folder.path(), "deepseek2-30", 30, Shape::default());
    let source = Source::new(&whole).unwrap();
    for (end, n_file_layers) in [(25, 25), (26, 28), (27, 28), (28, 28)] {
        let slice = cut(&source, 0, end, folder.path());
        assert_eq!((slice.info.n_file_layers, rank(&slice)), (n_file_layers, Some(48)), "{end}");
    }
    let lite = open(folder.path(), "deepseek2-lite", 27, Shape::default());
    let slice = cut(&Source::new(&lite).unwrap(), 0, 26, folder.path());
    assert_eq!((slice.info.n_file_layers, rank(&slice)), (26, Some(0)));
    assert_eq!(slice.model.arch_u32("expert_gating_func"), Some(1));
}

#[test]
fn per_layer_arrays_are_cut_with_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrays.gguf");
    toys::write_with(&path, Toy::named("llama").unwrap(), 4, |m| {
        m.set("llama.feed_forward_length", gguf::Value::u32s(&[10, 11, 12, 13]));
        m.set("llama.attention.head_count", gguf::Value::u32s(&[4, 8, 8, 8]));
        m.set("llama.rope.dimension_sections", gguf::Value::u32s(&[1, 2, 3, 4]));
    });
    let whole = Model::open(&path).unwrap();
    let slice = cut(&Source::new(&whole).unwrap(), 1, 3, folder.path());
    assert_eq!(u64s(&slice.model, "feed_forward_length"), [11, 12]);
    assert_eq!(u64s(&slice.model, "rope.dimension_sections"), [1, 2, 3, 4]);
    // The head size is that of the whole model's first layer.
    assert_eq!(slice.model.arch_u32("attention.key_length"), Some(32));
    toys::write_with(&path, Toy::named("llama").unwrap(), 4, |m| {
        m.set("llama.feed_forward_length", gguf::Value::u32s(&[10, 11]));
    });
    let error = Source::new(&Model::open(&path).unwrap()).unwrap_err();
    assert!(matches!(error, CutError::Metadata { .. }), "{error}");
}

#[test]
fn what_cannot_be_cut_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| Source::new(&Model::open(path).unwrap()).unwrap_err().to_string();
    let path = folder.path().join("other.gguf");
    let set = |arch: &str| {
        toys::write_with(&path, Toy::named("llama").unwrap(), 2, |m| {
            m.set("general.architecture", gguf::Value::string(arch));
        });
        refused(&path)
    };
    assert!(set("gemma3n").contains("gemma3n cannot be cut into stages: its layers also take inputs"));
    assert!(set("frobnicate").contains("frobnicate cannot be cut into stages: it was not tested; use"));
    assert!(set("").contains("does not say which architecture"));
    let deep = toys::write(folder.path(), Toy::named("exaone4").unwrap(), 64, Shape::default());
    assert!(refused(&deep).contains("exactly 64 layers"));
    for (key, value) in
        [("block_count", 0), ("block_count", 9), ("block_count", u32::MAX), ("embedding_length", 64)]
    {
        toys::write_with(&path, Toy::named("llama").unwrap(), 2, |m| m.set(format!("llama.{key}"), value));
        refused(&path);
    }
    toys::write_with(&path, Toy::named("llama").unwrap(), 2, |m| {
        m.set("llama.nextn_predict_layers", u32::MAX)
    });
    refused(&path);
    toys::write_with(&path, Toy::named("granite").unwrap(), 2, |m| {
        m.set("granite.deepstack_mapping", gguf::Value::u32s(&[0, 1]));
    });
    assert!(refused(&path).contains("image features"));
}

#[test]
fn ranges_outside_the_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 4, Shape::default());
    let source = Source::new(&whole).unwrap();
    for (start, end) in [(0, 0), (2, 2), (3, 2), (0, 5), (4, 5), (u32::MAX, u32::MAX)] {
        let path = folder.path().join("none.gguf");
        let error = write_slice(&source, ID, start..end, &path, &mut |_, _| {}).unwrap_err();
        assert!(matches!(error, WriteError::Cut(CutError::Range { .. })), "{error}");
        assert!(!path.exists());
    }
    assert!(source.check_boundary(0).is_err() && source.check_boundary(4).is_err());
    source.check_boundary(3).unwrap();
}

#[test]
fn a_slice_that_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(folder.path(), "llama", 2, Shape::default());
    let source = Source::new(&whole).unwrap();
    let missing = folder.path().join("missing").join("x.gguf");
    assert!(matches!(write_slice(&source, ID, 0..1, &missing, &mut |_, _| {}), Err(WriteError::Io { .. })));
    // The model shrinks while it is cut.
    std::fs::File::options().write(true).open(whole.path()).unwrap().set_len(4096).unwrap();
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    let path = folder.path().join("x.gguf");
    assert!(matches!(write_slice(&source, ID, 1..2, &path, &mut |_, _| {}), Err(WriteError::Io { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
}

#[test]
fn an_ordinary_model_is_not_a_slice() {
    let folder = tempfile::tempdir().unwrap();
    let error = SliceInfo::read(&open(folder.path(), "llama", 2, Shape::default())).unwrap_err();
    assert!(error.to_string().contains("is not a slice"));
}

/// Keys of a slice that the model does not have, or has with another value, and how rows enter it.
fn rewrites(whole: &Model, slice: &Cut) -> String {
    let show = |value: &gguf::Value| match value.as_array().and_then(gguf::Array::to_u64s) {
        Some(elements) => format!("{elements:?}"),
        None => value.to_string(),
    };
    let changed = slice.model.metadata().iter().filter(|(key, value)| {
        let of_every_slice = key.starts_with("paceline.") || key.ends_with(".vocab_size");
        !of_every_slice && whole.metadata().get(key) != Some(value)
    });
    let mut line: Vec<_> = changed.map(|(key, value)| format!("{key}={}", show(value))).collect();
    line.push(format!("input x {}", slice.info.input_scale));
    line.join(" ")
}

#[test]
fn each_architecture_gets_its_rewrites_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = String::new();
    for spec in specs() {
        let shape = Shape { drafting: spec.n_nextn(), ..Shape::default() };
        let whole = open(folder.path(), spec.name, spec.n_layers, shape);
        let source = Source::new(&whole).unwrap();
        for (start, end) in [(0, 3), (3, 5)] {
            let slice = cut(&source, start, end, folder.path());
            table += &format!("{} {start}..{end}: {}\n", spec.name, rewrites(&whole, &slice));
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn the_first_layers_with_the_head_are_an_ordinary_model() {
    let folder = tempfile::tempdir().unwrap();
    for has_output in [false, true] {
        let whole = open(folder.path(), "gemma3", 6, Shape { has_output, ..Shape::default() });
        let source = Source::new(&whole).unwrap();
        let path = folder.path().join("shallow.gguf");
        gguf::write_shallow(&source, 4, &path, &mut |done, total| assert!(done <= total)).unwrap();
        let shallow = Model::open(&path).unwrap();
        assert!(matches!(SliceInfo::read(&shallow), Err(SliceError::NotSlice(_))));
        assert_eq!((shallow.n_layers(), shallow.arch()), (4, "gemma3"));
        assert_eq!(Source::new(&shallow).unwrap().n_vocab(), source.n_vocab());
        let of_first =
            whole.tensors().iter().filter(|tensor| tensor.layer().is_none_or(|(layer, _)| layer < 4));
        let names: Vec<_> = of_first.map(|tensor| tensor.name.as_str()).collect();
        names.iter().for_each(|name| same_data(&whole, name, &shallow, name));
        assert_eq!(shallow.tensors().len(), names.len());
        assert!(shallow.metadata().iter().any(|(key, _)| key.starts_with("tokenizer.")));
        assert!(matches!(
            gguf::write_shallow(&source, 7, &path, &mut |_, _| {}),
            Err(WriteError::Cut(CutError::Range { .. }))
        ));
    }
}
