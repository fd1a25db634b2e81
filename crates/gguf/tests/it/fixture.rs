//! The trained fixture: a small real model whose slices keep the block that drafts.

use std::path::{Path, PathBuf};

use crate::slices::{cut, same_data};
use gguf::{Model, SliceNextN, Source};

/// Its layers, and the block behind them that drafts.
const N_LAYERS: u32 = 4;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/paceline-tiny-mtp.gguf")
}

/// The tensors of a block are those of another one in the other file.
fn same_block(whole: &Model, block: u32, slice: &Model, in_slice: u32) {
    let names = |model: &Model, at: u32| {
        let of = |tensor: &gguf::Tensor| {
            tensor.layer().filter(|(block, _)| *block == at).map(|(_, rest)| rest.to_owned())
        };
        model.tensors().iter().filter_map(of).collect::<Vec<_>>()
    };
    let own = names(whole, block);
    assert!(!own.is_empty() && own == names(slice, in_slice), "block {block}");
    for name in own {
        same_data(whole, &format!("blk.{block}.{name}"), slice, &format!("blk.{in_slice}.{name}"));
    }
}

#[test]
fn the_fixture_is_small_and_has_a_block_that_drafts() {
    assert!(std::fs::metadata(path()).unwrap().len() <= 6 << 20);
    let model = Model::open(&path()).unwrap();
    assert_eq!((model.arch(), model.n_layers(), model.n_blocks()), ("hy_v3", N_LAYERS, N_LAYERS + 1));
    assert_eq!(Source::new(&model).unwrap().nextn(), N_LAYERS..N_LAYERS + 1);
}

#[test]
fn at_every_cut_of_the_fixture_the_tail_alone_keeps_the_block_that_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Model::open(&path()).unwrap();
    let source = Source::new(&whole).unwrap();
    for at in 1..N_LAYERS {
        let (first, tail) = (cut(&source, 0, at, folder.path()), cut(&source, at, N_LAYERS, folder.path()));
        assert_eq!((first.info.nextn, first.model.n_blocks()), (None, at));
        assert!(first.model.arch_value("nextn_predict_layers").is_none());
        assert!(first.model.tensors().iter().all(|tensor| !tensor.name.contains("nextn")));
        let nextn = SliceNextN { n_blocks: 1, is_apart: false };
        assert_eq!((tail.info.nextn, tail.info.n_file_layers), (Some(nextn), N_LAYERS - at));
        assert_eq!(tail.model.arch_u32("nextn_predict_layers"), Some(1));
        for layer in 0..at {
            same_block(&whole, layer, &first.model, layer);
        }
        for block in at..=N_LAYERS {
            same_block(&whole, block, &tail.model, block - at);
        }
        // The head and the block that drafts share the embeddings, which the first stage looks up, too.
        for global in ["token_embd.weight", "output_norm.weight"] {
            same_data(&whole, global, &tail.model, global);
        }
        let rows = first.embeddings.unwrap();
        same_data(&whole, "token_embd.weight", &rows, "token_embd.weight");
        assert!(whole.tensor("output.weight").is_none() && tail.model.tensor("output.weight").is_none());
        let words = |model: &Model| model.metadata().get("tokenizer.ggml.tokens").cloned();
        assert!(words(&whole).is_some());
        assert_eq!((words(&first.model), words(&tail.model)), (None, words(&whole)));
    }
}
