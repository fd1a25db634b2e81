//! A root takes another one's place while links stand and are made.

use super::*;
use crate::Succession;

/// A cluster whose root is rotated, with members by the old one.
struct Rotated {
    new: ClusterRoot,
    front: Identity,
    stage: Identity,
    left_out: Identity,
    succession: Succession,
}

/// Those who have not heard may come back until so many seconds after 1970.
fn rotated(until: u64) -> Rotated {
    let [old, new] = [(); 2].map(|()| ClusterRoot::new().unwrap());
    let issue = |role| old.issue(role, None).unwrap();
    let (front, stage, left_out) = (issue(Role::Front), issue(Role::Stage), issue(Role::Front));
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(until);
    let succession = old.hand_over(&new, until, &[front.membership(), stage.membership()]).unwrap();
    Rotated { new, front, stage, left_out, succession }
}

const FAR: u64 = 4_000_000_000;
const PAST: u64 = 1_000_000_000;

#[tokio::test]
async fn links_outlive_a_rotation_and_those_of_members_that_were_left_out_do_not() {
    // However short the overlap is.
    for until in [FAR, PAST] {
        let Rotated { front, stage, left_out, succession, .. } = rotated(until);
        let (_listener, with_front, at_front) = connected(&stage, &front, ListenerOptions::default()).await;
        let (_other, with_other, _at_other) = connected(&stage, &left_out, ListenerOptions::default()).await;
        let ((tx, _rx), (_tx, mut rx)) = (with_front.split(), at_front.split());
        for member in [&stage, &front] {
            assert_eq!(member.heed(succession.bytes()), Ok(true));
            tx.send(1, Bytes::from_static(b"still there"), Bytes::new()).unwrap();
            assert_eq!(soon(rx.recv()).await.unwrap().bytes[..], *b"still there");
        }
        let (_tx, mut rx) = with_other.split();
        assert!(matches!(soon(rx.recv()).await, Err(LinkError::Closed { .. })));
    }
}

#[tokio::test]
async fn who_has_heard_and_who_has_not_meet_within_the_overlap_on_either_side() {
    let Rotated { new, front, stage, succession, .. } = rotated(FAR);
    stage.heed(succession.bytes()).unwrap();
    let newcomer = new.issue(Role::Front, None).unwrap();
    // The link of somebody who brings the next rotation lives, too.
    let third = ClusterRoot::new().unwrap();
    let teller = third.issue(Role::Front, None).unwrap();
    let next = new.hand_over(&third, succession.until(), &[stage.membership()]).unwrap();
    teller.heed(next.bytes()).unwrap();
    let (_listener, at_stage, at_teller) = connected(&stage, &teller, ListenerOptions::default()).await;
    let ((_tx, mut rx), (tx, _rx)) = (at_stage.split(), at_teller.split());
    tx.send(1, Bytes::from_static(b"the next"), Bytes::new()).unwrap();
    assert_eq!(soon(rx.recv()).await.unwrap().bytes[..], *b"the next");
    for (listening, dialling) in [(&stage, &front), (&front, &stage), (&stage, &newcomer), (&stage, &stage)] {
        let (accepted, dialled) = meet(listening, &Admit::default(), dialling, &wanting(Purpose::Rows)).await;
        assert_eq!(accepted.unwrap().node, dialling.node());
        assert_eq!(dialled.unwrap().node, listening.node());
    }
}

#[tokio::test]
async fn an_old_membership_is_refused_after_the_overlap_and_both_sides_are_told_what_to_do() {
    let Rotated { front, stage, succession, .. } = rotated(PAST);
    stage.heed(succession.bytes()).unwrap();
    let (accepted, dialled) = meet(&stage, &Admit::default(), &front, &any_role()).await;
    assert_eq!(accepted, Err(AcceptError::Handshake(HandshakeError::OldRoot)));
    let Err(DialError::Handshake { error: told, .. }) = dialled else { panic!("{dialled:?}") };
    let (accepted, dialled) = meet(&front, &Admit::default(), &stage, &any_role()).await;
    assert!(
        matches!(dialled, Err(DialError::Handshake { error: HandshakeError::OldRoot, .. })),
        "{dialled:?}"
    );
    assert_eq!(accepted, Err(AcceptError::Handshake(told.clone())));
    for words in [told.to_string(), HandshakeError::OldRoot.to_string()] {
        assert!(words.contains("root was rotated") && words.contains("invite"), "{words}");
    }
}
