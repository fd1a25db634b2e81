//! Following a text: the place whose token is guessed next, and for how long it has been right.

use protocol::{Epoch, Token};

use crate::proposer::{Ask, Block};

/// Runs are counted up to here: nothing distinguishes longer ones.
pub(crate) const MAX_RUN: u32 = 64;

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Follow {
    /// Index of the token guessed next.
    pub(crate) place: usize,
    /// Tokens before it that were right in a row, up to [`MAX_RUN`].
    pub(crate) run: u32,
}

impl Follow {
    pub(crate) fn new(place: usize, run: u32) -> Self {
        Self { place, run: run.min(MAX_RUN) }
    }

    /// One place further, if the text has `token` here.
    pub(crate) fn step(self, text: &[Token], token: Token) -> Option<Self> {
        (text.get(self.place) == Some(&token)).then(|| Self::new(self.place + 1, self.run + 1))
    }
}

/// Where a source stands behind the guesses in flight, so that each guess is looked at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead<T> {
    epoch: Epoch,
    /// Tokens that `at` has seen.
    n_seen: usize,
    at: T,
}

impl<T: Copy> Ahead<T> {
    /// Where a source stands after the tokens sent, to be kept for the next time, and after all of `ask.tokens`:
    /// `before` if it still holds, else `here`, which is where it stands after the committed ones, moved on by `step`
    /// over what follows.
    pub(crate) fn reach(
        before: Option<Self>,
        here: T,
        ask: &Ask<'_>,
        mut step: impl FnMut(T, &[Token]) -> T,
    ) -> (Self, T) {
        let holds =
            |ahead: &Self| ahead.epoch == ask.epoch && (ask.n_committed..=ask.n_sent).contains(&ahead.n_seen);
        let mut ahead =
            before.filter(holds).unwrap_or(Self { epoch: ask.epoch, n_seen: ask.n_committed, at: here });
        while ahead.n_seen < ask.n_sent {
            ahead.n_seen += 1;
            ahead.at = step(ahead.at, &ask.tokens[..ahead.n_seen]);
        }
        let end = (ask.n_sent + 1..=ask.tokens.len()).fold(ahead.at, |at, n| step(at, &ask.tokens[..n]));
        (ahead, end)
    }
}

/// `n` tokens of `text` from `follow` on; past its end the copy goes on with itself.
pub(crate) fn copy(text: &[Token], follow: Follow, n: usize) -> Block {
    let mut tokens: Vec<Token> = text.iter().skip(follow.place).take(n).copied().collect();
    let period = tokens.len();
    while tokens.len() < n && period > 0 {
        tokens.push(tokens[tokens.len() - period]);
    }
    Block { tokens, run: follow.run, probabilities: Vec::new() }
}
