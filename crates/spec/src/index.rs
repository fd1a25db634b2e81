//! Where the end of a text occurred before: a suffix automaton that grows token by token.
//!
//! Owns: the automaton (Blumer et al. 1985) and its bound. Does not hold the text: callers pass it in.
//! One more token costs O(1) amortised: every edge is made once, and those of a state that is split are copied, each
//! copy being one of at most three edges per token that the automaton ever has.

use protocol::Token;

/// Tokens indexed at most. An automaton has up to two states and three edges per token, about 130 bytes with its table,
/// so one sequence's index stays below 17 MB. Beyond that the older half is forgotten.
pub(crate) const MAX_INDEXED: usize = 1 << 17;

/// States whose newest place is noted with one token. Texts have chains of about log n; only long repetitions of one
/// token have more, and there every place is as good as any other.
const MAX_CHAIN: usize = 64;

const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// A string of the text: `len` tokens that end in `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    state: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Debug)]
struct State {
    /// Length of its longest string.
    len: u32,
    /// The state of the longest suffix that occurs in more places.
    link: u32,
    /// The index of the token after a recent occurrence, counted from `Index::start`.
    end: u32,
    first_edge: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    source: u32,
    token: Token,
    target: u32,
    /// The next edge of the same source.
    next: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Tokens of the text that were forgotten.
    start: usize,
    n_tokens: usize,
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Open addressing over (source, token); holds indices of edges.
    table: Vec<u32>,
    last: u32,
    most: usize,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self::bounded(MAX_INDEXED)
    }

    fn bounded(most: usize) -> Self {
        let root = State { len: 0, link: NONE, end: 0, first_edge: NONE };
        Self {
            start: 0,
            n_tokens: 0,
            states: vec![root],
            edges: Vec::new(),
            table: vec![NONE; 64],
            last: ROOT,
            most,
        }
    }

    /// Indexes the last token of `text`, whose other tokens are indexed. Whether cursors are still valid: they are
    /// not when older tokens were forgotten.
    pub(crate) fn push(&mut self, text: &[Token]) -> bool {
        let Some((&token, before)) = text.split_last() else { return true };
        assert_eq!(before.len(), self.start + self.n_tokens, "tokens are indexed one after the other");
        if self.n_tokens < self.most {
            self.extend(token);
            return true;
        }
        let start = text.len() - self.most / 2;
        *self = Self { start, ..Self::bounded(self.most) };
        text[start..].iter().for_each(|&token| self.extend(token));
        false
    }

    /// The longest end of the text that occurs earlier in it, up to its own beginning.
    pub(crate) fn end_match(&self) -> Cursor {
        let link = self.states[self.last as usize].link;
        let state = if link == NONE { ROOT } else { link };
        Cursor { state, len: self.states[state as usize].len }
    }

    /// The longest end of the cursor's string and `token` that occurs in the text.
    pub(crate) fn step(&self, cursor: Cursor, token: Token) -> Cursor {
        let Cursor { mut state, mut len } = self.settled(cursor);
        loop {
            if let Some(edge) = self.find(state, token) {
                return Cursor { state: self.edges[edge].target, len: len + 1 };
            }
            if state == ROOT {
                return Cursor { state: ROOT, len: 0 };
            }
            state = self.states[state as usize].link;
            len = self.states[state as usize].len;
        }
    }

    /// The index in the text of a token that followed the cursor's string; none if the string is empty.
    pub(crate) fn place(&self, cursor: Cursor) -> Option<usize> {
        let cursor = self.settled(cursor);
        (cursor.len > 0).then(|| self.start + self.states[cursor.state as usize].end as usize)
    }

    /// The cursor in the state that its string belongs to, after states were split.
    fn settled(&self, mut cursor: Cursor) -> Cursor {
        while cursor.state != ROOT {
            let link = self.states[cursor.state as usize].link;
            if cursor.len > self.states[link as usize].len {
                break;
            }
            cursor.state = link;
        }
        cursor
    }

    fn extend(&mut self, token: Token) {
        self.note_places();
        self.n_tokens += 1;
        let len = self.n_tokens as u32;
        let new = self.add_state(State { len, link: ROOT, end: len, first_edge: NONE });
        let mut state = self.last;
        self.last = new;
        let found = loop {
            if state == NONE {
                return;
            }
            if let Some(edge) = self.find(state, token) {
                break edge;
            }
            self.add_edge(state, token, new);
            state = self.states[state as usize].link;
        };
        let target = self.edges[found].target;
        let link = if self.states[state as usize].len + 1 == self.states[target as usize].len {
            target
        } else {
            self.split(state, token, target)
        };
        self.states[new as usize].link = link;
    }

    /// Parts off the strings of `target` that are no longer than `source`'s longest and one token.
    fn split(&mut self, source: u32, token: Token, target: u32) -> u32 {
        let len = self.states[source as usize].len + 1;
        let State { link, end, first_edge, .. } = self.states[target as usize];
        let part = self.add_state(State { len, link, end, first_edge: NONE });
        let mut edge = first_edge;
        while edge != NONE {
            let Edge { token, target, next, .. } = self.edges[edge as usize];
            self.add_edge(part, token, target);
            edge = next;
        }
        self.states[target as usize].link = part;
        let mut state = source;
        while state != NONE {
            match self.find(state, token) {
                Some(edge) if self.edges[edge].target == target => self.edges[edge].target = part,
                _ => break,
            }
            state = self.states[state as usize].link;
        }
        part
    }

    /// The ends of the text so far have their newest place here. It is noted only now that the text goes on, so that
    /// the end of the text never finds itself.
    fn note_places(&mut self) {
        let mut state = self.last;
        for _ in 0..MAX_CHAIN {
            if state == ROOT || state == NONE {
                return;
            }
            self.states[state as usize].end = self.n_tokens as u32;
            state = self.states[state as usize].link;
        }
    }

    fn add_state(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    fn add_edge(&mut self, source: u32, token: Token, target: u32) {
        if self.table.len() < 2 * (self.edges.len() + 1) {
            self.grow();
        }
        let edge = self.edges.len() as u32;
        let next = std::mem::replace(&mut self.states[source as usize].first_edge, edge);
        self.edges.push(Edge { source, token, target, next });
        self.insert(edge);
    }

    fn grow(&mut self) {
        self.table = vec![NONE; 2 * self.table.len()];
        (0..self.edges.len() as u32).for_each(|edge| self.insert(edge));
    }

    fn insert(&mut self, edge: u32) {
        let Edge { source, token, .. } = self.edges[edge as usize];
        let mut at = self.bucket(source, token);
        while self.table[at] != NONE {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = edge;
    }

    fn find(&self, source: u32, token: Token) -> Option<usize> {
        let mut at = self.bucket(source, token);
        while self.table[at] != NONE {
            let index = self.table[at] as usize;
            let edge = self.edges[index];
            if edge.source == source && edge.token == token {
                return Some(index);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        None
    }

    /// Fibonacci hashing (Knuth, TAOCP 3, 6.4): the product's upper half depends on every bit of the key.
    const fn bucket(&self, source: u32, token: Token) -> usize {
        let key = (source as u64) << 32 | token.0.cast_unsigned() as u64;
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash ^ hash >> 32) >> 8) as usize & (self.table.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(text: &[Token], most: usize) -> Index {
        let mut index = Index::bounded(most);
        for n in 1..=text.len() {
            index.push(&text[..n]);
        }
        index
    }

    /// The longest end of `text` and `more` that occurs in `text`, before `text`'s own end if `more` is empty.
    fn longest(text: &[Token], more: &[Token]) -> usize {
        let whole = [text, more].concat();
        let ends = if more.is_empty() { text.len().saturating_sub(1) } else { text.len() };
        let occurs = |n: usize| (n..=ends).any(|end| text[end - n..end] == whole[whole.len() - n..]);
        (0..=whole.len()).rev().find(|&n| n <= ends && occurs(n)).unwrap_or(0)
    }

    fn text(n: usize) -> impl Strategy<Value = Vec<Token>> {
        (1_i32..5, prop::collection::vec(0..1000_i32, 1..n))
            .prop_map(|(kinds, ids)| ids.into_iter().map(|id| Token(id % kinds)).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn finds_the_longest_earlier_match_and_where_it_went_on(text in text(80), more in text(8)) {
            let index = index(&text, 1000);
            let mut cursor = index.end_match();
            for n in 0..=more.len() {
                if n > 0 {
                    cursor = index.step(cursor, more[n - 1]);
                }
                prop_assert_eq!(cursor.len as usize, longest(&text, &more[..n]));
                if let Some(place) = index.place(cursor) {
                    let whole = [&text[..], &more[..n]].concat();
                    let len = cursor.len as usize;
                    prop_assert!(place < whole.len() && place <= text.len());
                    prop_assert_eq!(&text[place - len..place], &whole[whole.len() - len..]);
                }
            }
        }

        #[test]
        fn a_cursor_outlives_the_growth_of_the_text(text in text(60), n in 1_usize..40, more in text(6)) {
            let n = n.min(text.len());
            let mut index = index(&text[..n], 1000);
            let mut cursor = more.iter().fold(index.end_match(), |cursor, &token| index.step(cursor, token));
            for n in n + 1..=text.len() {
                index.push(&text[..n]);
                if let Some(place) = index.place(cursor) {
                    prop_assert!(place <= n && place >= cursor.len as usize);
                }
                cursor = index.step(cursor, text[n - 1]);
                prop_assert!(cursor.len as usize <= n);
            }
        }

        #[test]
        fn what_is_held_is_bounded_and_still_right(text in text(200)) {
            let most = 16;
            let index = index(&text, most);
            prop_assert!(index.n_tokens <= most && index.states.len() <= 2 * most && index.edges.len() <= 3 * most + 3);
            let held = &text[index.start..];
            let cursor = index.end_match();
            prop_assert_eq!(cursor.len as usize, longest(held, &[]));
            if let Some(place) = index.place(cursor) {
                prop_assert_eq!(&text[place - cursor.len as usize..place], &text[text.len() - cursor.len as usize..]);
            }
        }
    }

    #[test]
    fn the_newest_place_wins() {
        let ids = [7, 1, 7, 2, 7, 3, 7];
        let text: Vec<_> = ids.iter().copied().map(Token).collect();
        let index = index(&text, 100);
        assert_eq!(index.place(index.end_match()), Some(5));
    }
}
