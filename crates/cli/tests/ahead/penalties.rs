//! Samplers with a memory, and guesses that are wrong at every position in turn: text, log-probabilities and the
//! sampler's state are those of plain decoding. A rejected token that reached a sampler, or one that reached it twice,
//! would show in what is sampled next.

use std::path::Path;

use llama::{EngineConfig, LlamaEngine, Vocab};
use protocol::{DryParams, Mirostat, SamplerParams, Token, XtcParams};
use scheduler::Request;
use spec::{Answer, Ask, Block, Prior, Proposer, RUNS};

use crate::line::{self, Line, assert_plain, cut, engine, pinned, toy};
use crate::plain;
use crate::real::{SMOLLM2, model};

/// Knows the whole answer and says one token of it wrong, whenever it is asked.
#[derive(Debug)]
pub(crate) struct WrongAt {
    pub(crate) text: Vec<Token>,
    pub(crate) at: usize,
}

impl Proposer for WrongAt {
    fn name(&self) -> &'static str {
        "wrong-at"
    }

    fn prior(&self) -> Prior {
        [0.0; RUNS.len() + 1]
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let say = |at: usize| if at == self.at { Token(self.text[at].0 ^ 1) } else { self.text[at] };
        let from = ask.tokens.len();
        let tokens: Vec<_> = (from..self.text.len()).take(n).map(say).collect();
        if tokens.is_empty() {
            Answer::Nothing
        } else {
            Answer::Guesses(Block { tokens, ..Block::default() })
        }
    }
}

fn request(prompt: Vec<Token>, sampler: SamplerParams, n_tokens: u32) -> Request {
    Request {
        sampler,
        seed: 5,
        choice: 1,
        max_tokens: Some(n_tokens),
        ignore_eos: true,
        top_logprobs: Some(3),
        ..Request::new(prompt)
    }
}

/// Every position of the answer is guessed wrong once, in narrow windows that run ahead and in wide ones that do not.
fn check(alone: &mut LlamaEngine, line: &mut Line, what: &str, request: &Request) {
    let expected = plain::answer(alone, request);
    let text = [&request.prompt[..], &expected.tokens].concat();
    for (width, depth) in [(4, 3), (16, 1)] {
        let mut n_wrong = 0;
        for at in request.prompt.len()..text.len() {
            let own: Box<dyn Proposer> = Box::new(WrongAt { text: text.clone(), at });
            let ask = line::Ask { request: request.clone(), own: vec![own] };
            let heard = line.answer(&pinned("off", width, depth), [ask]).remove(0);
            let what = format!("{what}, wrong at {at}, {width} wide and {depth} deep");
            assert_plain(&heard.answer, &expected, &what);
            n_wrong += usize::from(heard.timings.drafted > heard.timings.accepted);
        }
        // A position that a full window has just reached is not guessed at all, nor is the last one.
        assert!(n_wrong * 4 >= expected.tokens.len() * 3, "{n_wrong} wrong guesses were sent: {what}");
    }
}

/// What remembers, at temperature 0 and above.
fn memories() -> Vec<(&'static str, SamplerParams)> {
    let plain = SamplerParams::default;
    let bias = vec![(Token(7), 4.0), (Token(9), 3.5), (Token(11), f32::NEG_INFINITY), (Token(20), 3.0)];
    let mirostat = |version| Some(Mirostat { version, tau: 3.0, eta: 0.2, mu: 6.0 });
    let xtc = XtcParams { probability: 0.5, threshold: 0.001 };
    vec![
        ("repeat penalty", SamplerParams { repeat_penalty: 1.5, temperature: 0.0, ..plain() }),
        ("frequency penalty", SamplerParams { frequency_penalty: 1.5, logit_bias: bias.clone(), ..plain() }),
        ("presence penalty", SamplerParams { presence_penalty: 2.0, penalty_last_n: 5, ..plain() }),
        ("bias alone", SamplerParams { logit_bias: bias.clone(), temperature: 0.0, ..plain() }),
        ("min-p", SamplerParams { min_p: 0.2, repeat_penalty: 1.2, logit_bias: bias, ..plain() }),
        ("mirostat 1", SamplerParams { mirostat: mirostat(1), ..plain() }),
        ("mirostat 2", SamplerParams { mirostat: mirostat(2), repeat_penalty: 1.3, ..plain() }),
        (
            "the rest",
            SamplerParams { top_k: 40, top_p: 0.9, typical_p: 0.95, xtc, dynatemp_range: 0.4, ..plain() },
        ),
    ]
}

#[test]
fn samplers_with_a_memory_never_hear_of_rejected_tokens() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = toy(4, folder.path());
    let config = EngineConfig { context: 256, max_rows: 64, exact: true, ..EngineConfig::new("") };
    let mut line = Line::load(&cut(&path, &[1, 3], folder.path()), &config);
    let mut alone = engine(&path, &config);
    for (what, sampler) in memories() {
        let prompt = [7, 9, 20, 7, 9].map(Token).to_vec();
        check(&mut alone, &mut line, what, &request(prompt, sampler, 20));
    }
}

/// DRY needs a tokenizer, so a real model shows it.
#[test]
fn dry_never_hears_of_rejected_tokens() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path: &Path = &model(SMOLLM2);
    let config = EngineConfig { context: 256, max_rows: 64, exact: true, ..EngineConfig::new("") };
    let mut line = Line::load(&cut(path, &[15], folder.path()), &config);
    let mut alone = engine(path, &config);
    let vocab = Vocab::load(path).expect("it has a tokenizer");
    let prompt = vocab.tokenize("one two three, one two three, one two", true, false).expect("a short text");
    let dry = DryParams { multiplier: 2.0, allowed_length: 1, ..DryParams::default() };
    let sampler = SamplerParams { dry, temperature: 0.7, ..SamplerParams::default() };
    check(&mut alone, &mut line, "DRY", &request(prompt, sampler, 8));
}
