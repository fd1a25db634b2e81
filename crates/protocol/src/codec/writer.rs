//! Appends fields in the form that [`super::reader`] reads.

use crate::{Position, Token, limits};

pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    pub(super) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }

    pub(super) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(super) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    pub(super) fn i32(&mut self, v: i32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(super) fn f32(&mut self, v: f32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(super) fn flag(&mut self, v: bool) {
        self.u8(u8::from(v));
    }

    pub(super) fn place(&mut self, v: Position) {
        self.u32(v.0);
    }

    pub(super) fn token(&mut self, v: Token) {
        self.i32(v.0);
    }

    /// A text for people, cut to [`limits::MAX_TEXT`] bytes at the end of a character.
    pub(super) fn text(&mut self, v: &str) {
        let mut end = v.len().min(limits::MAX_TEXT);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.list(&v.as_bytes()[..end], |w, &b| w.u8(b));
    }

    /// A text that means something to a program: never cut, so whoever makes one keeps to the reader's limit.
    pub(super) fn whole_text(&mut self, v: &str) {
        self.u32(u32::try_from(v.len()).expect("no text in memory comes near 2^32 bytes"));
        self.bytes(v.as_bytes());
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(items.len()).expect("no list in memory comes near 2^32 entries"));
        for v in items {
            item(self, v);
        }
    }

    pub(super) fn tokens(&mut self, tokens: &[Token]) {
        self.list(tokens, |w, &t| w.token(t));
    }

    pub(super) fn option<T>(&mut self, v: Option<&T>, some: impl FnOnce(&mut Self, &T)) {
        self.flag(v.is_some());
        if let Some(v) = v {
            some(self, v);
        }
    }
}
