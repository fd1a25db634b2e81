//! Bytes of control messages, both ways.

use bytes::Bytes;

use super::DecodeError;
use super::prompt::{get_part, put_part};
use super::reader::{Field, Reader};
use super::work::{get_draft, get_timings, get_verdict, put_draft, put_timings, put_verdict};
use super::writer::Writer;
use crate::{
    Assign, Command, Downstream, Fault, FaultKind, Generation, Hint, Holding, KvType, LayerRange, ModelId,
    NodeId, Progress, Report, RowDtype, StageCounters, StageState, Stored, ToFront, ToStage, limits,
};

pub(super) fn put_dtype(w: &mut Writer<'_>, v: RowDtype) {
    w.u8(match v {
        RowDtype::F32 => 0,
        RowDtype::F16 => 1,
        RowDtype::Bf16 => 2,
        RowDtype::Q8 => 3,
    });
}

pub(super) fn get_dtype(r: &mut Reader<'_>, field: Field) -> Result<RowDtype, DecodeError> {
    match r.u8(field)? {
        0 => Ok(RowDtype::F32),
        1 => Ok(RowDtype::F16),
        2 => Ok(RowDtype::Bf16),
        3 => Ok(RowDtype::Q8),
        tag => Err(DecodeError::UnknownTag { field, tag }),
    }
}

pub(super) fn put_to_stage(w: &mut Writer<'_>, v: &ToStage) {
    w.u16(v.to.0);
    w.u64(v.generation.0);
    match &v.command {
        Command::Assign(assign) => {
            w.u8(0);
            put_assign(w, assign);
        }
        Command::Release => w.u8(1),
        Command::Hint(Hint::Advance { seq, epoch }) => {
            w.u8(2);
            w.u64(seq.0);
            w.u32(epoch.0);
        }
        Command::Hint(Hint::Drop { seq }) => {
            w.u8(3);
            w.u64(seq.0);
        }
        Command::Hint(Hint::Together { sequences }) => {
            w.u8(4);
            w.u16(*sequences);
        }
        Command::Prepare(holding) => {
            w.u8(5);
            put_holding(w, holding);
        }
        Command::Notice(notice) => {
            w.u8(6);
            put_notice(w, notice);
        }
    }
}

pub(super) fn get_to_stage(r: &mut Reader<'_>) -> Result<ToStage, DecodeError> {
    let (to, generation) = (r.peer("to_stage.to")?, r.generation("to_stage.generation")?);
    let command = match r.u8("command")? {
        0 => Command::Assign(Box::new(get_assign(r)?)),
        1 => Command::Release,
        2 => Command::Hint(Hint::Advance { seq: r.seq("advance.seq")?, epoch: r.epoch("advance.epoch")? }),
        3 => Command::Hint(Hint::Drop { seq: r.seq("drop.seq")? }),
        4 => Command::Hint(Hint::Together { sequences: get_sequences(r)? }),
        5 => Command::Prepare(get_holding(r)?),
        6 => Command::Notice(get_notice(r)?),
        tag => return Err(DecodeError::UnknownTag { field: "command", tag }),
    };
    Ok(ToStage { to, generation, command })
}

pub(super) fn put_notice(w: &mut Writer<'_>, v: &[u8]) {
    w.u32(v.len() as u32);
    w.bytes(v);
}

pub(super) fn get_notice(r: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let len = r.u32_in("notice", 0, limits::MAX_NOTICE_BYTES as u32)?;
    Ok(Bytes::copy_from_slice(r.take("notice", len as usize)?))
}

fn get_sequences(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    match r.u16("together.sequences")? {
        0 => Err(DecodeError::OutOfRange {
            field: "together.sequences",
            value: 0,
            min: 1,
            max: u16::MAX.into(),
        }),
        n => Ok(n),
    }
}

fn put_assign(w: &mut Writer<'_>, v: &Assign) {
    w.u16(v.n_stages);
    w.u16(v.index.0);
    put_holding(w, &v.holding);
    put_dtype(w, v.row_dtype);
    w.u64(v.prefix_bytes);
    w.option(v.keep.as_ref(), |w, v| w.u64(v.0));
    w.bytes(&v.upstream.0);
    w.option(v.downstream.as_ref(), |w, v| {
        w.text(&v.address);
        w.option(v.node.as_ref(), |w, node| w.bytes(&node.0));
        w.option(v.relay.as_ref(), |w, peer| w.u16(peer.0));
    });
}

fn put_holding(w: &mut Writer<'_>, v: &Holding) {
    w.bytes(&v.model.0);
    w.u32(v.n_layers);
    put_layers(w, v.layers);
    w.u32(v.context);
    w.u16(v.n_slots);
    w.u32(v.max_rows);
    w.u8(match v.kv {
        KvType::F16 => 0,
        KvType::Q8_0 => 1,
        KvType::Q4_0 => 2,
    });
    w.flag(v.exact);
    w.flag(v.swa_full);
    w.u32(v.undo_rows);
    w.flag(v.drafts);
}

pub(super) fn put_layers(w: &mut Writer<'_>, v: LayerRange) {
    w.u32(v.start);
    w.u32(v.end);
}

fn get_assign(r: &mut Reader<'_>) -> Result<Assign, DecodeError> {
    let n_stages = r.u16_in("assign.n_stages", 1, limits::MAX_STAGES)?;
    let index = r.stage("assign.index")?;
    let assign = Assign {
        index,
        n_stages,
        holding: get_holding(r)?,
        row_dtype: get_dtype(r, "assign.row_dtype")?,
        prefix_bytes: r.u64("assign.prefix_bytes")?,
        keep: r.option("assign.keep", |r| r.u64("assign.keep").map(Generation))?,
        upstream: NodeId(r.array("assign.upstream")?),
        downstream: r.option("assign.downstream", get_downstream)?,
    };
    let is_tail = index.0 + 1 == n_stages;
    if index.0 >= n_stages {
        return Err(DecodeError::Contradiction {
            field: "assign.index",
            rule: "must be below assign.n_stages",
        });
    }
    if is_tail != assign.downstream.is_none() {
        return Err(DecodeError::Contradiction {
            field: "assign.downstream",
            rule: "only the tail has none",
        });
    }
    Ok(assign)
}

fn get_holding(r: &mut Reader<'_>) -> Result<Holding, DecodeError> {
    let model = ModelId(r.array("holding.model")?);
    let n_layers = r.u32_in("holding.n_layers", 1, limits::MAX_LAYERS)?;
    Ok(Holding {
        model,
        n_layers,
        layers: get_layers(r, n_layers)?,
        context: r.u32_in("holding.context", 1, limits::MAX_CONTEXT)?,
        n_slots: r.u16_in("holding.n_slots", 1, limits::MAX_SLOTS)?,
        max_rows: r.u32_in("holding.max_rows", 1, limits::MAX_ROWS)?,
        kv: get_kv(r)?,
        exact: r.flag("holding.exact")?,
        swa_full: r.flag("holding.swa_full")?,
        undo_rows: r.u32_in("holding.undo_rows", 0, limits::MAX_ROWS)?,
        drafts: r.flag("holding.drafts")?,
    })
}

pub(super) fn get_layers(r: &mut Reader<'_>, n_layers: u32) -> Result<LayerRange, DecodeError> {
    let layers = LayerRange {
        start: r.u32_in("layers.start", 0, n_layers)?,
        end: r.u32_in("layers.end", 0, n_layers)?,
    };
    if layers.start > layers.end {
        return Err(DecodeError::Contradiction { field: "layers", rule: "must not end before they start" });
    }
    Ok(layers)
}

fn get_kv(r: &mut Reader<'_>) -> Result<KvType, DecodeError> {
    match r.u8("holding.kv")? {
        0 => Ok(KvType::F16),
        1 => Ok(KvType::Q8_0),
        2 => Ok(KvType::Q4_0),
        tag => Err(DecodeError::UnknownTag { field: "holding.kv", tag }),
    }
}

fn get_downstream(r: &mut Reader<'_>) -> Result<Downstream, DecodeError> {
    Ok(Downstream {
        address: r.text("assign.downstream.address", limits::MAX_TEXT)?,
        node: r.option("assign.downstream.node", |r| Ok(NodeId(r.array("assign.downstream.node")?)))?,
        relay: r.option("assign.downstream.relay", |r| r.peer("assign.downstream.relay"))?,
    })
}

pub(super) fn put_to_front(w: &mut Writer<'_>, v: &ToFront) {
    w.u16(v.from.0);
    w.u64(v.generation.0);
    match &v.report {
        Report::State(state) => {
            w.u8(0);
            put_state(w, state);
        }
        Report::Verdict(verdict) => {
            w.u8(1);
            put_verdict(w, verdict);
        }
        Report::Progress(progress) => {
            w.u8(2);
            w.u64(progress.seq.0);
            w.place(progress.next);
            put_timings(w, &progress.timings);
        }
        Report::Closed(seq) => {
            w.u8(3);
            w.u64(seq.0);
        }
        Report::Fault(fault) => {
            w.u8(4);
            w.option(fault.seq.as_ref(), |w, seq| w.u64(seq.0));
            put_fault(w, &fault.kind);
        }
        Report::Counters(counters) => {
            w.u8(5);
            put_counters(w, counters);
        }
        Report::Notice(notice) => {
            w.u8(8);
            put_notice(w, notice);
        }
        Report::Leaving => w.u8(9),
        Report::Draft(draft) => {
            w.u8(10);
            put_draft(w, draft);
        }
        Report::Stored(stored) => {
            w.u8(6);
            w.u64(stored.prefix.0);
            w.flag(stored.kept);
        }
        Report::Prompt(part) => {
            w.u8(7);
            put_part(w, part);
        }
    }
}

fn put_counters(w: &mut Writer<'_>, v: &StageCounters) {
    w.u64(v.calls);
    w.u64(v.rows);
    w.u64(v.windows);
    w.u64(v.chunks);
    w.u64(v.stale_windows);
    w.u64(v.stale_rows);
    w.u64(v.passed_windows);
    w.u64(v.passed_chunks);
    w.u64(v.wasted_rows);
    w.u64(v.stored_prefixes);
    w.u64(v.restored_prefixes);
    w.u64(v.missed_prefixes);
}

fn get_counters(r: &mut Reader<'_>) -> Result<StageCounters, DecodeError> {
    Ok(StageCounters {
        calls: r.u64("counters.calls")?,
        rows: r.u64("counters.rows")?,
        windows: r.u64("counters.windows")?,
        chunks: r.u64("counters.chunks")?,
        stale_windows: r.u64("counters.stale_windows")?,
        stale_rows: r.u64("counters.stale_rows")?,
        passed_windows: r.u64("counters.passed_windows")?,
        passed_chunks: r.u64("counters.passed_chunks")?,
        wasted_rows: r.u64("counters.wasted_rows")?,
        stored_prefixes: r.u64("counters.stored_prefixes")?,
        restored_prefixes: r.u64("counters.restored_prefixes")?,
        missed_prefixes: r.u64("counters.missed_prefixes")?,
    })
}

pub(super) fn get_to_front(r: &mut Reader<'_>) -> Result<ToFront, DecodeError> {
    let (from, generation) = (r.peer("to_front.from")?, r.generation("to_front.generation")?);
    let report = match r.u8("report")? {
        0 => Report::State(get_state(r)?),
        1 => Report::Verdict(Box::new(get_verdict(r)?)),
        2 => Report::Progress(Progress {
            seq: r.seq("progress.seq")?,
            next: r.place("progress.next")?,
            timings: get_timings(r, "progress.timings")?,
        }),
        3 => Report::Closed(r.seq("closed.seq")?),
        4 => {
            Report::Fault(Fault { seq: r.option("fault.seq", |r| r.seq("fault.seq"))?, kind: get_fault(r)? })
        }
        5 => Report::Counters(get_counters(r)?),
        6 => Report::Stored(Stored { prefix: r.seq("stored.prefix")?, kept: r.flag("stored.kept")? }),
        7 => Report::Prompt(Box::new(get_part(r)?)),
        8 => Report::Notice(get_notice(r)?),
        9 => Report::Leaving,
        10 => Report::Draft(Box::new(get_draft(r)?)),
        tag => return Err(DecodeError::UnknownTag { field: "report", tag }),
    };
    Ok(ToFront { from, generation, report })
}

fn put_state(w: &mut Writer<'_>, v: &StageState) {
    match v {
        StageState::Idle { node, pid } => {
            w.u8(0);
            w.bytes(&node.0);
            w.u32(*pid);
        }
        StageState::Loading { permille, what } => {
            w.u8(1);
            w.u16(*permille);
            w.text(what);
        }
        StageState::Linking => w.u8(2),
        StageState::Ready { keeps, row_width, weight_bytes, kv_bytes } => {
            w.u8(3);
            w.flag(*keeps);
            w.u32(*row_width);
            w.u64(*weight_bytes);
            w.u64(*kv_bytes);
        }
        StageState::Failed { reason } => {
            w.u8(4);
            w.text(reason);
        }
        StageState::Standby { layers, weight_bytes, kv_bytes } => {
            w.u8(5);
            put_layers(w, *layers);
            w.u64(*weight_bytes);
            w.u64(*kv_bytes);
        }
    }
}

fn get_state(r: &mut Reader<'_>) -> Result<StageState, DecodeError> {
    Ok(match r.u8("state")? {
        0 => StageState::Idle { node: NodeId(r.array("state.node")?), pid: r.u32("state.pid")? },
        1 => StageState::Loading {
            permille: r.u16_in("state.permille", 0, 1000)?,
            what: r.text("state.what", limits::MAX_TEXT)?,
        },
        2 => StageState::Linking,
        3 => StageState::Ready {
            keeps: r.flag("state.keeps")?,
            row_width: r.u32_in("state.row_width", 1, limits::MAX_ROW_WIDTH)?,
            weight_bytes: r.u64("state.weight_bytes")?,
            kv_bytes: r.u64("state.kv_bytes")?,
        },
        4 => StageState::Failed { reason: r.text("state.reason", limits::MAX_TEXT)? },
        5 => StageState::Standby {
            layers: get_layers(r, limits::MAX_LAYERS)?,
            weight_bytes: r.u64("state.weight_bytes")?,
            kv_bytes: r.u64("state.kv_bytes")?,
        },
        tag => return Err(DecodeError::UnknownTag { field: "state", tag }),
    })
}

fn put_fault(w: &mut Writer<'_>, v: &FaultKind) {
    match v {
        FaultKind::Diverged { base, token, expected, expected_token } => {
            w.u8(0);
            w.place(*base);
            w.token(*token);
            w.place(*expected);
            w.token(*expected_token);
        }
        FaultKind::Gap { base, next } => {
            w.u8(1);
            w.place(*base);
            w.place(*next);
        }
        FaultKind::Rewind { base, oldest } => {
            w.u8(2);
            w.place(*base);
            w.place(*oldest);
        }
        FaultKind::UnknownSequence => w.u8(3),
        FaultKind::AlreadyOpen => w.u8(4),
        FaultKind::ContextFull { end, context } => {
            w.u8(5);
            w.place(*end);
            w.u32(*context);
        }
        FaultKind::TooManySequences { limit } => {
            w.u8(6);
            w.u32(*limit);
        }
        FaultKind::BadRows { reason } => put_reason(w, 7, reason),
        FaultKind::Engine { reason } => put_reason(w, 8, reason),
        FaultKind::Sampler { reason } => put_reason(w, 9, reason),
        FaultKind::Link { reason } => put_reason(w, 10, reason),
        FaultKind::Unsupported { what } => put_reason(w, 11, what),
        FaultKind::PrefixLost { prefix } => {
            w.u8(12);
            w.u64(prefix.0);
        }
    }
}

fn put_reason(w: &mut Writer<'_>, tag: u8, reason: &str) {
    w.u8(tag);
    w.text(reason);
}

fn get_fault(r: &mut Reader<'_>) -> Result<FaultKind, DecodeError> {
    let reason = |r: &mut Reader<'_>| r.text("fault.reason", limits::MAX_TEXT);
    Ok(match r.u8("fault")? {
        0 => FaultKind::Diverged {
            base: r.place("fault.base")?,
            token: r.token("fault.token")?,
            expected: r.place("fault.expected")?,
            expected_token: r.token("fault.expected_token")?,
        },
        1 => FaultKind::Gap { base: r.place("fault.base")?, next: r.place("fault.next")? },
        2 => FaultKind::Rewind { base: r.place("fault.base")?, oldest: r.place("fault.oldest")? },
        3 => FaultKind::UnknownSequence,
        4 => FaultKind::AlreadyOpen,
        5 => FaultKind::ContextFull {
            end: r.place("fault.end")?,
            context: r.u32_in("fault.context", 0, limits::MAX_CONTEXT)?,
        },
        6 => FaultKind::TooManySequences { limit: r.u32("fault.limit")? },
        7 => FaultKind::BadRows { reason: reason(r)? },
        8 => FaultKind::Engine { reason: reason(r)? },
        9 => FaultKind::Sampler { reason: reason(r)? },
        10 => FaultKind::Link { reason: reason(r)? },
        11 => FaultKind::Unsupported { what: reason(r)? },
        12 => FaultKind::PrefixLost { prefix: r.seq("fault.prefix")? },
        tag => return Err(DecodeError::UnknownTag { field: "fault", tag }),
    })
}
