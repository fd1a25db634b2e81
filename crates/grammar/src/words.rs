//! A model's vocabulary in the form that llguidance walks: a tree of the tokens' bytes.

use std::sync::Arc;

use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use protocol::Token;

use crate::GrammarError;

/// Longer tokens are never allowed: the tree holds no deeper branches, and no vocabulary needs them.
const MAX_TOKEN_BYTES: usize = 1000;
/// Bits of a token's id in a node of the tree.
const MAX_TOKENS: usize = 0xff_ffff;
/// Put before a text that is tokenised, where a vocabulary adds a blank at a text's beginning.
const START: &str = "\u{2}";

/// What a vocabulary must say about itself.
pub trait Vocabulary: Send + Sync + 'static {
    /// Entries; valid tokens are `0..n_tokens`.
    fn n_tokens(&self) -> usize;

    /// Appends the token's bytes; nothing for a token that is not text.
    fn append_bytes(&self, token: Token, out: &mut Vec<u8>);

    /// The name of a token that is not text, such as `<|im_end|>`; none for text.
    fn name(&self, token: Token) -> Option<String>;

    /// All tokens that end a generation.
    fn end_tokens(&self) -> Vec<Token>;

    /// The tokens of a text in the middle of another, the names of special tokens being text like any other.
    fn tokenize(&self, text: &str) -> Vec<Token>;
}

/// See the module.
struct Words {
    trie: TokTrie,
    vocabulary: Arc<dyn Vocabulary>,
    /// The tokens of [`START`], if it has to come first.
    start: Option<Vec<TokenId>>,
}

/// The tree of a vocabulary's tokens.
///
/// # Errors
/// If it is empty or larger than any in use.
pub(crate) fn env(vocabulary: Arc<dyn Vocabulary>) -> Result<TokEnv, GrammarError> {
    let n_tokens = vocabulary.n_tokens();
    if n_tokens == 0 || n_tokens >= MAX_TOKENS {
        let reason = format!("it has {n_tokens} tokens");
        return Err(GrammarError::Vocabulary { reason });
    }
    let words: Vec<Vec<u8>> =
        (0..n_tokens as u32).map(|id| word(vocabulary.as_ref(), Token(id.cast_signed()))).collect();
    let is_there = |token: &Token| usize::try_from(token.0).is_ok_and(|id| id < n_tokens);
    let ends: Vec<TokenId> =
        vocabulary.end_tokens().into_iter().filter(is_there).map(|token| token.0.cast_unsigned()).collect();
    let eos = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(n_tokens as u32, eos), &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(&ends);
    }
    let mut words = Words { trie, vocabulary, start: None };
    // Some vocabularies put a blank before every text; behind another character they do not.
    if words.trie.decode(&ids(words.vocabulary.tokenize("x"))) != b"x" {
        words.start = Some(ids(words.vocabulary.tokenize(START)));
    }
    Ok(Arc::new(words))
}

fn word(vocabulary: &dyn Vocabulary, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(name) = vocabulary.name(token) {
        bytes.push(TokTrie::SPECIAL_TOKEN_MARKER);
        bytes.extend_from_slice(name.as_bytes());
    } else {
        vocabulary.append_bytes(token, &mut bytes);
        // A byte that starts no text would be taken for the mark of a special token.
        if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
            bytes.clear();
        }
    }
    if bytes.len() > MAX_TOKEN_BYTES {
        bytes.clear();
    }
    bytes
}

fn ids(tokens: Vec<Token>) -> Vec<TokenId> {
    tokens.into_iter().map(|token| token.0.cast_unsigned()).collect()
}

impl Words {
    fn tokens_of(&self, text: &str) -> Option<Vec<TokenId>> {
        let tokens = match &self.start {
            None => ids(self.vocabulary.tokenize(text)),
            Some(start) => {
                let all = ids(self.vocabulary.tokenize(&format!("{START}{text}")));
                all.strip_prefix(start.as_slice())?.to_vec()
            }
        };
        let size = self.trie.vocab_size() as TokenId;
        let is_the_text =
            tokens.iter().all(|&token| token < size) && self.trie.decode(&tokens) == text.as_bytes();
        is_the_text.then_some(tokens)
    }
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.tokens_of(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
