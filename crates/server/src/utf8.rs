//! Text from bytes that arrive in pieces. Never gives half a character.

/// Decodes UTF-8 as it comes. However the bytes are cut, the text is `String::from_utf8_lossy` of the whole.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    /// The start of a character whose rest is still to come: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes; appends the characters that are complete now. Bytes that can never become a character turn into
    /// U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    self.pending.clear();
                    return;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    let Some(bad) = error.error_len() else {
                        self.pending = after.to_vec();
                        return;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
    }

    /// No more bytes will come: a character cut short becomes U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> String {
        let (mut stream, mut out) = (Utf8Stream::default(), String::new());
        chunks.iter().for_each(|chunk| stream.push(chunk, &mut out));
        stream.finish(&mut out);
        out
    }

    #[test]
    fn half_a_character_waits_for_the_rest() {
        let (mut stream, mut out) = (Utf8Stream::default(), String::new());
        let snowman = "a☃b".as_bytes();
        stream.push(&snowman[..2], &mut out);
        assert_eq!(out, "a");
        stream.push(&snowman[2..3], &mut out);
        assert_eq!(out, "a");
        stream.push(&snowman[3..], &mut out);
        assert_eq!(out, "a☃b");
    }

    #[test]
    fn a_character_cut_short_is_replaced_at_the_end_and_a_wrong_byte_at_once() {
        assert_eq!(decode(&[b"ok \xe2\x98"]), "ok \u{fffd}");
        assert_eq!(decode(&[b"\xff", b"x"]), "\u{fffd}x");
        assert_eq!(decode(&[b"\xe2\x98", b"x"]), "\u{fffd}x");
    }

    /// Bytes that are often nearly text, so that cuts inside characters and broken characters both occur.
    fn nearly_text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..4),
            any::<char>().prop_map(|c| {
                let mut bytes = c.to_string().into_bytes();
                bytes.pop();
                bytes
            }),
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_text_of_the_whole(
            bytes in nearly_text(),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(&chunks), String::from_utf8_lossy(&bytes));
        }
    }
}
