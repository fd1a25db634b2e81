//! Bytes of the handshake. The version of a [`Hello`] and the whole of [`RefuseReason::Version`] never change their
//! form, so that two builds can always tell each other that they differ.

use super::DecodeError;
use super::control::{get_dtype, get_layers, get_notice, put_dtype, put_layers, put_notice};
use super::reader::Reader;
use super::writer::Writer;
use crate::{
    Hello, HelloReply, LinkRole, ModelId, NodeId, PROTOCOL_VERSION, RefuseReason, RowsHello, Sight, Tenant,
    limits,
};

pub(super) fn put_hello(w: &mut Writer<'_>, v: &Hello) {
    w.u16(v.version);
    w.text(&v.build);
    match &v.role {
        LinkRole::Control { peer, front } => {
            w.u8(0);
            w.u16(peer.0);
            w.bytes(&front.0);
        }
        LinkRole::Rows(rows) => {
            w.u8(1);
            w.u64(rows.generation.0);
            w.u16(rows.to.0);
            w.bytes(&rows.model.0);
            w.u32(rows.layer);
            w.u32(rows.row_width);
            put_dtype(w, rows.row_dtype);
            w.u32(rows.context);
        }
        LinkRole::Observe { notice } => {
            w.u8(2);
            put_notice(w, notice);
        }
    }
}

pub(super) fn get_hello(r: &mut Reader<'_>) -> Result<Hello, DecodeError> {
    let version = r.u16("hello.version")?;
    if version != PROTOCOL_VERSION {
        return Err(DecodeError::Version { ours: PROTOCOL_VERSION, theirs: version });
    }
    let build = r.text("hello.build", limits::MAX_TEXT)?;
    let role = match r.u8("hello.role")? {
        0 => LinkRole::Control { peer: r.peer("hello.peer")?, front: NodeId(r.array("hello.front")?) },
        1 => LinkRole::Rows(get_rows_hello(r)?),
        2 => LinkRole::Observe { notice: get_notice(r)? },
        tag => return Err(DecodeError::UnknownTag { field: "hello.role", tag }),
    };
    Ok(Hello { version, build, role })
}

fn get_rows_hello(r: &mut Reader<'_>) -> Result<RowsHello, DecodeError> {
    Ok(RowsHello {
        generation: r.generation("hello.generation")?,
        to: r.stage("hello.to")?,
        model: ModelId(r.array("hello.model")?),
        layer: r.u32_in("hello.layer", 0, limits::MAX_LAYERS)?,
        row_width: r.u32_in("hello.row_width", 0, limits::MAX_ROW_WIDTH)?,
        row_dtype: get_dtype(r, "hello.row_dtype")?,
        context: r.u32_in("hello.context", 1, limits::MAX_CONTEXT)?,
    })
}

pub(super) fn put_reply(w: &mut Writer<'_>, v: &HelloReply) {
    match v {
        HelloReply::Accept { build } => {
            w.u8(0);
            w.text(build);
        }
        HelloReply::Seen(sight) => {
            w.u8(2);
            put_sight(w, sight);
        }
        HelloReply::Refuse(reason) => {
            w.u8(1);
            put_reason(w, reason);
        }
    }
}

pub(super) fn get_reply(r: &mut Reader<'_>) -> Result<HelloReply, DecodeError> {
    match r.u8("reply")? {
        0 => Ok(HelloReply::Accept { build: r.text("reply.build", limits::MAX_TEXT)? }),
        1 => Ok(HelloReply::Refuse(get_reason(r)?)),
        2 => Ok(HelloReply::Seen(get_sight(r)?)),
        tag => Err(DecodeError::UnknownTag { field: "reply", tag }),
    }
}

fn put_sight(w: &mut Writer<'_>, v: &Sight) {
    w.text(&v.build);
    w.option(v.tenant.as_ref(), put_tenant);
    w.option(v.layers.as_ref(), |w, layers| put_layers(w, *layers));
    w.flag(v.works);
    w.u64(v.notice);
}

fn get_sight(r: &mut Reader<'_>) -> Result<Sight, DecodeError> {
    Ok(Sight {
        build: r.text("sight.build", limits::MAX_TEXT)?,
        tenant: r.option("sight.tenant", get_tenant)?,
        layers: r.option("sight.layers", |r| get_layers(r, limits::MAX_LAYERS))?,
        works: r.flag("sight.works")?,
        notice: r.u64("sight.notice")?,
    })
}

fn put_tenant(w: &mut Writer<'_>, v: &Tenant) {
    w.bytes(&v.front.0);
    w.option(v.left_ms.as_ref(), |w, ms| w.u32(*ms));
}

fn get_tenant(r: &mut Reader<'_>) -> Result<Tenant, DecodeError> {
    let front = NodeId(r.array("tenant.front")?);
    Ok(Tenant { front, left_ms: r.option("tenant.left_ms", |r| r.u32("tenant.left_ms"))? })
}

fn put_reason(w: &mut Writer<'_>, v: &RefuseReason) {
    match v {
        RefuseReason::Version { ours, theirs } => {
            w.u8(0);
            w.u16(*ours);
            w.u16(*theirs);
        }
        RefuseReason::Kept { tenant } => {
            w.u8(1);
            put_tenant(w, tenant);
        }
        RefuseReason::OtherPurpose => w.u8(5),
        RefuseReason::LetGo => w.u8(6),
        RefuseReason::NotHeeded => w.u8(7),
        RefuseReason::LeftOut => w.u8(8),
        RefuseReason::Ending => w.u8(9),
        RefuseReason::NotAssigned { generation } => {
            w.u8(2);
            w.u64(generation.0);
        }
        RefuseReason::WrongPeer => w.u8(3),
        RefuseReason::Mismatch { field, ours, theirs } => {
            w.u8(4);
            w.text(field);
            w.text(ours);
            w.text(theirs);
        }
    }
}

fn get_reason(r: &mut Reader<'_>) -> Result<RefuseReason, DecodeError> {
    Ok(match r.u8("refuse")? {
        0 => RefuseReason::Version { ours: r.u16("refuse.ours")?, theirs: r.u16("refuse.theirs")? },
        1 => RefuseReason::Kept { tenant: get_tenant(r)? },
        5 => RefuseReason::OtherPurpose,
        6 => RefuseReason::LetGo,
        7 => RefuseReason::NotHeeded,
        8 => RefuseReason::LeftOut,
        9 => RefuseReason::Ending,
        2 => RefuseReason::NotAssigned { generation: r.generation("refuse.generation")? },
        3 => RefuseReason::WrongPeer,
        4 => RefuseReason::Mismatch {
            field: r.text("refuse.field", limits::MAX_TEXT)?,
            ours: r.text("refuse.ours", limits::MAX_TEXT)?,
            theirs: r.text("refuse.theirs", limits::MAX_TEXT)?,
        },
        tag => return Err(DecodeError::UnknownTag { field: "refuse", tag }),
    })
}
