//! What the samplers promise, on fixed logits.

use std::collections::BTreeMap;
use std::path::Path;

use llama_cpp_sys_2 as sys;
use protocol::noise::{Draw, Noise};
use protocol::{DryParams, Mirostat, Open, Position, SamplerParams, SeqId, Token, XtcParams};
use stage::{EngineError, Sampler};

use super::candidates::{Candidates, Filter};
use super::penalties::Penalties;
use super::{DryCache, GrammarCache, LlamaSampler, Place, pick};
use crate::vocab::Vocab;

const SEED: u64 = 11;

fn open(sampler: SamplerParams) -> Open {
    Open {
        seq: SeqId(1),
        start: Position(0),
        reuse: None,
        held: None,
        seed: SEED,
        choice: 0,
        sampler,
        limit: Position(1 << 20),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    }
}

fn try_sampler(open: &Open, n_vocab: usize) -> Result<LlamaSampler, EngineError> {
    LlamaSampler::new(
        open,
        &Place { n_vocab, context: 4096, vocab: None },
        &DryCache::default(),
        &GrammarCache::default(),
    )
}

fn sampler(params: SamplerParams, n_vocab: usize) -> LlamaSampler {
    try_sampler(&open(params), n_vocab).unwrap()
}

/// Logits that look like a model's that is not sure: a few high ones, many low ones.
fn logits(n: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed, 9, Position(0));
    (0..n).map(|id| noise.gumbel(Token(id as i32)) as f32 * 1.2 - 4.0).collect()
}

/// Probabilities of `logits / temperature`, zero where `keep` is false.
fn softmax(logits: &[f32], temperature: f64, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let weight = |id: usize| if keep(id) { (f64::from(logits[id]) / temperature).exp() } else { 0.0 };
    let sum: f64 = (0..logits.len()).map(weight).sum();
    (0..logits.len()).map(|id| weight(id) / sum).collect()
}

/// Samples at many positions and compares the counts with the expected shares by chi-square. `limit` is the value
/// that a true sampler exceeds once in a thousand seeds, for the number of tokens with a share less one.
fn draws_from(params: SamplerParams, logits: &[f32], expected: &[f64], limit: f64) {
    let n = 20_000;
    let mut sampler = sampler(params, logits.len());
    let mut counts = vec![0_u32; logits.len()];
    for position in 0..n {
        let token = sampler.sample(Position(position), logits).unwrap().token;
        counts[token.0 as usize] += 1;
    }
    let mut chi = 0.0;
    for (count, share) in counts.iter().zip(expected) {
        let expected = share * f64::from(n);
        assert!(expected > 0.0 || *count == 0, "a filtered token was drawn: {counts:?}");
        if expected > 0.0 {
            chi += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    assert!(chi < limit, "chi-square {chi}: {counts:?} for {expected:?}");
}

const SIX: [f32; 6] = [2.0, 1.0, 1.5, -1.0, 0.0, 0.5];

#[test]
fn plain_sampling_draws_from_the_softmax() {
    draws_from(SamplerParams::default(), &SIX, &softmax(&SIX, 1.0, |_| true), 20.52);
    let params = SamplerParams { temperature: 0.5, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 0.5, |_| true), 20.52);
}

#[test]
fn top_k_draws_from_the_k_most_likely() {
    let params = SamplerParams { top_k: 3, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 1.0, |id| [0, 1, 2].contains(&id)), 13.82);
}

#[test]
fn top_p_draws_from_the_smallest_set_with_the_mass() {
    // Shares: 0.41, 0.25, 0.15, then less: the first two have 0.66, the first three 0.81.
    let params = SamplerParams { top_p: 0.7, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 1.0, |id| [0, 1, 2].contains(&id)), 13.82);
}

#[test]
fn min_p_and_top_n_sigma_draw_from_what_is_near_the_top() {
    // exp(-1.2) = 0.3: tokens within 1.2 of the best.
    let params = SamplerParams { min_p: 0.3, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 1.0, |id| SIX[id] >= 0.8), 13.82);
    // The standard deviation is 0.99.
    let params = SamplerParams { top_n_sigma: 1.0, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 1.0, |id| SIX[id] >= 1.01), 10.83);
}

#[test]
fn temperature_comes_after_the_filters() {
    let params = SamplerParams { top_p: 0.7, temperature: 2.0, ..SamplerParams::default() };
    draws_from(params, &SIX, &softmax(&SIX, 2.0, |id| [0, 1, 2].contains(&id)), 13.82);
}

#[test]
fn typical_works_on_a_whole_vocabulary() {
    // One token in front and a long tail, much of which has no probability in single precision: typical-p 0.5 keeps
    // what is near the entropy.
    let mut logits = vec![-200.0_f32; 5000];
    logits[..4].copy_from_slice(&[3.0, 2.0, 1.9, 1.8]);
    let params = SamplerParams { typical_p: 0.5, ..SamplerParams::default() };
    let mut sampler = sampler(params, logits.len());
    let drawn: std::collections::BTreeSet<i32> =
        (0..2000).map(|position| sampler.sample(Position(position), &logits).unwrap().token.0).collect();
    // Surprises 0.62, 1.62, 1.72, 1.82 against an entropy of 1.21 nats: the second is nearest, then the first.
    assert_eq!(drawn, [0, 1].into());
}

#[test]
fn the_fast_scan_equals_the_slow_path() {
    for (n, temperature) in [(1, 1.0), (7, 1.0), (64, 0.3), (1000, 1.0), (5003, 1.7), (40_000, 0.8)] {
        for seed in 0..20 {
            let logits = logits(n, seed);
            let mut candidates = Candidates::default();
            candidates.fill(&logits);
            for position in 0..10 {
                let noise = Noise::new(seed, 1, Position(position));
                let slow = pick::best(&candidates, temperature, noise);
                assert_eq!(
                    pick::scan(&logits, temperature, noise),
                    slow,
                    "{n} tokens, seed {seed} at {position}"
                );
            }
        }
    }
}

#[test]
fn the_fast_scan_equals_the_slow_path_on_flat_and_broken_logits() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let cases: [Vec<f32>; 7] = [
        vec![0.0; 300],
        vec![nan; 130],
        vec![-inf; 130],
        vec![inf; 130],
        [vec![nan; 70], vec![-inf; 70], vec![1.0; 70]].concat(),
        [inf, nan, -inf, 5.0].repeat(40),
        Vec::new(),
    ];
    for logits in cases {
        let mut candidates = Candidates::default();
        candidates.fill(&logits);
        for position in 0..20 {
            let noise = Noise::new(3, 0, Position(position));
            let token = pick::scan(&logits, 1.0, noise);
            assert_eq!(token, pick::best(&candidates, 1.0, noise));
            let chosen = logits.get(token.0 as usize).copied();
            let any = logits.iter().any(|logit| *logit > -inf);
            assert!(!any || chosen.is_some_and(|logit| logit > -inf), "{chosen:?}");
        }
    }
}

#[test]
fn nothing_panics_on_broken_logits() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let base = || SamplerParams::default();
    let mirostat = |version| Some(Mirostat { version, tau: 5.0, eta: 0.1, mu: 10.0 });
    let many = [
        base(),
        SamplerParams { temperature: 0.0, ..base() },
        SamplerParams { temperature: 1e-30, ..base() },
        SamplerParams { top_k: 5, top_p: 0.9, min_p: 0.1, typical_p: 0.9, top_n_sigma: 1.0, ..base() },
        SamplerParams { typical_p: 0.2, min_keep: 3, ..base() },
        SamplerParams { dynatemp_range: 2.0, ..base() },
        SamplerParams { xtc: XtcParams { probability: 1.0, threshold: 0.01 }, ..base() },
        SamplerParams { repeat_penalty: 1.3, frequency_penalty: 0.5, presence_penalty: -0.5, ..base() },
        SamplerParams { mirostat: mirostat(1), ..base() },
        SamplerParams { mirostat: mirostat(2), ..base() },
        SamplerParams { logit_bias: vec![(Token(1), f32::NEG_INFINITY)], top_p: 0.5, ..base() },
    ];
    let logits = [
        vec![nan; 40],
        vec![-inf; 40],
        vec![inf; 40],
        vec![f32::MAX; 40],
        vec![f32::MIN; 40],
        vec![0.0; 40],
        [nan, inf, -inf, 1.0].repeat(10),
        [vec![-inf; 39], vec![2.0]].concat(),
        vec![1.0; 3000],
    ];
    for params in many {
        for logits in &logits {
            let mut sampler =
                try_sampler(&Open { top_logprobs: Some(5), ..open(params.clone()) }, logits.len()).unwrap();
            for position in 0..4 {
                let sampled = sampler.sample(Position(position), logits).unwrap();
                assert!((0..logits.len() as i32).contains(&sampled.token.0), "{params:?}");
            }
        }
    }
}

#[test]
fn temperature_zero_takes_the_first_of_the_best() {
    let params = SamplerParams { temperature: 0.0, top_k: 1, typical_p: 0.1, ..SamplerParams::default() };
    let mut sampler = sampler(params, 5);
    for position in 0..50 {
        assert_eq!(
            sampler.sample(Position(position), &[1.0, 3.0, f32::NAN, 3.0, 2.0]).unwrap().token,
            Token(1)
        );
    }
}

#[test]
fn a_token_is_a_function_of_seed_choice_position_and_logits() {
    let logits = logits(500, 5);
    let run = |seed, choice, positions: &[u32]| -> Vec<Token> {
        let open = Open { seed, choice, ..open(SamplerParams { top_k: 40, ..SamplerParams::default() }) };
        let mut sampler = try_sampler(&open, logits.len()).unwrap();
        positions.iter().map(|&position| sampler.sample(Position(position), &logits).unwrap().token).collect()
    };
    let forwards: Vec<u32> = (0..64).collect();
    let backwards: Vec<u32> = (0..64).rev().collect();
    let mut reversed = run(1, 0, &backwards);
    reversed.reverse();
    assert_eq!(run(1, 0, &forwards), reversed);
    assert_eq!(run(1, 0, &forwards), run(1, 0, &forwards));
    assert_ne!(run(1, 0, &forwards), run(2, 0, &forwards));
    assert_ne!(run(1, 0, &forwards), run(1, 1, &forwards));
}

#[test]
fn penalties_equal_llama_cpp_s() {
    let n = 200;
    for (last_n, repeat, frequency, presence) in
        [(8, 1.3, 0.0, 0.0), (64, 1.0, 0.7, 0.4), (5, 0.8, -0.5, 1.5)]
    {
        let params = SamplerParams {
            penalty_last_n: last_n,
            repeat_penalty: repeat,
            frequency_penalty: frequency,
            presence_penalty: presence,
            ..SamplerParams::default()
        };
        let mut own = Penalties::new(&params, 4096).unwrap();
        // SAFETY: makes a new sampler that changes logits in place.
        let mut theirs =
            unsafe { Filter::new(sys::llama_sampler_init_penalties(n, last_n, repeat, frequency, presence)) };
        for step in 0..150_u64 {
            let logits = logits(n as usize, step);
            let mut ours = logits.clone();
            own.apply(&mut ours);
            let mut candidates = Candidates::default();
            candidates.fill(&logits);
            candidates.apply(&mut theirs);
            for (token, logit) in candidates.iter() {
                assert_eq!(ours[token.0 as usize].to_bits(), logit.to_bits(), "{token} at step {step}");
            }
            let token = Token((step * step % 13) as i32);
            own.accept(token);
            theirs.accept(token);
        }
    }
}

#[test]
fn penalties_count_the_prompt_and_every_sampled_token() {
    let params = SamplerParams { temperature: 0.0, presence_penalty: 1.0, ..SamplerParams::default() };
    let mut sampler = sampler(params, 4);
    let logits = [3.0, 2.5, 2.2, 0.0];
    sampler.prompt(Token(0));
    let drawn: Vec<i32> =
        (0..3).map(|position| sampler.sample(Position(position), &logits).unwrap().token.0).collect();
    // Token 0 is at 2.0 from the start, token 1 at 1.5 once drawn, then token 2 at 1.2.
    assert_eq!(drawn, [1, 2, 0]);
}

#[test]
fn logit_bias_comes_first_and_can_forbid() {
    let bias = vec![(Token(0), f32::NEG_INFINITY), (Token(3), 10.0)];
    let params = SamplerParams { temperature: 0.0, logit_bias: bias.clone(), ..SamplerParams::default() };
    assert_eq!(sampler(params, 4).sample(Position(0), &[9.0, 1.0, 2.0, 0.0]).unwrap().token, Token(3));
    let params =
        SamplerParams { logit_bias: vec![(Token(0), f32::NEG_INFINITY)], ..SamplerParams::default() };
    let mut sampler = sampler(params, 4);
    assert!(
        (0..500)
            .all(|position| sampler.sample(Position(position), &[9.0, 1.0, 2.0, 0.0]).unwrap().token
                != Token(0))
    );
}

#[test]
fn xtc_drops_all_viable_tokens_but_the_least_likely_when_its_coin_says_so() {
    // Shares 0.40, 0.33, 0.22, 0.05: with threshold 0.2 three are viable, and the third of them stays.
    let logits = [2.0_f32, 1.8, 1.4, 0.0];
    let xtc = XtcParams { probability: 0.5, threshold: 0.2 };
    let mut sampler = sampler(SamplerParams { xtc, ..SamplerParams::default() }, 4);
    let mut applied = 0;
    for position in 0..2000 {
        let token = sampler.sample(Position(position), &logits).unwrap().token;
        let noise = Noise::new(SEED, 0, Position(position));
        if noise.draw(Draw::Xtc) <= 0.5 {
            assert!(token.0 >= 2, "token {token} at {position}");
            applied += 1;
        } else {
            assert_eq!(token, pick::scan(&logits, 1.0, noise));
        }
    }
    assert!((900..1100).contains(&applied), "{applied} of 2000");
}

#[test]
fn xtc_leaves_a_single_viable_token_alone() {
    let xtc = XtcParams { probability: 1.0, threshold: 0.3 };
    let logits = [3.0_f32, 1.0, 0.5, 0.0];
    draws_from(
        SamplerParams { xtc, ..SamplerParams::default() },
        &logits,
        &softmax(&logits, 1.0, |_| true),
        16.27,
    );
}

#[test]
fn mirostat_2_keeps_what_surprises_at_most_mu_and_learns_from_the_choice() {
    let logits = logits(300, 8);
    let start = Mirostat { version: 2, tau: 3.0, eta: 0.2, mu: 6.0 };
    let mut sampler = sampler(SamplerParams { mirostat: Some(start), ..SamplerParams::default() }, 300);
    let shares = softmax(&logits, 1.0, |_| true);
    let mut mu = f64::from(start.mu);
    for position in 0..300 {
        let sampled = sampler.sample(Position(position), &logits).unwrap();
        let chosen = sampled.token.0 as usize;
        let kept: Vec<usize> = (0..300).filter(|&id| -shares[id].log2() <= mu).collect();
        assert!(kept.contains(&chosen), "surprise {} with mu {mu}", -shares[chosen].log2());
        let mass: f64 = kept.iter().map(|&id| shares[id]).sum();
        mu -= 0.2 * (-(shares[chosen] / mass).log2() - 3.0);
        let told = f64::from(sampled.mu.unwrap());
        assert!((told - mu).abs() < 1e-3, "{told} instead of {mu}");
        mu = told;
    }
}

#[test]
fn mirostat_1_holds_the_surprise_near_its_target() {
    let logits = logits(2000, 8);
    let shares = softmax(&logits, 1.0, |_| true);
    for (version, tau) in [(1, 2.0), (1, 4.0), (2, 2.0), (2, 4.0)] {
        let start = Mirostat { version, tau, eta: 0.1, mu: 2.0 * tau };
        let mut sampler = sampler(SamplerParams { mirostat: Some(start), ..SamplerParams::default() }, 2000);
        let surprise: f64 = (0..1000)
            .map(|position| {
                -shares[sampler.sample(Position(position), &logits).unwrap().token.0 as usize].log2()
            })
            .sum::<f64>()
            / 1000.0;
        // The surprise within the shortened list meets the target; that of the whole list is a little larger.
        assert!((f64::from(tau) - 0.3..f64::from(tau) + 1.5).contains(&surprise), "{surprise} for {tau}");
    }
}

#[test]
fn mirostat_goes_on_from_the_state_it_is_given() {
    let logits = logits(300, 2);
    let run = |mu: f32, from: u32| -> Vec<(Token, Option<f32>)> {
        let mirostat = Mirostat { version: 2, tau: 4.0, eta: 0.3, mu };
        let mut sampler =
            sampler(SamplerParams { mirostat: Some(mirostat), ..SamplerParams::default() }, 300);
        (from..40)
            .map(|position| sampler.sample(Position(position), &logits).unwrap())
            .map(|s| (s.token, s.mu))
            .collect()
    };
    let whole = run(8.0, 0);
    assert_eq!(run(whole[19].1.unwrap(), 20), whole[20..]);
}

#[test]
fn dynamic_temperature_lies_between_its_bounds() {
    // Nearly certain: the entropy is near 0, so the temperature is near 0.5 - 0.5 and the best token wins.
    let params = SamplerParams { temperature: 0.5, dynatemp_range: 0.5, ..SamplerParams::default() };
    let mut sure = sampler(params.clone(), 3);
    assert!(
        (0..500).all(|position| sure.sample(Position(position), &[9.0, 0.0, 0.0]).unwrap().token == Token(0))
    );
    // Nothing certain: the temperature is at its upper bound, which leaves a flat distribution flat.
    draws_from(params, &[1.0; 4], &[0.25; 4], 16.27);
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let params = SamplerParams {
        temperature: 0.3,
        top_k: 1,
        logit_bias: vec![(Token(2), 100.0)],
        ..SamplerParams::default()
    };
    let open = Open { top_logprobs: Some(3), ..open(params) };
    let sampled = try_sampler(&open, 4).unwrap().sample(Position(0), &[1.0, 3.0, -2.0, 3.0]).unwrap();
    let logprobs = sampled.logprobs.unwrap();
    let sum: f64 = [1.0_f64, 3.0, -2.0, 3.0].iter().map(|logit| logit.exp()).sum();
    let expected = |logit: f64| (logit - sum.ln()) as f32;
    assert_eq!((sampled.token, logprobs.logprob), (Token(2), expected(-2.0)));
    assert_eq!(
        logprobs.top,
        [(Token(1), expected(3.0)), (Token(3), expected(3.0)), (Token(0), expected(1.0))]
    );
    let none = try_sampler(&Open { top_logprobs: Some(0), ..open.clone() }, 4).unwrap();
    let mut none = none;
    assert_eq!(none.sample(Position(0), &[1.0, 3.0, -2.0, 3.0]).unwrap().logprobs.unwrap().top, []);
}

#[test]
fn parameters_without_sense_are_refused() {
    let base = || SamplerParams::default();
    let mirostat = |version, tau| Some(Mirostat { version, tau, eta: 0.1, mu: 10.0 });
    let dry = DryParams { multiplier: 1.0, ..DryParams::default() };
    let bad = [
        (SamplerParams { temperature: f32::NAN, ..base() }, "temperature"),
        (SamplerParams { top_p: f32::INFINITY, ..base() }, "top_p"),
        (SamplerParams { repeat_penalty: 0.0, ..base() }, "repeat_penalty"),
        (SamplerParams { mirostat: mirostat(3, 5.0), ..base() }, "mirostat"),
        (SamplerParams { mirostat: mirostat(2, f32::NAN), ..base() }, "mirostat"),
        (SamplerParams { logit_bias: vec![(Token(10), 1.0)], ..base() }, "not in the vocabulary"),
        (SamplerParams { logit_bias: vec![(Token(-1), 1.0)], ..base() }, "not in the vocabulary"),
        (SamplerParams { logit_bias: vec![(Token(1), f32::INFINITY)], ..base() }, "logit_bias"),
        (SamplerParams { dry, ..base() }, "tokenizer"),
    ];
    for (params, word) in bad {
        let error = try_sampler(&open(params), 10).err().expect("it is refused");
        assert!(error.reason.contains(word), "{error}");
    }
}

fn smollm2() -> Vocab {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: type ./run setup", path.display());
    Vocab::load(&path).unwrap()
}

#[test]
fn dry_on_the_recent_tokens_equals_dry_on_the_whole_vocabulary() {
    let vocab = smollm2();
    let params = DryParams { multiplier: 0.8, penalty_last_n: 100, ..DryParams::default() };
    let cache = DryCache::default();
    let place = Place { n_vocab: vocab.n_tokens(), context: 4096, vocab: Some(&vocab) };
    let mut short = cache.sampler(&params, &place).unwrap().unwrap();
    let mut other = cache.sampler(&params, &place).unwrap().unwrap();
    let text = "the cat sat on the mat, the cat sat on the hat: the cat sat on the mat, the cat sat on the";
    let tokens = vocab.tokenize(text, false, false).unwrap();
    let mut penalised = BTreeMap::new();
    for token in tokens {
        short.accept(token);
        let logits = logits(vocab.n_tokens(), 1);
        let mut changed = logits.clone();
        short.apply(&mut changed);
        // The same sampler, shown every token.
        let mut whole = Candidates::default();
        whole.fill(&logits);
        other.accept(token);
        other.apply_to(&mut whole);
        for (token, logit) in whole.iter() {
            let at = token.0 as usize;
            assert_eq!(changed[at].to_bits(), logit.to_bits(), "token {token}");
            if changed[at] != logits[at] {
                penalised.insert(token, logits[at] - changed[at]);
            }
        }
    }
    let next = vocab.tokenize(" mat", false, false).unwrap()[0];
    assert!(penalised.get(&next).is_some_and(|penalty| *penalty > 0.8), "{penalised:?}");
}

#[test]
fn dry_ends_the_loop_of_a_greedy_sampler() {
    let vocab = smollm2();
    let place = Place { n_vocab: vocab.n_tokens(), context: 4096, vocab: Some(&vocab) };
    let dry = DryParams { multiplier: 2.0, sequence_breakers: Vec::new(), ..DryParams::default() };
    let params = SamplerParams { temperature: 0.0, dry, ..SamplerParams::default() };
    let mut sampler =
        LlamaSampler::new(&open(params), &place, &DryCache::default(), &GrammarCache::default()).unwrap();
    let mut logits = vec![0.0_f32; vocab.n_tokens()];
    logits[1000] = 5.0;
    let drawn: Vec<i32> =
        (0..20).map(|position| sampler.sample(Position(position), &logits).unwrap().token.0).collect();
    assert_eq!(drawn[..3], [1000; 3]);
    assert!(drawn.iter().any(|&token| token != 1000), "{drawn:?}");
}
