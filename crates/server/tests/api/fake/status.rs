//! What a line tells of itself.

use std::collections::BTreeMap;

use protocol::StageCounters;
use server::{
    DepthStatus, DraftStatus, JudgedStatus, LineStatus, PrefixStatus, SequenceStatus, SourceStatus,
    SpareStatus, StageStatus, TokenStatus, WindowStatus, WorkStatus,
};

/// A line of two stages, one of them down, with a spare and a request.
pub(super) fn status() -> LineStatus {
    LineStatus {
        stages: vec![
            StageStatus {
                address: "local".into(),
                pid: Some(1),
                layers: [0, 15],
                state: "ready".into(),
                standby: "none".into(),
                weight_bytes: Some(1 << 20),
                kv_bytes: Some(1 << 10),
                row_bytes: 256,
                busy: 0.5,
                work: work(),
                ..StageStatus::default()
            },
            StageStatus {
                address: "127.0.0.1:7411".into(),
                layers: [15, 30],
                state: "down".into(),
                reason: Some("no heartbeat for 1 s".into()),
                advice: Some("Start it again.".into()),
                standby: "warm".into(),
                rtt_ms: Some(0.25),
                ..StageStatus::default()
            },
        ],
        given_stages: 2,
        spares: vec![SpareStatus {
            address: "127.0.0.1:7412".into(),
            pid: Some(3),
            layers: Some([15, 30]),
            state: "spare".into(),
            reason: None,
            advice: None,
            weight_bytes: Some(1 << 20),
            kv_bytes: Some(1 << 10),
            rtt_ms: Some(0.5),
        }],
        sequences: vec![SequenceStatus {
            request: 7,
            phase: "decode".into(),
            prompt_tokens: 12,
            cached_tokens: 4,
            generated_tokens: 3,
            drafted_tokens: 2,
            accepted_tokens: 1,
            windows_in_flight: 2,
        }],
        windows_in_flight: 2,
        windows: WindowStatus {
            sent: 12,
            live: 7,
            stale: 3,
            in_flight_mean: 1.5,
            in_flight_max: 4,
            epochs: 1,
        },
        loop_ms: 1.5,
        ideal_ms: 1.25,
        agreement: BTreeMap::from([("suffix".into(), 0.75)]),
        sources: BTreeMap::from([("suffix".into(), suffix()), ("mtp".into(), mtp())]),
        stale_share: 0.25,
        queue: 1,
        preempted: 1,
        resumed: 3,
        tokens: TokenStatus { prompt: 90, generated: 60 },
        prefixes: PrefixStatus {
            held: 2,
            tokens: 700,
            reused_tokens: 4000,
            shared_tokens: 300,
            partly_reused_tokens: 200,
            lost: 1,
            stored: 3,
            stored_tokens: 2100,
            restored_tokens: 900,
        },
        mode: "direct".into(),
    }
}

fn work() -> WorkStatus {
    StageCounters {
        calls: 10,
        rows: 40,
        windows: 9,
        chunks: 1,
        stale_windows: 2,
        stale_rows: 4,
        passed_windows: 1,
        passed_chunks: 4,
        wasted_rows: 8,
        stored_prefixes: 2,
        restored_prefixes: 1,
        missed_prefixes: 1,
    }
    .into()
}

fn suffix() -> SourceStatus {
    let near = DepthStatus { proposed: 4, accepted: 3 };
    let far = DepthStatus { proposed: 2, accepted: 1 };
    SourceStatus { proposed: 6, accepted: 4, by_depth: vec![near, far], drafts: None }
}

fn mtp() -> SourceStatus {
    let by_position = vec![JudgedStatus { judged: 5, right: 4 }, JudgedStatus { judged: 4, right: 2 }];
    let drafts = DraftStatus { made: 6, used: 4, unused: 2, ms: 1.5, by_position };
    let near = DepthStatus { proposed: 5, accepted: 4 };
    SourceStatus { proposed: 5, accepted: 4, by_depth: vec![near], drafts: Some(drafts) }
}
