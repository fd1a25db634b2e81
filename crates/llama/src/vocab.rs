//! Text to tokens and tokens to bytes, by the tokenizer inside a GGUF. Cheap to clone, usable from any thread.
//!
//! Does not know: incremental detokenising, stop strings, templates' language (`server` does that).

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;
use protocol::Token;

use crate::LoadError;
use crate::model::{Model, ModelOptions};

/// A model's vocabulary. Holds the loaded file alive; without weights if it came from [`Vocab::load`].
#[derive(Clone, Debug)]
pub struct Vocab {
    model: Arc<Model>,
    n_tokens: i32,
}

/// Why a text has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// The text or its tokens do not fit in 31 bits.
    #[error("the text of {bytes} bytes is too long")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
    },
}

impl Vocab {
    /// Reads the vocabulary of a GGUF: a whole model, or one that holds nothing else.
    ///
    /// # Errors
    /// If the file cannot be read or has no tokenizer that llama.cpp knows.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let options = ModelOptions { vocab_only: true, ..ModelOptions::default() };
        let model = Model::load(path, &options, &mut |_| ())?;
        Self::of(Arc::new(model)).ok_or_else(|| LoadError::unsuitable(path, "it has no tokenizer"))
    }

    /// The vocabulary inside a loaded model, if it has one.
    pub(crate) fn of(model: Arc<Model>) -> Option<Self> {
        // SAFETY: the vocabulary belongs to the live model.
        let kind = unsafe { sys::llama_vocab_type(model.vocab().as_ptr()) };
        // SAFETY: as above.
        let n_tokens = unsafe { sys::llama_vocab_n_tokens(model.vocab().as_ptr()) };
        (kind != sys::LLAMA_VOCAB_TYPE_NONE).then_some(Self { model, n_tokens })
    }

    pub(crate) fn raw(&self) -> *const sys::llama_vocab {
        self.model.vocab().as_ptr()
    }

    /// Entries; valid tokens are `0..n_tokens`.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        usize::try_from(self.n_tokens).unwrap_or(0)
    }

    /// Whether the token is an entry.
    #[must_use]
    pub fn contains(&self, token: Token) -> bool {
        (0..self.n_tokens).contains(&token.0)
    }

    /// The tokens of `text`. `add_special` adds what the model wants at the beginning (and end); `parse_special`
    /// reads names of control tokens in the text as those tokens, which is right for a rendered template and wrong
    /// for text that a user typed.
    ///
    /// # Errors
    /// [`TokenizeError::TooLong`].
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>, TokenizeError> {
        let too_long = TokenizeError::TooLong { bytes: text.len() };
        let Ok(len) = i32::try_from(text.len()) else { return Err(too_long) };
        // At most one token per byte for nearly every text, and a few special ones; else the second try fits.
        let mut tokens: Vec<i32> = Vec::new();
        let mut room = len / 2 + 16;
        for _ in 0..2 {
            tokens.resize(usize::try_from(room).unwrap_or(0), 0);
            // SAFETY: `text` holds `len` bytes, `tokens` has room for `room` ids; the vocabulary is live and has a
            // tokenizer (checked in `of`). The call is const and keeps no pointer.
            let n = unsafe {
                sys::llama_tokenize(
                    self.raw(),
                    text.as_ptr().cast(),
                    len,
                    tokens.as_mut_ptr(),
                    room,
                    add_special,
                    parse_special,
                )
            };
            if let Ok(n) = usize::try_from(n) {
                tokens.truncate(n);
                return Ok(tokens.into_iter().map(Token).collect());
            }
            room = n.checked_neg().ok_or(too_long.clone())?;
        }
        Err(too_long)
    }

    /// Appends the token's bytes to `out`: often a piece of a character. Control tokens have their name as text if
    /// `special`, else none. Nothing is appended for a token outside the vocabulary.
    pub fn append_bytes(&self, token: Token, special: bool, out: &mut Vec<u8>) {
        if !self.contains(token) {
            return;
        }
        let start = out.len();
        let mut room = 32_i32;
        for _ in 0..2 {
            out.resize(start + usize::try_from(room).unwrap_or(0), 0);
            let target: *mut c_char = out[start..].as_mut_ptr().cast();
            // SAFETY: the token is in the vocabulary; `target` has room for `room` bytes; the call is const.
            let n = unsafe { sys::llama_token_to_piece(self.raw(), token.0, target, room, 0, special) };
            if let Ok(n) = usize::try_from(n) {
                out.truncate(start + n);
                return;
            }
            room = n.saturating_neg();
        }
        out.truncate(start);
    }

    /// The token's bytes; see [`Vocab::append_bytes`].
    #[must_use]
    pub fn bytes(&self, token: Token, special: bool) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_bytes(token, special, &mut out);
        out
    }

    /// The token that begins a text, if the model has one.
    #[must_use]
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is live.
        self.known(unsafe { sys::llama_vocab_bos(self.raw()) })
    }

    /// The token that ends a text, if the model has one.
    #[must_use]
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is live.
        self.known(unsafe { sys::llama_vocab_eos(self.raw()) })
    }

    /// The tokens around the text before a gap and the one behind it, and the one that asks for what is missing; none unless
    /// the model has all three.
    #[must_use]
    pub fn fill(&self) -> Option<[Token; 3]> {
        // SAFETY: the vocabulary is live.
        let prefix = self.known(unsafe { sys::llama_vocab_fim_pre(self.raw()) })?;
        // SAFETY: as above.
        let suffix = self.known(unsafe { sys::llama_vocab_fim_suf(self.raw()) })?;
        // SAFETY: as above.
        let middle = self.known(unsafe { sys::llama_vocab_fim_mid(self.raw()) })?;
        Some([prefix, suffix, middle])
    }

    /// Whether [`Vocab::tokenize`] with `add_special` puts [`Vocab::bos`] first.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_get_add_bos(self.raw()) }
    }

    /// All tokens that end a generation, ascending.
    #[must_use]
    pub fn end_tokens(&self) -> Vec<Token> {
        (0..self.n_tokens).map(Token).filter(|&token| self.ends_generation(token)).collect()
    }

    /// Whether the token ends a generation.
    pub(crate) fn ends_generation(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is live and the id is one of its entries.
        self.contains(token) && unsafe { sys::llama_vocab_is_eog(self.raw(), token.0) }
    }

    /// What kind of token it is, as llama.cpp's bits; 0 for none outside the vocabulary.
    pub(crate) fn attributes(&self, token: Token) -> i64 {
        if !self.contains(token) {
            return 0;
        }
        // SAFETY: the vocabulary is live and the id is one of its entries.
        i64::from(unsafe { sys::llama_vocab_get_attr(self.raw(), token.0) })
    }

    /// Whether the token stands for bytes of a text: neither control, nor unknown, nor unused.
    pub(crate) fn is_text(&self, token: Token) -> bool {
        const NO_TEXT: u32 =
            sys::LLAMA_TOKEN_ATTR_UNKNOWN | sys::LLAMA_TOKEN_ATTR_UNUSED | sys::LLAMA_TOKEN_ATTR_CONTROL;
        self.contains(token) && self.attributes(token) & i64::from(NO_TEXT) == 0
    }

    /// Whether the token steers the model instead of being text.
    #[must_use]
    pub fn is_control(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is live and the id is one of its entries.
        self.contains(token) && unsafe { sys::llama_vocab_is_control(self.raw(), token.0) }
    }

    /// The model's chat template: the one called `name`, else the default.
    #[must_use]
    pub fn chat_template(&self, name: Option<&str>) -> Option<String> {
        let name = name.map(CString::new).transpose().ok()?;
        self.model.chat_template(name.as_deref())
    }

    /// The token as written in the vocabulary (`<s>`, `Ġthe`); templates want it for the special ones.
    #[must_use]
    pub fn text(&self, token: Token) -> Option<String> {
        if !self.contains(token) {
            return None;
        }
        // SAFETY: the vocabulary is live and the id is one of its entries.
        let text = unsafe { sys::llama_vocab_get_text(self.raw(), token.0) };
        if text.is_null() {
            return None;
        }
        // SAFETY: a non-null answer is a NUL-terminated string inside the vocabulary.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    fn known(&self, id: i32) -> Option<Token> {
        Some(Token(id)).filter(|&token| self.contains(token))
    }
}
