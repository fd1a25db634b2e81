//! Plain decoding by hand: one engine, one row at a time, no stages, no windows. What everything is compared with.

use llama::LlamaEngine;
use protocol::{Open, Position, SeqId, Token, TokenLogprobs};
use scheduler::Request;
use stage::{Engine, Input, Slot, Span, Want};

/// Rows of a prompt in one call.
const CHUNK: usize = 32;

/// An answer, and what the sampler was after each of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Token>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    /// Mirostat's state after each token, if the request uses it.
    pub(crate) mu: Vec<Option<f32>>,
}

/// The request as the tail hears of it.
pub(crate) fn open(request: &Request) -> Open {
    let n_tokens = request.prompt.len() as u32 + request.max_tokens.expect("a test says how many");
    Open {
        seq: SeqId(0),
        start: Position(0),
        reuse: None,
        held: None,
        seed: request.seed,
        choice: request.choice,
        sampler: request.sampler.clone(),
        limit: Position(n_tokens),
        ignore_eos: request.ignore_eos,
        top_logprobs: request.top_logprobs,
        of_prompt: None,
        history: Vec::new(),
    }
}

/// Puts a prompt but for its last token into slot 0.
fn prefill(engine: &mut LlamaEngine, prompt: &[Token]) {
    let mut out = Vec::new();
    engine.truncate(Slot(0), Position(0)).expect("plain attention can be cut");
    for (at, chunk) in prompt[..prompt.len() - 1].chunks(CHUNK).enumerate() {
        let base = Position((at * CHUNK) as u32);
        let span = Span { slot: Slot(0), base, n_rows: chunk.len(), want: Want::Nothing };
        engine.run(&[span], Input::Tokens(chunk), &mut out).expect("the call is well-formed");
    }
}

/// Computes one token; its logits can be read then.
fn step(engine: &mut LlamaEngine, at: usize, token: Token) {
    let span = Span { slot: Slot(0), base: Position(at as u32), n_rows: 1, want: Want::Logits };
    engine.run(&[span], Input::Tokens(&[token]), &mut Vec::new()).expect("the call is well-formed");
}

/// Decodes one token after the other.
pub(crate) fn answer(engine: &mut LlamaEngine, request: &Request) -> Answer {
    let prompt = &request.prompt;
    let mut sampler = engine.sampler(&open(request)).expect("the parameters have sense");
    prompt.iter().for_each(|&token| sampler.prompt(token));
    prefill(engine, prompt);
    let mut answer = Answer::default();
    let mut token = prompt[prompt.len() - 1];
    for at in (prompt.len() - 1..).take(request.max_tokens.expect("a test says how many") as usize) {
        step(engine, at, token);
        let sampled = sampler.sample(Position(at as u32 + 1), engine.logits(0)).expect("it can go on");
        token = sampled.token;
        answer.tokens.push(token);
        answer.logprobs.extend(sampled.logprobs);
        answer.mu.push(sampled.mu);
        if sampled.grammar_ended {
            break;
        }
        if !request.ignore_eos && engine.shape().end_tokens.contains(&token) {
            break;
        }
    }
    answer
}

/// Reads an answer and gives the raw logits that each of its tokens was drawn from.
pub(crate) fn read(
    engine: &mut LlamaEngine,
    prompt: &[Token],
    answer: &[Token],
    mut on: impl FnMut(&[f32], Token),
) {
    prefill(engine, prompt);
    let mut token = prompt[prompt.len() - 1];
    for (at, &next) in (prompt.len() - 1..).zip(answer) {
        step(engine, at, token);
        on(engine.logits(0), next);
        token = next;
    }
}
