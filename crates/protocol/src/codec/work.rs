//! Bytes of work frames and verdicts. A frame is its head (work, timings, what the rows are) and then the rows as
//! they are, up to the end of the message.

use bytes::Bytes;

use super::DecodeError;
use super::control::{get_dtype, put_dtype};
use super::prompt::{get_of_prompt, put_of_prompt};
use super::reader::{Field, Reader};
use super::sampling::{get_sampler, put_sampler};
use super::writer::Writer;
use crate::{
    Chunk, Close, Company, End, Frame, Held, Open, Park, Position, PrefixKey, Reuse, Rows, StageTiming,
    TailDraft, TokenLogprobs, Verdict, WantDraft, Window, Work, limits,
};

pub(super) fn put_head(w: &mut Writer<'_>, v: &Frame) {
    put_work(w, &v.work);
    put_timings(w, &v.timings);
    put_company(w, v.company);
    w.option(v.rows.as_ref(), |w, rows| {
        put_dtype(w, rows.dtype());
        w.u32(rows.width());
        w.u32(rows.n_rows());
    });
}

pub(super) fn get_frame(bytes: &Bytes, mut r: Reader<'_>) -> Result<Frame, DecodeError> {
    let work = get_work(&mut r)?;
    let timings = get_timings(&mut r, "frame.timings")?;
    let company = get_company(&mut r, "frame.company")?;
    let n_tokens = work.tokens().len();
    if n_tokens == 0 && !timings.is_empty() {
        return Err(DecodeError::Contradiction {
            field: "frame.timings",
            rule: "only work with tokens has timings",
        });
    }
    let claim = r.option("frame.rows", |r| {
        Ok((get_dtype(r, "frame.rows.dtype")?, r.u32("frame.rows.width")?, r.u32("frame.rows.n_rows")?))
    })?;
    let Some((dtype, width, n_rows)) = claim else {
        r.finish()?;
        return Ok(Frame { work, rows: None, timings, company });
    };
    if n_rows as usize != n_tokens {
        return Err(DecodeError::Contradiction {
            field: "frame.rows.n_rows",
            rule: "there is one row per token",
        });
    }
    let rows = Rows::new(dtype, width, n_rows, bytes.slice(r.position()..))?;
    Ok(Frame { work, rows: Some(rows), timings, company })
}

fn put_company(w: &mut Writer<'_>, v: Company) {
    w.u16(match v {
        Company::Alone => 0,
        Company::Leads(n) => n,
        Company::Follows => u16::MAX,
    });
}

fn get_company(r: &mut Reader<'_>, field: &'static str) -> Result<Company, DecodeError> {
    match r.u16(field)? {
        0 => Ok(Company::Alone),
        u16::MAX => Ok(Company::Follows),
        n if n <= limits::MAX_SLOTS => Ok(Company::Leads(n)),
        n => Err(DecodeError::OutOfRange { field, value: n.into(), min: 0, max: limits::MAX_SLOTS.into() }),
    }
}

fn put_work(w: &mut Writer<'_>, v: &Work) {
    match v {
        Work::Open(open) => {
            w.u8(0);
            put_open(w, open);
        }
        Work::Chunk(chunk) => {
            w.u8(1);
            w.u64(chunk.seq.0);
            w.place(chunk.base);
            w.tokens(&chunk.tokens);
            w.option(chunk.follows.as_ref(), |w, &token| w.token(token));
        }
        Work::Window(window) => {
            w.u8(2);
            put_window(w, window);
        }
        Work::Park(park) => {
            w.u8(4);
            w.u64(park.seq.0);
            w.place(park.len);
            put_key(w, park.store.as_ref());
        }
        Work::Close(close) => {
            w.u8(5);
            w.u64(close.seq.0);
            w.place(close.inputs);
        }
    }
}

fn get_work(r: &mut Reader<'_>) -> Result<Work, DecodeError> {
    Ok(match r.u8("work")? {
        0 => Work::Open(Box::new(get_open(r)?)),
        1 => {
            let (seq, base) = (r.seq("chunk.seq")?, r.place("chunk.base")?);
            let tokens = r.row_tokens("chunk.tokens", base)?;
            let follows = r.option("chunk.follows", |r| r.token("chunk.follows"))?;
            Work::Chunk(Chunk { seq, base, tokens, follows })
        }
        2 => Work::Window(get_window(r)?),
        4 => Work::Park(Park {
            seq: r.seq("park.seq")?,
            len: r.place("park.len")?,
            store: get_key(r, "park.store")?,
        }),
        5 => Work::Close(Close { seq: r.seq("close.seq")?, inputs: r.place("close.inputs")? }),
        tag => return Err(DecodeError::UnknownTag { field: "work", tag }),
    })
}

fn put_open(w: &mut Writer<'_>, v: &Open) {
    w.u64(v.seq.0);
    w.place(v.start);
    w.u64(v.seed);
    w.u32(v.choice);
    put_sampler(w, &v.sampler);
    w.place(v.limit);
    w.flag(v.ignore_eos);
    w.option(v.top_logprobs.as_ref(), |w, &n| w.u8(n));
    w.option(v.of_prompt.as_ref(), put_of_prompt);
    w.option(v.reuse.as_ref(), |w, reuse| {
        w.u64(reuse.prefix.0);
        w.flag(reuse.keep);
        put_key(w, reuse.stored.as_ref());
    });
    w.option(v.held.as_ref(), |w, held| {
        w.u64(held.prefix.0);
        w.place(held.len);
        w.u16(held.lost_by);
    });
    w.tokens(&v.history);
}

fn get_open(r: &mut Reader<'_>) -> Result<Open, DecodeError> {
    let open = Open {
        seq: r.seq("open.seq")?,
        start: r.place("open.start")?,
        seed: r.u64("open.seed")?,
        choice: r.u32("open.choice")?,
        sampler: get_sampler(r)?,
        limit: r.place("open.limit")?,
        ignore_eos: r.flag("open.ignore_eos")?,
        top_logprobs: r
            .option("open.top_logprobs", |r| r.u8_in("open.top_logprobs", 0, limits::MAX_TOP_LOGPROBS))?,
        of_prompt: r.option("open.of_prompt", get_of_prompt)?,
        reuse: r.option("open.reuse", get_reuse)?,
        held: r.option("open.held", get_held)?,
        history: r.tokens("open.history", limits::MAX_CONTEXT as usize)?,
    };
    if open.limit <= open.start {
        return Err(DecodeError::Contradiction { field: "open.limit", rule: "must lie beyond open.start" });
    }
    if open.history.len() != open.start.0 as usize {
        return Err(DecodeError::Contradiction {
            field: "open.history",
            rule: "must hold open.start tokens",
        });
    }
    if let Some(held) = &open.held {
        if open.start > Position(0) || open.reuse.is_some() {
            return Err(DecodeError::Contradiction {
                field: "open.held",
                rule: "only a sequence that some stages begin with nothing is held by others",
            });
        }
        if held.len == Position(0) || open.limit <= held.len {
            return Err(DecodeError::Contradiction {
                field: "open.held.len",
                rule: "must lie between 0 and open.limit",
            });
        }
    }
    if open.of_prompt.is_some() && (open.start > Position(0) || open.held.is_some()) {
        return Err(DecodeError::Contradiction {
            field: "open.of_prompt",
            rule: "what is wanted of a prompt is computed from its beginning",
        });
    }
    Ok(open)
}

fn get_reuse(r: &mut Reader<'_>) -> Result<Reuse, DecodeError> {
    Ok(Reuse {
        prefix: r.seq("open.reuse.prefix")?,
        keep: r.flag("open.reuse.keep")?,
        stored: get_key(r, "open.reuse.stored")?,
    })
}

fn get_held(r: &mut Reader<'_>) -> Result<Held, DecodeError> {
    Ok(Held {
        prefix: r.seq("open.held.prefix")?,
        len: r.place("open.held.len")?,
        lost_by: r.u16_in("open.held.lost_by", 0, limits::MAX_STAGES)?,
    })
}

fn put_key(w: &mut Writer<'_>, v: Option<&PrefixKey>) {
    w.option(v, |w, key| w.bytes(&key.0));
}

fn get_key(r: &mut Reader<'_>, field: Field) -> Result<Option<PrefixKey>, DecodeError> {
    r.option(field, |r| Ok(PrefixKey(r.array(field)?)))
}

fn put_window(w: &mut Writer<'_>, v: &Window) {
    w.u64(v.seq.0);
    w.u32(v.epoch.0);
    w.u32(v.window.0);
    w.place(v.base);
    w.tokens(&v.tokens);
    w.flag(v.run_ahead);
    w.option(v.want_draft.as_ref(), |w, want| {
        w.u8(want.tokens);
        w.option(want.unless.as_ref(), |w, &token| w.token(token));
    });
}

fn get_window(r: &mut Reader<'_>) -> Result<Window, DecodeError> {
    let (seq, epoch) = (r.seq("window.seq")?, r.epoch("window.epoch")?);
    let (window, base) = (r.window("window.window")?, r.place("window.base")?);
    Ok(Window {
        seq,
        epoch,
        window,
        base,
        tokens: r.row_tokens("window.tokens", base)?,
        run_ahead: r.flag("window.run_ahead")?,
        want_draft: r.option("window.want_draft", get_want_draft)?,
    })
}

fn get_want_draft(r: &mut Reader<'_>) -> Result<WantDraft, DecodeError> {
    Ok(WantDraft {
        tokens: r.u8_in("window.want_draft.tokens", 1, limits::MAX_DRAFT)?,
        unless: r.option("window.want_draft.unless", |r| r.token("window.want_draft.unless"))?,
    })
}

pub(super) fn put_verdict(w: &mut Writer<'_>, v: &Verdict) {
    w.u64(v.seq.0);
    w.u32(v.epoch.0);
    w.u32(v.window.0);
    w.place(v.base);
    w.tokens(&v.tokens);
    w.option(v.ended.as_ref(), |w, end| {
        w.u8(match end {
            End::EndOfGeneration => 0,
            End::Limit => 1,
            End::Grammar => 2,
        });
    });
    w.list(&v.logprobs, put_logprobs);
    w.option(v.mu.as_ref(), |w, &mu| w.f32(mu));
    put_timings(w, &v.timings);
    put_company(w, v.company);
    w.flag(v.drafts);
}

pub(super) fn put_draft(w: &mut Writer<'_>, v: &TailDraft) {
    w.u64(v.seq.0);
    w.place(v.base);
    w.tokens(&v.tokens);
    w.list(&v.probabilities, |w, &probability| w.f32(probability));
    put_timing(w, &v.timing);
    put_company(w, v.company);
}

pub(super) fn get_draft(r: &mut Reader<'_>) -> Result<TailDraft, DecodeError> {
    let (seq, base) = (r.seq("draft.seq")?, r.place("draft.base")?);
    let tokens = r.tokens("draft.tokens", limits::MAX_DRAFT.into())?;
    let probabilities =
        r.list("draft.probabilities", limits::MAX_DRAFT.into(), 4, |r| r.finite("draft.probabilities"))?;
    if probabilities.len() != tokens.len() {
        return Err(DecodeError::Contradiction {
            field: "draft.probabilities",
            rule: "there is one per token",
        });
    }
    if probabilities.iter().any(|probability| !(0.0..=1.0).contains(probability)) {
        return Err(DecodeError::Contradiction {
            field: "draft.probabilities",
            rule: "they lie between 0 and 1",
        });
    }
    let timing = get_timing(r, "draft.timing")?;
    let company = get_company(r, "draft.company")?;
    Ok(TailDraft { seq, base, tokens, probabilities, timing, company })
}

pub(super) fn get_verdict(r: &mut Reader<'_>) -> Result<Verdict, DecodeError> {
    let (seq, epoch) = (r.seq("verdict.seq")?, r.epoch("verdict.epoch")?);
    let (window, base) = (r.window("verdict.window")?, r.place("verdict.base")?);
    let tokens = r.row_tokens("verdict.tokens", base)?;
    let ended = r.option("verdict.ended", get_end)?;
    let logprobs = r.list("verdict.logprobs", limits::MAX_ROWS as usize, 8, get_logprobs)?;
    if !logprobs.is_empty() && logprobs.len() != tokens.len() {
        return Err(DecodeError::Contradiction {
            field: "verdict.logprobs",
            rule: "there is one per token or none",
        });
    }
    let mu = r.option("verdict.mu", |r| r.finite("verdict.mu"))?;
    let timings = get_timings(r, "verdict.timings")?;
    let company = get_company(r, "verdict.company")?;
    let drafts = r.flag("verdict.drafts")?;
    Ok(Verdict { seq, epoch, window, base, tokens, ended, logprobs, mu, timings, company, drafts })
}

fn get_end(r: &mut Reader<'_>) -> Result<End, DecodeError> {
    match r.u8("verdict.ended")? {
        0 => Ok(End::EndOfGeneration),
        1 => Ok(End::Limit),
        2 => Ok(End::Grammar),
        tag => Err(DecodeError::UnknownTag { field: "verdict.ended", tag }),
    }
}

pub(super) fn put_logprobs(w: &mut Writer<'_>, v: &TokenLogprobs) {
    w.f32(v.logprob);
    w.list(&v.top, |w, &(token, logprob)| {
        w.token(token);
        w.f32(logprob);
    });
}

pub(super) fn get_logprobs(r: &mut Reader<'_>) -> Result<TokenLogprobs, DecodeError> {
    Ok(TokenLogprobs {
        logprob: r.log_weight("logprobs.logprob")?,
        top: r.list("logprobs.top", limits::MAX_TOP_LOGPROBS.into(), 8, |r| {
            Ok((r.token("logprobs.top.token")?, r.log_weight("logprobs.top.logprob")?))
        })?,
    })
}

pub(super) fn put_timings(w: &mut Writer<'_>, v: &[StageTiming]) {
    w.list(v, put_timing);
}

pub(super) fn get_timings(r: &mut Reader<'_>, field: Field) -> Result<Vec<StageTiming>, DecodeError> {
    r.list(field, limits::MAX_STAGES.into(), 12, |r| get_timing(r, field))
}

fn put_timing(w: &mut Writer<'_>, v: &StageTiming) {
    w.u32(v.queue_us);
    w.u32(v.compute_us);
    w.u32(v.batch_rows);
}

fn get_timing(r: &mut Reader<'_>, field: Field) -> Result<StageTiming, DecodeError> {
    Ok(StageTiming { queue_us: r.u32(field)?, compute_us: r.u32(field)?, batch_rows: r.u32(field)? })
}
