//! The best of several choices: those with the highest mean log-probability per token.

use crate::generation::Ending;
use crate::stream::Message;

/// Of the choices of each prompt, `best_of` side by side, the `n` likeliest in falling order. What was generated for
/// the others counts to the first one that is kept.
pub(crate) fn best(choices: Vec<(Message, Ending)>, best_of: usize, n: usize) -> Vec<(Message, Ending)> {
    if best_of <= n {
        return choices;
    }
    let mut kept = Vec::with_capacity(choices.len() / best_of * n);
    let mut choices = choices.into_iter().peekable();
    while choices.peek().is_some() {
        let mut group: Vec<(Message, Ending)> = choices.by_ref().take(best_of).collect();
        let cached = group.first().map_or(0, |(_, ending)| ending.cached);
        group.sort_by(|(a, _), (b, _)| mean(b).total_cmp(&mean(a)));
        let dropped: u32 = group.drain(n..).map(|(_, ending)| ending.completion).sum();
        if let Some((_, first)) = group.first_mut() {
            first.completion += dropped;
            first.cached = cached;
        }
        kept.append(&mut group);
    }
    kept
}

/// An answer without tokens is the least likely.
fn mean(message: &Message) -> f64 {
    if message.logprobs.is_empty() {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = message.logprobs.iter().map(|info| f64::from(info.logprobs.logprob)).sum();
    sum / message.logprobs.len() as f64
}
