//! Random messages within every bound, for the tests of the codec.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::{
    After, Assign, Chunk, Close, Command, Company, Downstream, DryParams, End, Epoch, Fault, FaultKind,
    Found, Frame, Generation, Grammar, GrammarKind, Held, Hello, HelloReply, HiddenRows, Hint, Holding,
    KvType, LayerRange, LinkRole, Mirostat, ModelId, NodeId, OfPrompt, Open, PROTOCOL_VERSION, Park,
    PeerIndex, Pooling, Position, PrefixKey, Progress, PromptPart, RefuseReason, Report, Reuse, RowDtype,
    Rows, RowsHello, SamplerParams, SeqId, Sight, StageCounters, StageIndex, StageState, StageTiming, Stored,
    TailDraft, Tenant, ToFront, ToStage, Token, TokenLogprobs, Verdict, WantDraft, Window, WindowId, Work,
    XtcParams, limits,
};

fn token() -> impl Strategy<Value = Token> {
    (0..=i32::MAX).prop_map(Token)
}

fn place() -> impl Strategy<Value = Position> {
    prop_oneof![0..100_u32, 0..=limits::MAX_CONTEXT].prop_map(Position)
}

fn seq() -> impl Strategy<Value = SeqId> {
    any::<u64>().prop_map(SeqId)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (0..=limits::MAX_EPOCH).prop_map(Epoch)
}

fn window_id() -> impl Strategy<Value = WindowId> {
    (0..=limits::MAX_WINDOW).prop_map(WindowId)
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

fn stage() -> impl Strategy<Value = StageIndex> {
    (0..limits::MAX_STAGES).prop_map(StageIndex)
}

fn peer() -> impl Strategy<Value = PeerIndex> {
    (0..limits::MAX_PEERS).prop_map(PeerIndex)
}

fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0_f32), Just(-0.0_f32), Just(f32::MAX), -2.0_f32..2.0, -1e9_f32..1e9]
}

fn log_weight() -> impl Strategy<Value = f32> {
    prop_oneof![4 => finite(), 1 => Just(f32::NEG_INFINITY)]
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,24}"
}

fn dtype() -> impl Strategy<Value = RowDtype> {
    prop_oneof![Just(RowDtype::F32), Just(RowDtype::F16), Just(RowDtype::Bf16), Just(RowDtype::Q8)]
}

fn timing() -> impl Strategy<Value = StageTiming> {
    any::<(u32, u32, u32)>().prop_map(|(queue_us, compute_us, batch_rows)| StageTiming {
        queue_us,
        compute_us,
        batch_rows,
    })
}

fn timings() -> impl Strategy<Value = Vec<StageTiming>> {
    vec(timing(), 0..5)
}

/// A base and tokens that fit behind it.
fn rows_at() -> impl Strategy<Value = (Position, Vec<Token>)> {
    (place(), vec(token(), 1..9))
        .prop_map(|(base, tokens)| (Position(base.0.min(limits::MAX_CONTEXT - tokens.len() as u32)), tokens))
}

fn dry() -> impl Strategy<Value = DryParams> {
    (finite(), finite(), any::<i32>(), -1..1000_i32, vec("\\PC{0,8}", 0..4)).prop_map(
        |(multiplier, base, allowed_length, penalty_last_n, sequence_breakers)| DryParams {
            multiplier,
            base,
            allowed_length,
            penalty_last_n,
            sequence_breakers,
        },
    )
}

fn mirostat() -> impl Strategy<Value = Mirostat> {
    (1..3_u8, finite(), finite(), finite()).prop_map(|(version, tau, eta, mu)| Mirostat {
        version,
        tau,
        eta,
        mu,
    })
}

fn grammar() -> impl Strategy<Value = Grammar> {
    let kind = prop_oneof![
        Just(GrammarKind::JsonSchema),
        Just(GrammarKind::Regex),
        Just(GrammarKind::Lark),
        Just(GrammarKind::Gbnf)
    ];
    (
        kind,
        prop_oneof![text(), Just("x".repeat(2 * limits::MAX_TEXT))],
        option::of((text(), any::<bool>())),
        vec(token(), 0..6),
    )
        .prop_map(|(kind, text, after, said)| {
            let after = after.map(|(text, may_end)| After { text, may_end });
            Grammar { kind, text, after, said }
        })
}

fn sampler() -> impl Strategy<Value = SamplerParams> {
    let floats = vec(finite(), 12);
    let xtc = (finite(), finite()).prop_map(|(probability, threshold)| XtcParams { probability, threshold });
    let bias = vec((token(), log_weight()), 0..4);
    let counts = (any::<u32>(), any::<u32>(), -1..1000_i32);
    let grammar = option::of(grammar());
    (floats, counts, bias, dry(), xtc, option::of(mirostat()), grammar).prop_map(
        |(f, (top_k, min_keep, penalty_last_n), logit_bias, dry, xtc, mirostat, grammar)| SamplerParams {
            temperature: f[0],
            dynatemp_range: f[1],
            dynatemp_exponent: f[2],
            top_k,
            top_p: f[3],
            min_p: f[4],
            typical_p: f[5],
            top_n_sigma: f[6],
            repeat_penalty: f[7],
            frequency_penalty: f[8],
            presence_penalty: f[9],
            penalty_last_n,
            logit_bias,
            dry,
            xtc,
            mirostat,
            min_keep,
            grammar,
        },
    )
}

fn key() -> impl Strategy<Value = Option<PrefixKey>> {
    option::of(any::<[u8; 32]>().prop_map(PrefixKey))
}

fn of_prompt() -> impl Strategy<Value = OfPrompt> {
    let pooling =
        prop_oneof![Just(Pooling::None), Just(Pooling::Mean), Just(Pooling::First), Just(Pooling::Last)];
    prop_oneof![
        (0..=limits::MAX_TOP_LOGPROBS).prop_map(|top| OfPrompt::Logprobs { top }),
        pooling.prop_map(OfPrompt::Embedding),
    ]
}

fn open() -> impl Strategy<Value = Open> {
    let reuse = option::of((seq(), any::<bool>(), key()));
    let ids = (seq(), any::<u64>(), any::<u32>(), any::<bool>(), reuse);
    let wanted = (option::of(0..=limits::MAX_TOP_LOGPROBS), option::of(of_prompt()));
    let whole = (ids, sampler(), 1..1000_u32, wanted, vec(token(), 0..9)).prop_map(
        |((seq, seed, choice, ignore_eos, reuse), sampler, room, (top_logprobs, of_prompt), history)| Open {
            seq,
            start: Position(history.len() as u32),
            seed,
            choice,
            sampler,
            limit: Position(history.len() as u32 + room),
            ignore_eos,
            top_logprobs,
            of_prompt: of_prompt.filter(|_| history.is_empty()),
            reuse: reuse.map(|(prefix, keep, stored)| Reuse { prefix, keep, stored }),
            held: None,
            history,
        },
    );
    (whole, option::weighted(0.25, held())).prop_map(|(open, held)| match held {
        Some(held) => Open {
            start: Position(0),
            limit: held.len.plus(open.limit.0 as usize),
            of_prompt: None,
            reuse: None,
            held: Some(held),
            history: Vec::new(),
            ..open
        },
        None => open,
    })
}

fn held() -> impl Strategy<Value = Held> {
    (seq(), 1..1000_u32, 0..=limits::MAX_STAGES).prop_map(|(prefix, len, lost_by)| Held {
        prefix,
        len: Position(len),
        lost_by,
    })
}

fn window() -> impl Strategy<Value = Window> {
    let want = (1..=limits::MAX_DRAFT, option::of(token()));
    let want = option::of(want.prop_map(|(tokens, unless)| WantDraft { tokens, unless }));
    (seq(), epoch(), window_id(), rows_at(), (any::<bool>(), want)).prop_map(
        |(seq, epoch, window, (base, tokens), (run_ahead, want_draft))| Window {
            seq,
            epoch,
            window,
            base,
            tokens,
            run_ahead,
            want_draft,
        },
    )
}

fn work() -> impl Strategy<Value = Work> {
    let chunk = (seq(), rows_at(), option::of(token())).prop_map(|(seq, (base, tokens), follows)| Chunk {
        seq,
        base,
        tokens,
        follows,
    });
    prop_oneof![
        1 => open().prop_map(|open| Work::Open(Box::new(open))),
        2 => chunk.prop_map(Work::Chunk),
        3 => window().prop_map(Work::Window),
        1 => (seq(), place(), key()).prop_map(|(seq, len, store)| Work::Park(Park { seq, len, store })),
        1 => (seq(), place()).prop_map(|(seq, inputs)| Work::Close(Close { seq, inputs })),
    ]
}

fn company() -> impl Strategy<Value = Company> {
    let leads = (1..=limits::MAX_SLOTS).prop_map(Company::Leads);
    prop_oneof![Just(Company::Alone), leads, Just(Company::Follows)]
}

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    (work(), option::of((dtype(), 1..6_u32)), timings(), company(), any::<u8>()).prop_map(
        |(work, rows, timings, company, fill)| {
            let n_rows = work.tokens().len();
            let rows = rows.filter(|_| n_rows > 0).map(|(dtype, width)| {
                let bytes = (0..n_rows * dtype.row_bytes(width as usize)).map(|i| fill.wrapping_add(i as u8));
                Rows::new(dtype, width, n_rows as u32, bytes.collect::<Vec<_>>().into()).unwrap()
            });
            let timings = if n_rows == 0 { Vec::new() } else { timings };
            Frame { work, rows, timings, company }
        },
    )
}

fn layers() -> impl Strategy<Value = (u32, LayerRange)> {
    (1..=limits::MAX_LAYERS)
        .prop_flat_map(|n| (Just(n), 0..=n))
        .prop_flat_map(|(n, end)| (Just(n), 0..=end, Just(end)))
        .prop_map(|(n, start, end)| (n, LayerRange { start, end }))
}

fn holding() -> impl Strategy<Value = Holding> {
    let sizes = (1..=limits::MAX_CONTEXT, 1..=limits::MAX_SLOTS, 1..=limits::MAX_ROWS);
    let kv = prop_oneof![Just(KvType::F16), Just(KvType::Q8_0), Just(KvType::Q4_0)];
    let flags = (any::<(bool, bool, bool)>(), 0..=limits::MAX_ROWS);
    (any::<[u8; 32]>(), layers(), sizes, kv, flags).prop_map(
        |(model, (n_layers, layers), (context, n_slots, max_rows), kv, flags)| {
            let ((exact, swa_full, drafts), undo_rows) = flags;
            Holding {
                model: ModelId(model),
                layers,
                n_layers,
                context,
                n_slots,
                max_rows,
                kv,
                exact,
                swa_full,
                undo_rows,
                drafts,
            }
        },
    )
}

fn assign() -> impl Strategy<Value = Assign> {
    let line = (1..=limits::MAX_STAGES).prop_flat_map(|n| (Just(n), 0..n));
    let ids = any::<([u8; 32], Option<[u8; 32]>)>();
    let memory = (any::<u64>(), option::of(generation()));
    (line, holding(), (dtype(), memory), ids, (text(), option::of(peer()))).prop_map(
        |((n_stages, index), holding, (row_dtype, (prefix_bytes, keep)), ids, (address, relay))| Assign {
            index: StageIndex(index),
            n_stages,
            holding,
            row_dtype,
            prefix_bytes,
            keep,
            upstream: NodeId(ids.0),
            downstream: (index + 1 < n_stages).then_some(Downstream {
                address,
                node: ids.1.map(NodeId),
                relay,
            }),
        },
    )
}

pub(super) fn to_stage() -> impl Strategy<Value = ToStage> {
    let command = prop_oneof![
        assign().prop_map(|assign| Command::Assign(Box::new(assign))),
        holding().prop_map(Command::Prepare),
        Just(Command::Release),
        notice().prop_map(Command::Notice),
        (seq(), epoch()).prop_map(|(seq, epoch)| Command::Hint(Hint::Advance { seq, epoch })),
        seq().prop_map(|seq| Command::Hint(Hint::Drop { seq })),
        (1..=u16::MAX).prop_map(|sequences| Command::Hint(Hint::Together { sequences })),
    ];
    (peer(), generation(), command).prop_map(|(to, generation, command)| ToStage { to, generation, command })
}

fn logprobs() -> impl Strategy<Value = TokenLogprobs> {
    (log_weight(), vec((token(), log_weight()), 0..4))
        .prop_map(|(logprob, top)| TokenLogprobs { logprob, top })
}

fn prompt_part() -> impl Strategy<Value = PromptPart> {
    let rows = (1..5_u32, vec(finite(), 4..20)).prop_map(|(width, mut values)| {
        values.truncate(values.len() / width as usize * width as usize);
        Found::Rows(HiddenRows { width, values })
    });
    let found = prop_oneof![vec(logprobs(), 1..6).prop_map(Found::Logprobs), rows];
    (seq(), place(), found).prop_map(|(seq, base, found)| {
        let base = Position(base.0.min(limits::MAX_CONTEXT - found.len() as u32));
        PromptPart { seq, base, found }
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let end = prop_oneof![Just(End::EndOfGeneration), Just(End::Limit), Just(End::Grammar)];
    let logprobs = option::of(logprobs());
    let window = (seq(), epoch(), window_id(), rows_at());
    let measured = (timings(), company(), any::<bool>());
    (window, option::of(end), logprobs, option::of(finite()), measured).prop_map(
        |((seq, epoch, window, (base, tokens)), ended, logprobs, mu, (timings, company, drafts))| {
            let logprobs = logprobs.map_or_else(Vec::new, |logprobs| vec![logprobs; tokens.len()]);
            Verdict { seq, epoch, window, base, tokens, ended, logprobs, mu, timings, company, drafts }
        },
    )
}

fn draft() -> impl Strategy<Value = TailDraft> {
    let guess = (token(), 0.0..=1.0_f32);
    let guesses = vec(guess, 0..=usize::from(limits::MAX_DRAFT));
    (seq(), place(), guesses, timing(), company()).prop_map(|(seq, base, guesses, timing, company)| {
        let (tokens, probabilities) = guesses.into_iter().unzip();
        TailDraft { seq, base, tokens, probabilities, timing, company }
    })
}

fn state() -> impl Strategy<Value = StageState> {
    let ready = (1..=limits::MAX_ROW_WIDTH, any::<(bool, u64, u64)>()).prop_map(
        |(row_width, (keeps, weight_bytes, kv_bytes))| StageState::Ready {
            keeps,
            row_width,
            weight_bytes,
            kv_bytes,
        },
    );
    prop_oneof![
        any::<([u8; 32], u32)>().prop_map(|(node, pid)| StageState::Idle { node: NodeId(node), pid }),
        (0..=1000_u16, text()).prop_map(|(permille, what)| StageState::Loading { permille, what }),
        Just(StageState::Linking),
        ready,
        (layers(), any::<(u64, u64)>()).prop_map(|((_, layers), (weight_bytes, kv_bytes))| {
            StageState::Standby { layers, weight_bytes, kv_bytes }
        }),
        text().prop_map(|reason| StageState::Failed { reason }),
    ]
}

fn fault_kind() -> impl Strategy<Value = FaultKind> {
    let diverged =
        (place(), token(), place(), token()).prop_map(|(base, token, expected, expected_token)| {
            FaultKind::Diverged { base, token, expected, expected_token }
        });
    prop_oneof![
        diverged,
        (place(), place()).prop_map(|(base, next)| FaultKind::Gap { base, next }),
        (place(), place()).prop_map(|(base, oldest)| FaultKind::Rewind { base, oldest }),
        Just(FaultKind::UnknownSequence),
        Just(FaultKind::AlreadyOpen),
        seq().prop_map(|prefix| FaultKind::PrefixLost { prefix }),
        (place(), 0..=limits::MAX_CONTEXT).prop_map(|(end, context)| FaultKind::ContextFull { end, context }),
        any::<u32>().prop_map(|limit| FaultKind::TooManySequences { limit }),
        text().prop_map(|reason| FaultKind::BadRows { reason }),
        text().prop_map(|reason| FaultKind::Engine { reason }),
        text().prop_map(|reason| FaultKind::Sampler { reason }),
        text().prop_map(|reason| FaultKind::Link { reason }),
        text().prop_map(|what| FaultKind::Unsupported { what }),
    ]
}

fn counters() -> impl Strategy<Value = StageCounters> {
    any::<[u64; 12]>().prop_map(|n| StageCounters {
        calls: n[0],
        rows: n[1],
        windows: n[2],
        chunks: n[3],
        stale_windows: n[4],
        stale_rows: n[5],
        passed_windows: n[6],
        passed_chunks: n[7],
        wasted_rows: n[8],
        stored_prefixes: n[9],
        restored_prefixes: n[10],
        missed_prefixes: n[11],
    })
}

pub(super) fn to_front() -> impl Strategy<Value = ToFront> {
    let report = prop_oneof![
        state().prop_map(Report::State),
        verdict().prop_map(|verdict| Report::Verdict(Box::new(verdict))),
        draft().prop_map(|draft| Report::Draft(Box::new(draft))),
        (seq(), place(), timings()).prop_map(|(seq, next, timings)| Report::Progress(Progress {
            seq,
            next,
            timings
        })),
        seq().prop_map(Report::Closed),
        (option::of(seq()), fault_kind()).prop_map(|(seq, kind)| Report::Fault(Fault { seq, kind })),
        counters().prop_map(Report::Counters),
        (seq(), any::<bool>()).prop_map(|(prefix, kept)| Report::Stored(Stored { prefix, kept })),
        prompt_part().prop_map(|part| Report::Prompt(Box::new(part))),
        notice().prop_map(Report::Notice),
        Just(Report::Leaving),
    ];
    (peer(), generation(), report).prop_map(|(from, generation, report)| ToFront { from, generation, report })
}

pub(super) fn hello() -> impl Strategy<Value = Hello> {
    let claims = (0..=limits::MAX_LAYERS, 0..=limits::MAX_ROW_WIDTH, 1..=limits::MAX_CONTEXT);
    let rows = (generation(), stage(), any::<[u8; 32]>(), claims, dtype()).prop_map(
        |(generation, to, model, (layer, row_width, context), row_dtype)| {
            let model = ModelId(model);
            LinkRole::Rows(RowsHello { generation, to, model, layer, row_width, row_dtype, context })
        },
    );
    let control = (peer(), any::<[u8; 32]>())
        .prop_map(|(peer, front)| LinkRole::Control { peer, front: NodeId(front) });
    let role = prop_oneof![control, rows, notice().prop_map(|notice| LinkRole::Observe { notice })];
    (text(), role).prop_map(|(build, role)| Hello { version: PROTOCOL_VERSION, build, role })
}

fn notice() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn tenant() -> impl Strategy<Value = Tenant> {
    (any::<[u8; 32]>(), option::of(any::<u32>()))
        .prop_map(|(front, left_ms)| Tenant { front: NodeId(front), left_ms })
}

pub(super) fn reply() -> impl Strategy<Value = HelloReply> {
    let reason = prop_oneof![
        any::<(u16, u16)>().prop_map(|(ours, theirs)| RefuseReason::Version { ours, theirs }),
        tenant().prop_map(|tenant| RefuseReason::Kept { tenant }),
        Just(RefuseReason::OtherPurpose),
        Just(RefuseReason::LetGo),
        Just(RefuseReason::NotHeeded),
        Just(RefuseReason::LeftOut),
        Just(RefuseReason::Ending),
        generation().prop_map(|generation| RefuseReason::NotAssigned { generation }),
        Just(RefuseReason::WrongPeer),
        (text(), text(), text()).prop_map(|(field, ours, theirs)| RefuseReason::Mismatch {
            field,
            ours,
            theirs
        }),
    ];
    let seen = (text(), option::of(tenant()), option::of(layers()), any::<(bool, u64)>()).prop_map(
        |(build, tenant, layers, (works, notice))| {
            let layers = layers.map(|(_, layers)| layers);
            HelloReply::Seen(Sight { build, tenant, layers, works, notice })
        },
    );
    prop_oneof![
        text().prop_map(|build| HelloReply::Accept { build }),
        reason.prop_map(HelloReply::Refuse),
        seen
    ]
}
