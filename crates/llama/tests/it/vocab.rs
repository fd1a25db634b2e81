//! Text to tokens and back, from a whole model and from a file that holds the vocabulary alone.

use gguf::Model;
use gguf::toy::Toy;
use llama::{LoadError, Vocab};
use protocol::Token;

use crate::support::{GEMMA3, SMOLLM2, model};

fn text(vocab: &Vocab, tokens: &[Token], special: bool) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| vocab.append_bytes(token, special, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

#[test]
fn text_survives_the_way_to_tokens_and_back() {
    for name in [SMOLLM2, GEMMA3] {
        let vocab = Vocab::load(&model(name)).unwrap();
        for sample in ["Hello, world!", "naïve café — 日本語 🦙\n\n\ttabs", "x = [1, 2, 3]  # <b>"] {
            let tokens = vocab.tokenize(sample, false, false).unwrap();
            assert_eq!(text(&vocab, &tokens, false), sample, "{name}");
        }
        assert_eq!(vocab.tokenize("", false, false).unwrap(), []);
        let long = "word ".repeat(40_000);
        let tokens = vocab.tokenize(&long, false, false).unwrap();
        assert_eq!(text(&vocab, &tokens, false), long);
    }
}

#[test]
fn names_of_control_tokens_are_text_unless_they_are_to_be_parsed() {
    let vocab = Vocab::load(&model(SMOLLM2)).unwrap();
    let typed = vocab.tokenize("<|im_end|>", false, false).unwrap();
    assert!(typed.len() > 1 && !typed.iter().any(|&token| vocab.is_control(token)));
    let rendered = vocab.tokenize("<|im_end|>", false, true).unwrap();
    let [end] = rendered[..] else { panic!("{rendered:?}") };
    assert!(vocab.is_control(end) && vocab.end_tokens().contains(&end));
    assert_eq!((vocab.bytes(end, false), vocab.bytes(end, true)), (Vec::new(), b"<|im_end|>".to_vec()));
    assert_eq!(vocab.text(end).as_deref(), Some("<|im_end|>"));
}

#[test]
fn a_vocabulary_file_equals_the_model() {
    let path = model(GEMMA3);
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("vocab.gguf");
    gguf::write_vocab(&Model::open(&path).unwrap(), &alone).unwrap();
    let (whole, alone) = (Vocab::load(&path).unwrap(), Vocab::load(&alone).unwrap());
    assert_eq!(whole.n_tokens(), 262_144);
    assert_eq!(alone.n_tokens(), whole.n_tokens());
    assert_eq!((alone.bos(), alone.eos(), alone.adds_bos()), (Some(Token(2)), Some(Token(1)), true));
    assert_eq!(alone.end_tokens(), whole.end_tokens());
    assert_eq!(alone.chat_template(None), whole.chat_template(None));
    let sample = "The quick brown fox";
    let tokens = alone.tokenize(sample, true, false).unwrap();
    assert_eq!(tokens, whole.tokenize(sample, true, false).unwrap());
    assert_eq!(tokens[0], Token(2));
}

#[test]
fn tokens_outside_the_vocabulary_are_nothing() {
    let vocab = Vocab::load(&model(SMOLLM2)).unwrap();
    assert!(vocab.chat_template(None).is_some_and(|template| template.contains("im_start")));
    for id in [-1, i32::MIN, i32::MAX, 49_152] {
        let token = Token(id);
        assert!(!vocab.contains(token) && !vocab.is_control(token));
        assert_eq!((vocab.bytes(token, true), vocab.text(token)), (Vec::new(), None));
    }
}

#[test]
fn a_model_without_a_tokenizer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.gguf");
    Toy::named("llama").unwrap().write_meta(&path).unwrap();
    assert!(matches!(Vocab::load(&path), Err(LoadError::Unsuitable { .. })));
    std::fs::write(&path, b"not a model").unwrap();
    let error = Vocab::load(&path).unwrap_err();
    assert!(matches!(&error, LoadError::Model { .. }), "{error}");
}
