//! Stop strings in text that arrives in pieces.

/// Finds the first stop string, wherever the pieces are cut. Holds back only text that may turn out to be one.
///
/// The first stop string is the one that is complete first; of several complete at the same place, the longest.
/// This makes the result independent of how the text is cut.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Index of the stop string found.
    found: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these strings, none of them empty.
    pub(crate) const fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    /// Takes text; appends what is certainly not part of a stop string. True if one was found: then the text before
    /// it has been appended, and nothing more may be pushed.
    #[must_use]
    pub(crate) fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, i)))
            .min();
        if let Some((_, start, i)) = found {
            self.found = Some(i);
            out.push_str(&self.held[..start]);
            self.held.clear();
            return true;
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        out.extend(self.held.drain(..self.held.len() - keep));
        false
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.map(|i| self.stops[i].as_str())
    }

    /// No more text will come: appends what was held back.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Bytes of the longest end of `text` that `stop` starts with, not counting `stop` as a whole.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| stop.is_char_boundary(n) && text.as_bytes().ends_with(&stop.as_bytes()[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut out = String::new();
        for chunk in chunks {
            if matcher.push(chunk, &mut out) {
                return (out, true);
            }
        }
        matcher.finish(&mut out);
        (out, false)
    }

    #[test]
    fn a_stop_string_across_pieces_is_cut_off() {
        assert_eq!(run(&["\n\nUser:"], &["Hi.\n", "\nUs", "er: more"]), ("Hi.".into(), true));
        assert_eq!(run(&["\n\nUser:"], &["Hi.\n", "\nUs", "ed"]), ("Hi.\n\nUsed".into(), false));
    }

    #[test]
    fn only_a_possible_start_is_held_back() {
        let mut matcher = StopMatcher::new(vec!["END".into()]);
        let mut out = String::new();
        assert!(!matcher.push("text EN", &mut out));
        assert_eq!(out, "text ");
        assert!(!matcher.push("T", &mut out));
        assert_eq!(out, "text ENT");
    }

    #[test]
    fn the_stop_that_is_complete_first_wins() {
        assert_eq!(run(&["abc", "b"], &["xabc"]), ("xa".into(), true));
        assert_eq!(run(&["abc", "bc"], &["xabc"]), ("x".into(), true));
    }

    proptest! {
        #[test]
        fn cutting_the_text_anywhere_changes_nothing(
            text in "[ab☃]{0,24}",
            stops in proptest::collection::vec("[ab☃]{1,4}", 1..4),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..10),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).collect();
            cuts.extend([0, chars.len()]);
            cuts.sort_unstable();
            let chunks: Vec<String> = cuts.windows(2).map(|pair| chars[pair[0]..pair[1]].iter().collect()).collect();
            let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();

            let (out, stopped) = run(&stops, &chunks);
            let expected = stops.iter()
                .filter_map(|stop| text.find(stop).map(|start| (start + stop.len(), start)))
                .min();
            prop_assert_eq!(stopped, expected.is_some());
            prop_assert_eq!(out.as_str(), expected.map_or(text.as_str(), |(_, start)| &text[..start]));
        }
    }
}
