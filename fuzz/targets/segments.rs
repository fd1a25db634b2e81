//! What a member sends, before anybody has made frames of it: whatever a link reads of it comes out the same wherever its
//! bytes were cut.
#![no_main]

use fuzz::wait_for;
use libfuzzer_sys::fuzz_target;
use net::{Link, LinkError, LinkOptions, PeerInfo, Purpose, Received, Role};
use protocol::NodeId;
use tokio::io::{AsyncReadExt, join, sink};

/// The frames that a link makes of two reads, and how it ends.
async fn heard(reads: [&[u8]; 2]) -> (Vec<Received>, LinkError) {
    let [first, second] = reads.map(|read| std::io::Cursor::new(read.to_vec()));
    let peer = PeerInfo {
        node: NodeId([0; 32]),
        role: Role::Stage,
        purpose: Purpose::Rows,
        address: "nowhere".to_owned(),
    };
    let (_sender, mut receiver) =
        Link::over(join(first.chain(second), sink()), peer, &LinkOptions::default()).split();
    let mut frames = Vec::new();
    loop {
        match receiver.recv().await {
            Ok(frame) => frames.push(frame),
            Err(end) => return (frames, end),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    // The first byte says where the others are cut.
    let Some((&cut, sent)) = data.split_first() else { return };
    let (frames, end) = wait_for(heard([sent, &[]]));
    assert!(frames.iter().map(|frame| frame.bytes.len()).sum::<usize>() <= sent.len(), "nobody sent so much");
    assert!(
        matches!(end, LinkError::Closed { .. } | LinkError::PeerGone | LinkError::Protocol(_)),
        "the peer was there, and then it was not: {end}"
    );
    let (first, second) = sent.split_at(sent.len().min(cut.into()));
    assert_eq!(wait_for(heard([first, second])), (frames, end));
});
