//! Models whose blocks cannot draft: each is refused with its reason, and before llama.cpp could abort.

use gguf::Metadata;

use super::*;

/// Why a model is not loaded for drafting.
fn refusal(path: PathBuf) -> String {
    let shown = path.display().to_string();
    let error = LlamaEngine::load(&EngineConfig { path, ..config() }, &mut |_| ()).err();
    assert!(matches!(error, Some(LoadError::NoDrafts { .. })), "{shown}: {error:?}");
    error.unwrap().to_string()
}

/// The same of a toy with other metadata and some of its tensors only, which still answers when nobody asks for drafts.
fn spoiled(name: &str, keeps: impl Fn(&str) -> bool, change: impl Fn(&mut Metadata)) -> String {
    let toy = Toy::named(name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let meta = folder.path().join("meta.gguf");
    toy.write_changed(&[], &meta, &change).unwrap();
    let mut tensors = llama::required_tensors(&meta).unwrap();
    tensors.retain(|tensor| keeps(&tensor.name));
    let path = folder.path().join("spoiled.gguf");
    toy.write_changed(&tensors, &path, &change).unwrap();
    refusal(path)
}

/// A block that drafts behind the layers of an architecture whose slices keep none.
fn with_a_block(name: &str) -> String {
    let toy = Toy::named(name).unwrap();
    let arch = toy.spec().arch;
    let n_blocks = toy.spec().n_layers + 1;
    let folder = tempfile::tempdir().unwrap();
    let meta = folder.path().join("meta.gguf");
    toy.write_meta(&meta).unwrap();
    let path = folder.path().join("with.gguf");
    toy.write_changed(&llama::required_tensors(&meta).unwrap(), &path, |m| {
        m.set(format!("{arch}.nextn_predict_layers"), 1_u32);
        m.set(format!("{arch}.block_count"), n_blocks);
    })
    .unwrap();
    refusal(path)
}

#[test]
fn an_architecture_that_cannot_draft_says_why() {
    let of_state = with_a_block("qwen3next");
    assert!(of_state.contains("cannot take back") && of_state.contains("recurrent"), "{of_state}");
    let of_graph = with_a_block("exaone-moe");
    assert!(of_graph.contains("no graph"), "{of_graph}");
}

#[test]
fn blocks_at_which_llama_cpp_would_abort_are_refused_by_what_is_wrong_with_them() {
    // A chain whose blocks hold query, key and value apart, or of which one is not there.
    let sources = |name: &'static str, lacks: &'static str| {
        let bench = Bench::new(Toy::named(name).unwrap());
        let model = Model::open(&bench.whole).unwrap();
        let path = bench.folder().join("spoiled.gguf");
        gguf::toy::without(&model, lacks, &path).unwrap();
        refusal(path)
    };
    for (name, lacks) in [
        ("mimo2-nextn", "blk.9.attn_qkv.weight"),
        ("mimo2-nextn", "blk.10.ffn_up.weight"),
        ("deepseek2-nextn", "blk.8.attn_q_a.weight"),
        ("qwen35moe-nextn", "blk.8.ffn_gate_inp.weight"),
    ] {
        let (_, tensor) = lacks.split_once('.').and_then(|(_, rest)| rest.split_once('.')).unwrap();
        let reason = sources(name, lacks);
        assert!(reason.contains(&format!("without {tensor}")), "{name}: {reason}");
    }
    let missing = sources("step35-nextn", "blk.9.nextn.eh_proj.weight");
    assert!(missing.contains("does not hold them"), "{missing}");
    let scaled =
        spoiled("deepseek2-nextn", |_| true, |m| m.set("deepseek2.attention.temperature_scale", 0.1_f32));
    assert!(scaled.contains("with attention.temperature_scale"), "{scaled}");
}

#[test]
fn what_cannot_draft_says_so_before_anything_is_loaded() {
    let plain = Bench::new(Toy::named("llama").unwrap());
    assert!(refusal(plain.whole.clone()).contains("no block that drafts"));
    let model = Model::open(&plain.whole).unwrap();
    let (paths, _) = cut(&Source::new(&model).unwrap(), &[3], plain.folder());
    assert!(refusal(paths[1].clone()).contains("no block for that"));
    assert!(LlamaEngine::load(&EngineConfig { path: paths[0].clone(), ..config() }, &mut |_| ()).is_ok());
    // Two blocks, of which llama.cpp would run the first one only.
    let two = spoiled(
        "hy_v3-nextn",
        |_| true,
        |m| {
            m.set("hy_v3.nextn_predict_layers", 2_u32);
            m.set("hy_v3.block_count", 8_u32);
        },
    );
    assert!(two.contains("2 blocks") && two.contains("runs 1"), "{two}");
    let engine = LlamaEngine::load(
        &EngineConfig { path: plain.whole.clone(), drafts: false, ..config() },
        &mut |_| (),
    );
    let error = engine.unwrap().draft(vec![wish(0, (0, 1), 1, &Arc::default())]).unwrap_err();
    assert!(error.reason.contains("loaded without"), "{error}");
}
